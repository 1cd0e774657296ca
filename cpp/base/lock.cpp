// cpp/base/lock.cpp: the locks that a thread holds, in builds with assertions.
#include "base/lock.hpp"

#if !defined(NDEBUG)
#include <array>
#include <cstdio>
#include <cstdlib>

namespace weft::held_locks {

namespace {

struct Held {
  const LockRank* rank;
  const void* lock;
};
// In the order in which they were taken. No destructor: a thread's last locks are released after its thread_local
// objects have ended.
constinit thread_local std::array<Held, 32> g_held{};
constinit thread_local size_t g_held_count = 0;

[[noreturn]] void end(const LockRank& wanted, const char* what, const LockRank* held, const char* rule) noexcept {
  std::fprintf(stderr, "weft: a thread %s %s (rank %u)", what, wanted.name, unsigned{wanted.at});
  if (held != nullptr) std::fprintf(stderr, " and holds %s (rank %u)", held->name, unsigned{held->at});
  std::fprintf(stderr, ": %s; cpp/base/lock_rank.hpp is the table of ranks\n", rule);
  std::abort();
}

}  // namespace

void check(const LockRank& wanted) noexcept {
  for (size_t i = g_held_count; i-- > 0;) {
    const LockRank& held = *g_held[i].rank;
    if (held.at >= wanted.at) end(wanted, "asks for", &held, "a thread takes locks in rising rank");
  }
}

void add(const LockRank& rank, const void* lock) noexcept {
  if (g_held_count == g_held.size()) end(rank, "has taken", nullptr, "a thread holds at most 32 locks");
  g_held[g_held_count++] = {&rank, lock};
}

void remove(const void* lock) noexcept {
  for (size_t i = g_held_count; i-- > 0;) {
    if (g_held[i].lock != lock) continue;
    for (--g_held_count; i < g_held_count; ++i) g_held[i] = g_held[i + 1];
    return;
  }
  std::fprintf(stderr, "weft: a thread releases a lock that it does not hold\n");
  std::abort();
}

void require(const LockRank& rank, const void* lock) noexcept {
  for (size_t i = g_held_count; i-- > 0;) {
    if (g_held[i].lock == lock) return;
  }
  end(rank, "uses what is guarded by", nullptr, "the caller holds this lock");
}

}  // namespace weft::held_locks
#endif
