// bench/cpp/rows.hpp: a row of the report, and how its figures are measured.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cache.hpp"
#include "host/pacer.hpp"

namespace weft::bench {

struct Row {
  std::string name;
  const char* unit = "ns";  // or GB/s, where larger is better
  double median = 0, p99 = 0;
  std::string limit_name;
  double limit = 0;
  std::string budget{};  // empty: DESIGN.md has none
  bool met = true;
};

inline std::vector<Row> g_rows;
inline bool g_json = false;

inline double share_of(const Row& r) {
  if (r.limit == 0 || r.median == 0) return 0;
  return std::strcmp(r.unit, "ns") == 0 ? r.limit / r.median : r.median / r.limit;
}

inline void add(Row row) {
  if (g_json) {
    std::printf(
        "{\"name\": \"%s\", \"unit\": \"%s\", \"median\": %.4g, \"p99\": %.4g, \"limit_name\": \"%s\", "
        "\"limit_value\": %.4g, "
        "\"limit_share\": %.4g, \"budget\": \"%s\", \"met\": %s}\n",
        row.name.c_str(), row.unit, row.median, row.p99, row.limit_name.c_str(), row.limit, share_of(row),
        row.budget.c_str(),
        row.budget.empty() ? "null"
        : row.met          ? "true"
                           : "false");
  } else {
    if (g_rows.empty()) {
      std::printf("%-46s %9s %9s %-5s %-26s %9s %6s  %-22s\n", "", "median", "p99", "", "limit", "", "share", "budget");
    }
    std::printf("%-46s %9.1f %9.1f %-5s %-26s %9.1f %6.2f  %-22s %s\n", row.name.c_str(), row.median, row.p99, row.unit,
                row.limit_name.c_str(), row.limit, share_of(row), row.budget.c_str(),
                row.budget.empty() ? ""
                : row.met          ? "met"
                                   : "NOT MET");
  }
  std::fflush(stdout);
  g_rows.push_back(std::move(row));
}

inline double now_ns() {
  return static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

struct Timed {
  double median = 0, p99 = 0;
};
inline Timed quantiles(std::vector<double>& ns) {
  std::sort(ns.begin(), ns.end());
  return {ns[ns.size() / 2], ns[std::min(ns.size() - 1, ns.size() * 99 / 100)]};
}

// Nanoseconds per call, over batches of `calls`.
template <typename Body>
Timed measure(int calls, Body&& body, int batches = 51) {
  std::vector<double> ns;
  body();
  for (int b = 0; b < batches; ++b) {
    const double start = now_ns();
    for (int i = 0; i < calls; ++i) body();
    ns.push_back((now_ns() - start) / calls);
  }
  return quantiles(ns);
}

// Runs two bodies in turn, batch by batch, so that disturbances of the machine affect both.
template <typename Ours, typename Limit>
std::pair<Timed, Timed> measure_both(int calls, Ours&& ours, Limit&& limit, int batches = 51) {
  std::vector<double> a, b;
  ours();
  limit();
  for (int i = 0; i < batches; ++i) {
    double start = now_ns();
    for (int k = 0; k < calls; ++k) ours();
    a.push_back((now_ns() - start) / calls);
    start = now_ns();
    for (int k = 0; k < calls; ++k) limit();
    b.push_back((now_ns() - start) / calls);
  }
  return {quantiles(a), quantiles(b)};
}

[[noreturn]] inline void die(const char* what) {
  std::fprintf(stderr, "weft_microbench: %s\n", what);
  std::exit(1);
}

// Call it after a round that found no work.
inline void rest(host::PollPacer& pacer) {
  if (pacer.due()) pacer.yield_measured();
}

template <typename Look>
void poll_word(Look&& look) {
  host::PollPacer pacer;
  while (!look()) {
    cpu_relax();
    rest(pacer);
  }
}

// The benches; main.cpp lists them.
void bench_put8();
void bench_ping();
void bench_tcp();
void bench_copy();
void bench_foreign();
void bench_ring();
void bench_vectored();
void bench_fetch_add();
void bench_threads();
void bench_registration();
void bench_cache();
void bench_oversubscribed();
void bench_units();
void bench_match();
void bench_messages();
void bench_trigger();

}  // namespace weft::bench
