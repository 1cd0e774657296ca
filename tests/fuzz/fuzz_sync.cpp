// tests/fuzz/fuzz_sync.cpp: locks, semaphores, events, barriers and queues whose memory a peer writes into between the
// calls of others: the head, the seats, the slots of a queue. Every call ends with an outcome, and writes nothing
// outside the object and outside the caller's own memory (which the address sanitizer sees).
#include <cstdlib>
#include <memory>

#include "sync/object.hpp"
#include "target.hpp"

using namespace weft;
using fuzz::must;
using sync::Kind;
using sync::Op;
using sync::Outcome;

namespace {

constexpr size_t kRoom = 64;  // of a record that is got

// The input decides which processes have ended.
class MadeUp final : public sync::World {
 public:
  explicit MadeUp(fuzz::Input& in) : in_(in) {}
  [[nodiscard]] sync::Who self() const noexcept override { return {100, 7}; }
  [[nodiscard]] bool gone(sync::Who /*who*/) noexcept override { return in_.coin(); }
  [[nodiscard]] uint64_t now_ns() noexcept override { return now_ += 1'000'000; }
  void fence_all() noexcept override {}

 private:
  fuzz::Input& in_;
  uint64_t now_ = 0;
};

struct Freed {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};

void check(const sync::Object& object, uint64_t bytes, const sync::Call& call, Outcome outcome) {
  must(outcome <= Outcome::busy && outcome != Outcome::canceled, "an outcome that no call has");
  if (outcome == Outcome::too_long) must(object.kind == Kind::queue && call.value <= object.item, "a record's length");
  if (outcome != Outcome::done) return;
  if (object.kind == Kind::barrier && (call.op == Op::wait || call.op == Op::look)) {
    must(call.value < object.n, "a party's number");
  }
  if (object.kind != Kind::queue) return;
  switch (call.op) {
    case Op::get:
      must(call.length <= call.out_bytes, "a record is longer than its room");
      break;
    case Op::claim:
      must(call.state <= object.item, "a record is longer than its slot");
      [[fallthrough]];
    case Op::reserve:
      must(call.value < object.n, "a slot's number");
      must(call.value2 <= bytes && object.item <= bytes - call.value2, "a slot outside the object");
      break;
    case Op::look:
      must(call.value <= object.n, "more records than slots");
      break;
    default:
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::run(data, size, [](fuzz::Input& in) {
    static constexpr uint64_t kItems[] = {16, 0, 1, 8, 64, sync::kCopyUnderGuard + 8};
    const auto kind = static_cast<Kind>(1 + in.below(5));
    const uint64_t n = 1 + in.below(4), item = kind == Kind::queue ? kItems[in.below(6)] : 1 + in.below(4);
    const uint64_t form = kind == Kind::queue ? in.below(32) : 0;
    const uint64_t bytes = *sync::bytes_of(kind, n, item, form);
    // As long as the object: a byte beyond it has no owner.
    const uint64_t whole = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    const std::unique_ptr<std::byte, Freed> memory(static_cast<std::byte*>(std::aligned_alloc(kCacheLine, whole)));
    must(memory != nullptr, "memory");
    std::memset(memory.get(), 0, whole);
    const std::array<std::byte, 32> text{};
    (void)sync::create(memory.get(), kind, n, item, 1, std::span(text).first(form));
    MadeUp world(in);
    std::optional<sync::Object> object = sync::open(memory.get(), bytes);
    must(object.has_value(), "an object that was made is one");
    const std::array<sync::Who, 2> processes = {world.self(), sync::Who{200, 9}};
    std::array<std::byte, sync::kCopyUnderGuard + 64> record{};
    uint64_t states[4] = {};
    for (int step = 0; step < 200 && !in.empty(); ++step) {
      const uint32_t choice = in.below(8);
      if (choice < 3) {  // a word of the object
        const uint64_t word = in.take<uint16_t>() % (std::min<uint64_t>(whole, 4096) / 8);
        const uint64_t likely[] = {0,
                                   1,
                                   2,
                                   3,
                                   n,
                                   n - 1,
                                   ~uint64_t{0},
                                   uint64_t{1} << 63,
                                   sync::holder_word(processes[in.below(2)], in.coin()) | in.below(4),
                                   item,
                                   item + 1,
                                   uint64_t{1} << 32 | 1};
        const uint64_t value = in.number(likely);
        std::memcpy(memory.get() + word * 8, &value, 8);
        continue;
      }
      if (choice == 3) {  // another process opens it as it is now
        const auto found = sync::open(memory.get(), bytes);
        if (!found) continue;
        const auto needed = sync::bytes_of(found->kind, found->n, found->item);
        must(needed && *needed <= bytes, "an object that is longer than its memory");
        if (in.coin()) object = found;
        continue;
      }
      sync::Call call;
      call.op = static_cast<Op>(1 + in.below(sync::kOpMax + 1));
      const uint32_t who = in.below(4);
      call.who = processes[who & 1];
      call.for_other = who >= 2;
      call.token = call.for_other ? who : 0;
      call.look = in.coin();
      call.sleeps = in.coin();
      const uint64_t numbers[] = {0, 1, n - 1, n, item, item + 1, ~uint64_t{0}};
      call.a = in.number(numbers);
      call.b = in.below(3);
      call.state = in.coin() ? states[who] : in.number(numbers);
      call.in = record.data();
      call.in_bytes = std::min<uint64_t>(in.number(numbers), record.size());
      // As long as it says: a byte beyond it has no owner.
      const uint64_t room = call.op == Op::get && in.coin() ? record.size() : std::min<uint64_t>(in.below(80), kRoom);
      const std::unique_ptr<std::byte[]> out(new std::byte[room]);
      call.out = out.get();
      call.out_bytes = room;
      const Outcome outcome = sync::step(*object, call, world);
      check(*object, bytes, call, outcome);
      if (call.op == Op::wait) states[who] = call.state;
    }
  });
}
