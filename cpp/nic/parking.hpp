// cpp/nic/parking.hpp: calls of peers on objects in this NIC's memory (sync/object.hpp), and watches of its bytes. A
// call that cannot be done yet is parked: its answer is the signal for which the peer sleeps on its completion queue.
//
// When parked calls are looked at again: after each round of progress, so after every access that a frame brought. A
// peer that changes memory by loads and stores wakes the engine if TableHeader::parked says that calls are parked here.
// Stores that Weft does not see (the owner's own, into a NumPy array) wake nobody: for them the engine looks at watches
// from time to time, so that the peer sends nothing while it waits.
//
// Calls for peers that do not map an object (another host, strict isolation): this process holds the lock, has the
// permit ... in their place, under a token. When the connection is lost, Op::gone gives back the locks and permits of
// the token.
//
// A peer that waits no longer, because of a signal or a deadline, cancels its call. If this process is stopped, the
// peer gets no answer, gives the call up, and says so (wire::kCallGivenUp). That frame comes after the call and before
// the peer's next request, so the locks and permits that a peer has taken last are noted here, and go back then. The
// record of a put() cannot go back once somebody has taken it, so a put() is done after the frames that came with it:
// when this process goes on, the frame that gives the call up is among them.
//
// The progress lock guards everything here. A peer's calls are limited; further calls are answered `again`, and the
// peer asks again later.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "link/link.hpp"
#include "sync/object.hpp"
#include "wire/call.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class Nic;

class Parking final {
 public:
  static constexpr size_t kParkedPerPeerMax = 96;  // below wire::kUnansweredMax
  static constexpr size_t kParkedMax = 16384;
  static constexpr size_t kSessionsPerPeerMax = 4096;
  static constexpr size_t kNotedPerPeer = 128;  // more calls of a peer than can be under way at once
  static constexpr size_t kAlonePerPeer = 256;  // calls given up by a peer that this NIC cannot undo yet

  explicit Parking(Nic* nic) noexcept : nic_(nic) {}
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  // A frame with wire::kCallOp. Throws std::bad_alloc, before it has answered or changed anything.
  void serve(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload);
  // Looks at the parked calls. Returns the number of those that have ended.
  size_t look_again() noexcept;
  // Objects may be held by a process of this peer, or by this process for it.
  void on_peer_down(const link::Peer& peer) noexcept;
  // The engine must not sleep for long: a process is ending, and the system does not say so yet; or one was just
  // changing an object.
  [[nodiscard]] bool must_look_again() const noexcept {
    return look_until_ns_.load(std::memory_order_relaxed) != 0 || look_soon_.load(std::memory_order_relaxed);
  }
  // How long the engine may sleep before it must look at the watches; -1: no watch waits.
  [[nodiscard]] int64_t next_look_in() const noexcept;
  [[nodiscard]] size_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};
  struct Parked {
    std::shared_ptr<link::Peer> peer;  // null: by this NIC itself, and nobody waits for the answer
    wire::Frame frame;
    wire::CallRequest request;
    std::vector<std::byte> payload;
    uint64_t look_every_ns = 0, look_at_ns = kNever;  // of a watch
    uint64_t given_up_by = 0;                         // Peer::number, without `peer`
    bool is_new = false;                              // came in this round, and was not tried yet
  };
  // An object on which this process has called for a peer.
  struct Session {
    uint64_t peer;
    wire::Frame frame;
    uint64_t token;
  };
  struct Result {
    Status status = Status::ok;
    sync::Call call;
    sync::Outcome outcome = sync::Outcome::again;
    sync::Kind kind{};
  };
  // The call, with its record, that undoes a call whose sender has given it up.
  struct Noted {
    uint64_t id = 0;  // 0: nothing
    wire::CallRequest undo;
    std::vector<std::byte> record;
  };
  struct NotedOfPeer {
    std::vector<Noted> all;
    size_t next = 0;
  };
  Result run(const link::Peer* peer, const wire::Frame& frame, wire::CallRequest& request,
             std::span<const std::byte> in, std::span<std::byte> out, bool look) noexcept;
  Result watch(const std::byte* here, std::span<const std::byte> in) const noexcept;
  void answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, const Result& result,
              std::span<std::byte> room) noexcept;
  void cancel(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, const wire::CallRequest& request,
              std::span<std::byte> room) noexcept;
  bool park(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, const wire::CallRequest& request,
            std::span<const std::byte> payload);
  void note(const link::Peer& peer, const wire::CallRequest& request, const Result& result,
            std::span<const std::byte> in, std::span<const std::byte> out) noexcept;
  // False: nothing is remembered of the call, or the peer has given up too many.
  bool give_back(const link::Peer& peer, const wire::Frame& frame, const wire::CallRequest& request) noexcept;
  void run_alone(uint64_t peer, const wire::Frame& frame, wire::CallRequest request,
                 std::span<const std::byte> record) noexcept;
  std::list<Parked>::iterator drop(std::list<Parked>::iterator at) noexcept;
  bool remember(const link::Peer& peer, const wire::Frame& frame, uint64_t token);
  static uint64_t token_of(const link::Peer& peer, const wire::CallRequest& request) noexcept;
  [[nodiscard]] bool due_for_dead() noexcept;
  bool waits(const Result& result) noexcept;
  void begin_looks(Parked& watch) noexcept;

  Nic* nic_;
  std::list<Parked> parked_;
  std::unordered_map<uint64_t, size_t> per_peer_;     // by Peer::number: parked calls
  std::unordered_map<uint64_t, size_t> alone_;        // by Peer::number: given up, and parked by this NIC itself
  std::unordered_map<uint64_t, Session> sessions_;    // by a hash of peer, object and token
  std::unordered_map<uint64_t, size_t> sessions_of_;  // by Peer::number
  std::unordered_map<uint64_t, NotedOfPeer> noted_;   // by Peer::number
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> look_until_ns_{0};
  std::atomic<bool> look_soon_{false};
  std::atomic<uint64_t> next_look_ns_{kNever};  // of all watches
  uint64_t looked_ns_ = 0;
  std::vector<std::byte> room_;  // of answers
};

}  // namespace weft::nic
