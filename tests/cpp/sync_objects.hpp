// tests/cpp/sync_objects.hpp: objects of cpp/sync for tests: processes that run or do not, memory, calls.
#pragma once

#include <sys/mman.h>

#include <boost/test/unit_test.hpp>
#include <functional>
#include <ostream>
#include <set>
#include <span>

#include "sync/layout.hpp"
#include "sync/wait.hpp"

namespace weft::sync {
inline std::ostream& operator<<(std::ostream& out, Outcome outcome) {
  return out << "outcome " << static_cast<uint32_t>(outcome);
}
}  // namespace weft::sync

namespace weft::test_sync {

using namespace weft::sync;

// Processes that run, and a clock, as a test wants them.
class TestWorld final : public World {
 public:
  explicit TestWorld(uint32_t pid = 1) : self_{pid, 100 + pid} {}
  [[nodiscard]] Who self() const noexcept override { return self_; }
  [[nodiscard]] bool gone(Who who) noexcept override { return dead.contains(who.pid); }
  [[nodiscard]] uint64_t now_ns() noexcept override { return now; }
  void fence_all() noexcept override {}
  std::set<uint32_t> dead;
  uint64_t now = 1'000'000'000;

 private:
  Who self_;
};

// An object in memory that forked processes share.
class Shared {
 public:
  explicit Shared(Kind kind, uint64_t n = 0, uint64_t item = 0) : bytes_(*bytes_of(kind, n, item)) {
    void* p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(p != MAP_FAILED);
    memory_ = static_cast<std::byte*>(p);
    object = create(memory_, kind, n, item, 7);
  }
  ~Shared() { ::munmap(memory_, bytes_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {memory_, bytes_}; }
  Object object;

 private:
  std::byte* memory_;
  uint64_t bytes_;
};

struct Done {
  Outcome outcome;
  Call call;
};

inline Done run(const Shared& shared, World& world, Op op, uint64_t a = 0,
                const std::function<void(Call&)>& with = {}) {
  Done done;
  done.call.op = op;
  done.call.who = world.self();
  done.call.a = a;
  if (with) with(done.call);
  done.outcome = step(shared.object, done.call, world);
  return done;
}
inline void look(Call& call) {
  call.look = true;
}
inline auto as(uint32_t pid) {
  return [pid](Call& call) { call.who = {pid, 100 + pid}; };
}
inline auto in_place_of(uint64_t token) {
  return [token](Call& call) {
    call.for_other = true;
    call.token = token;
    call.b = 4711;
  };
}

// Waits until the call is done.
inline Outcome wait_for(const Shared& shared, World& world, Call& call) {
  Slices slices;
  for (;;) {
    const Outcome outcome = wait_slice(shared.object, call, world, slices, 1'000'000'000);
    if (outcome != Outcome::again && outcome != Outcome::busy) return outcome;
  }
}

}  // namespace weft::test_sync
