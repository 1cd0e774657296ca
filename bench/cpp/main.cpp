// bench/cpp/main.cpp: weft_microbench: the NIC's paths from C++, each beside its limit measured in the same run.
//
// weft_microbench [--json] [--list] [FILTER ...]     a filter is a part of a bench's name
//
// A row: median and 99th percentile (of batches; for the ping-pongs of single round trips), the limit by name and
// value,
// the reached share of the limit (1: at the limit), the budget of DESIGN.md, and whether the budget was met. Peers are
// forked processes. Poll loops yield the core (PollPacer), so two cores are enough for every bench.
#include "rows.hpp"

namespace {

using namespace weft::bench;

struct Bench {
  const char* name;
  void (*run)();
};
constexpr Bench kBenches[] = {
    {"put8", bench_put8},         {"ping", bench_ping},
    {"tcp", bench_tcp},           {"copy", bench_copy},
    {"foreign", bench_foreign},   {"ring", bench_ring},
    {"vectored", bench_vectored}, {"fetch_add", bench_fetch_add},
    {"threads", bench_threads},   {"registration", bench_registration},
    {"cache", bench_cache},       {"oversubscribed", bench_oversubscribed},
    {"units", bench_units},       {"match", bench_match},
    {"messages", bench_messages}, {"trigger", bench_trigger},
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> filters;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json") {
      g_json = true;
    } else if (arg == "--list") {
      for (const Bench& b : kBenches) std::printf("%s\n", b.name);
      return 0;
    } else if (!arg.empty() && arg[0] == '-') {
      std::fprintf(stderr, "usage: weft_microbench [--json] [--list] [BENCH ...]\n");
      return 2;
    } else {
      filters.push_back(arg);
    }
  }
  for (const Bench& b : kBenches) {
    const bool wanted = filters.empty() || std::any_of(filters.begin(), filters.end(), [&](const std::string& f) {
                          return std::string(b.name).find(f) != std::string::npos;
                        });
    if (wanted) b.run();
  }
  return 0;
}
