// cpp/nic/route.hpp: the connection to a peer endpoint (Route), and one endpoint's operations under way to it (Flow).
//
// A Route belongs to its domain: all address vectors and endpoints that use the peer share it. A Flow belongs to one
// endpoint and one fi_addr, so that operations of one endpoint never wait for those of another. The domain's lock
// guards both.
#pragma once

#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>

#include "base/cache.hpp"
#include "base/status.hpp"
#include "link/link.hpp"
#include "mem/gate.hpp"
#include "mem/table.hpp"
#include "nic/op.hpp"
#include "nic/order.hpp"
#include "wire/address.hpp"
#include "wire/key.hpp"

namespace weft::nic {

class Domain;
class TelemetryWriter;

// The cached check of a region that the initiator reached by load and store, or through the kernel. Valid while the
// owner's entry has the same state word, because every change of the region changes that word.
struct alignas(kCacheLine) Translation {
  uint64_t key = 0;
  const mem::MrEntry* entry = nullptr;
  uint64_t state = 0;
  uint64_t base = 0;
  uint64_t length = 0;
  std::byte* pointer = nullptr;      // to the region's first byte; by_kernel: in the owner's process
  uint32_t allowed = 0;              // the granted rights whose use needs no notice, by load and store
  uint32_t by_kernel = 0;            // the same, of a region that the kernel copies
  mem::Gate::Slot* turns = nullptr;  // of atomics on the region; null: they take no turns
};
static_assert(sizeof(Translation) == kCacheLine);
constexpr size_t kTranslationCount = 4;
// The index of a key's translation. Consecutive keys get different ones. All bits of the key are mixed, because keys
// may differ only in their upper bits: generations, and the offsets in the CXI provider's cached keys.
constexpr size_t translation_of(uint64_t key) noexcept {
  static_assert(kTranslationCount == 4);
  return (key ^ (key >> 2) * 0xe963'674e'66ac'92dd >> 62) & (kTranslationCount - 1);
}

struct Route : std::enable_shared_from_this<Route> {
  Route(Domain* d, const wire::EpAddress& a) : address(a), domain(d) {}

  wire::EpAddress address;
  const mem::EpEntry* ep_entry = nullptr;         // in the peer's table; null if the table is not shared
  const std::atomic<uint32_t>* parked = nullptr;  // TableHeader::parked of that table
  uint32_t ep_index = 0, ep_generation = 0;
  uint32_t epoch = 0;  // grows when the address is resolved
  bool ready = false;
  bool resolving = false;
  // For a peer whose table is not shared: its completion queue has no room for writes with data; when to ask again.
  bool no_room = false;
  std::shared_ptr<link::Peer> peer;
  Translation translations[kTranslationCount];
  uint64_t ask_room_at_ns = 0, ask_room_wait_ns = 0;
  uint32_t asked = 0;                    // links tried so far, including the one under way
  Status down = Status::ok;              // how the last connection ended
  TelemetryWriter* telemetry = nullptr;  // the domain's counts for the peer's NIC, set at the first operation
  Domain* domain;

  void set_ready(std::shared_ptr<link::Peer> p, uint32_t index, uint32_t generation) {
    assert(p != nullptr && "a route that is ready has a peer");
    peer = std::move(p);
    ep_index = index;
    ep_generation = generation;
    ep_entry = peer->table.valid() ? &peer->table.ep(index) : nullptr;
    parked = peer->table.valid() ? &peer->table.header().parked : nullptr;
    ++epoch;
    down = Status::ok;
    no_room = false;
    for (Translation& t : translations) t = {};
    ready = true;
  }
  // True if the endpoint's queue has room for entries of writes with data.
  [[nodiscard]] bool takes_data() const noexcept {
    if (ep_entry == nullptr) return !no_room;
    return (ep_entry->flags.load(std::memory_order_acquire) & mem::kEpNoRoom) == 0 ||
           ep_entry->generation.load(std::memory_order_acquire) != ep_generation;
  }
  // True if the peer's table shows that the endpoint was closed since: another may have the address now.
  [[nodiscard]] bool is_old() const noexcept {
    return ready && ep_entry != nullptr && ep_entry->generation.load(std::memory_order_relaxed) != ep_generation;
  }
  // The next operation resolves the address again.
  void set_lost() noexcept {
    ready = false;
    ep_entry = nullptr;
    parked = nullptr;
    for (Translation& t : translations) t = {};
  }
};

// The data path reads only the first cache line.
struct alignas(kCacheLine) Flow : std::enable_shared_from_this<Flow> {
  // Further bits of `busy`. kWaiting: operations wait, and a new one queues behind them. kForeign: the peer has another
  // VNI, and operations to it are refused.
  // kLongSend: messages need an answer, because the receiver has to give a number or credits.
  static constexpr ClassSet kWaiting = 1u << 7, kForeign = 1u << 6, kLongSend = 1u << 5;
  static constexpr uint32_t kNoSender = ~uint32_t{0};

  explicit Flow(std::shared_ptr<Route> r) noexcept : route(std::move(r)) {}
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  std::shared_ptr<Route> route;
  ClassSet busy = kLongSend;  // classes with operations under way, and the bits above
  ClassSet copying = 0;       // classes with a long copy under way outside the lock
  Op* first = nullptr;        // waiting operations, in order; the first may be partly submitted
  // Messages: those that may be sent without an answer, the number of the next one, and the receiver's number of this
  // flow, which the first answer tells.
  // epoch: Route::epoch of the receiver that told the number.
  uint32_t credits = 0, next_number = 0, sender = kNoSender, epoch = 0;
  Op* last = nullptr;
  uint32_t unanswered = 0;    // messages
  uint32_t credits_max = 0;   // as the receiver once gave
  bool asks_credits = false;  // a message is under way whose answer brings credits
  bool stopped = false;       // a message was refused: none is sent until the receiver says so, or retry_at_ns
  bool restart = false;       // a message was lost: the flow begins anew when all messages are answered
  // After a refusal: the most unanswered messages. Doubles with each message that is taken; 0: no limit. Otherwise all
  // waiting messages would be sent, and refused, for each place that becomes free.
  uint32_t window = 0;
  uint64_t retry_at_ns = 0;
  uint64_t stopped_at_ns = 0;  // when the receiver refused the first message; 0: it takes messages

  void set_long_send() noexcept {
    const bool plenty = credits > credits_max / 2 || (credits != 0 && asks_credits);
    const bool wait = sender == kNoSender || stopped || restart || !plenty;
    busy = static_cast<ClassSet>(wait ? busy | kLongSend : busy & ~kLongSend);
  }

  std::array<uint32_t, kClassCount> under_way{};    // operations sent as frames, and long copies
  std::array<uint32_t, kClassCount> long_copies{};  // of these, the long copies
  Flow* previous_waiting = nullptr;                 // the domain's list of flows in which operations wait
  Flow* next_waiting = nullptr;

  // The connection has ended, or another endpoint has the address: the receiver does not know this flow.
  void forget_messages() noexcept {
    credits = next_number = unanswered = 0;
    sender = kNoSender;
    epoch = route->epoch;
    asks_credits = stopped = restart = false;
    window = 0;
    stopped_at_ns = 0;
    set_long_send();
  }

#if !defined(NDEBUG)
  void check() const;  // check.cpp
#endif
  [[nodiscard]] bool waits() const noexcept { return first != nullptr; }
  void begin(OpClass c) noexcept {
    if (under_way[static_cast<size_t>(c)]++ == 0) busy |= class_bit(c);
  }
  void end(OpClass c) noexcept {
    assert(under_way[static_cast<size_t>(c)] != 0 && "an operation of the class is under way");
    if (--under_way[static_cast<size_t>(c)] == 0) busy &= static_cast<ClassSet>(~class_bit(c));
  }
  void begin_copy(OpClass c) noexcept {
    begin(c);
    if (long_copies[static_cast<size_t>(c)]++ == 0) copying |= class_bit(c);
  }
  void end_copy(OpClass c) noexcept {
    end(c);
    assert(long_copies[static_cast<size_t>(c)] != 0 && "a long copy of the class is under way");
    if (--long_copies[static_cast<size_t>(c)] == 0) copying &= static_cast<ClassSet>(~class_bit(c));
  }
};

}  // namespace weft::nic
