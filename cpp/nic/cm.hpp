// cpp/nic/cm.hpp: the messages of connected endpoints (FI_EP_MSG): requests, answers, shutdown.
// The NIC carries the messages; the library above decides which endpoints are connected.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/lock.hpp"
#include "base/status.hpp"
#include "nic/event.hpp"
#include "wire/address.hpp"

namespace weft::nic {

constexpr size_t kCmDataMax = 256;  // private data of a request or an answer

// From delivered on: local events, not sent. Groups (group.hpp): `connection` is their number.
#define WEFT_CM_KINDS(X)                                                            \
  X(request, 1, "A peer wants a connection.")                                       \
  X(accept, 2, "The peer has accepted.")                                            \
  X(reject, 3, "The peer has rejected.")                                            \
  X(shutdown, 4, "The peer has ended the connection.")                              \
  X(delivered, 16, "The peer's NIC has received our message.")                      \
  X(failed, 17, "Our message could not be delivered.")                              \
  X(lost, 18, "The peer's process or host is gone.")                                \
  X(group_agreed, 32, "All members of a group have joined: member 0 may supply().") \
  X(group_joined, 33, "A join has succeeded.")                                      \
  X(group_failed, 34, "A join has failed.")
WEFT_ENUM(CmKind, uint16_t, WEFT_CM_KINDS, "The kinds of messages by which endpoints connect.");

struct CmEvent {
  uint64_t token = 0;  // the endpoint: the token of its bind_cm()
  CmKind kind{};
  CmKind what{};           // delivered, failed: the kind of our message
  wire::EpAddress source;  // the sender
  uint64_t connection = 0;
  Status status = Status::ok;
  std::vector<std::byte> data;
};

// Limits of unread messages. kBacklogMax: requests at a listener; more are refused (full backlog). kUnreadFromPeerMax:
// messages at one connected endpoint, whose peer sends only an answer and a shutdown.
constexpr uint32_t kBacklogMax = 1024, kUnreadFromPeerMax = 16;

// The queue from which an event queue reads the messages. Any thread.
class CmQueue {
 public:
  static constexpr size_t kUnreadMax = 65536;  // messages of peers, for all endpoints
  explicit CmQueue(std::shared_ptr<Notifier> notifier) : notifier_(std::move(notifier)) {}

  // False: the queue is full because the application does not read it. Outcomes of our own messages are never refused.
  bool push(CmEvent event) noexcept {
    try {
      const Guard lock(mutex_);
      if (is_peers(event)) {
        const uint32_t most = event.kind == CmKind::request ? kBacklogMax : kUnreadFromPeerMax;
        uint32_t& unread = unread_[event.token];
        if (unread >= most || events_.size() >= kUnreadMax) return false;
        events_.push_back(std::move(event));
        ++unread;
      } else {
        events_.push_back(std::move(event));
      }
    } catch (const std::bad_alloc&) {
      return false;
    }
    notifier_->notify();
    return true;
  }
  std::optional<CmEvent> pop() {
    const Guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    return take(events_.begin());
  }
  // The oldest request to this listener.
  std::optional<CmEvent> withdraw(uint64_t token) {
    const Guard lock(mutex_);
    for (auto it = events_.begin(); it != events_.end(); ++it) {
      if (it->token == token && it->kind == CmKind::request) return take(it);
    }
    return std::nullopt;
  }
  [[nodiscard]] size_t unread() const {
    const Guard lock(mutex_);
    return events_.size();
  }

 private:
  std::optional<CmEvent> take(std::deque<CmEvent>::iterator at) REQUIRES(mutex_) {
    std::optional<CmEvent> event(std::move(*at));
    events_.erase(at);
    if (is_peers(*event)) {
      if (const auto it = unread_.find(event->token); it != unread_.end() && --it->second == 0) unread_.erase(it);
    }
    return event;
  }
  static bool is_peers(const CmEvent& event) noexcept { return event.kind <= CmKind::shutdown; }

  mutable RankedMutex<lock_rank::kCmEvents> mutex_;
  std::deque<CmEvent> events_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, uint32_t> unread_ GUARDED_BY(mutex_);  // by token: unread messages of peers
  std::shared_ptr<Notifier> notifier_;
};

}  // namespace weft::nic
