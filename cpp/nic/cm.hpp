// cpp/nic/cm.hpp: what endpoints tell each other to connect (FI_EP_MSG): requests, answers, the end.
// The NIC carries the messages; which endpoints are connected is decided by the library above.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "nic/event.hpp"
#include "wire/address.hpp"

namespace weft::nic {

constexpr size_t kCmDataMax = 256;  // private data of a request or an answer

enum class CmKind : uint16_t {
  request = 1,
  accept = 2,
  reject = 3,
  shutdown = 4,
  // Not sent: what became of one's own message, and of the peer.
  delivered = 16,
  failed = 17,
  lost = 18,  // the peer's process or host is gone
};

struct CmEvent {
  uint64_t token = 0;  // whom it concerns, as bind_cm() named it
  CmKind kind{};
  CmKind what{};           // delivered, failed: of which message
  wire::EpAddress source;  // who sent it
  uint64_t connection = 0;
  Status status = Status::ok;
  std::vector<std::byte> data;
};

// Requests that wait at a listener until its application reads them: more are refused, as by a full backlog. What peers
// say to one connected endpoint: an answer and the end are all that they have to say.
constexpr uint32_t kBacklogMax = 1024, kUnreadFromPeerMax = 16;

// Where an event queue finds them. Any thread.
class CmQueue {
 public:
  static constexpr size_t kUnreadMax = 65536;  // of peers, for all endpoints
  explicit CmQueue(std::shared_ptr<Notifier> notifier) : notifier_(std::move(notifier)) {}

  // False: the queue is full because the application does not read it. Outcomes of our own messages always have room.
  bool push(CmEvent event) noexcept {
    try {
      const std::lock_guard lock(mutex_);
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
    const std::lock_guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    std::optional<CmEvent> event(std::move(events_.front()));
    events_.pop_front();
    if (is_peers(*event)) {
      if (const auto it = unread_.find(event->token); it != unread_.end() && --it->second == 0) unread_.erase(it);
    }
    return event;
  }
  [[nodiscard]] size_t unread() const {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

 private:
  static bool is_peers(const CmEvent& event) noexcept { return event.kind <= CmKind::shutdown; }

  mutable std::mutex mutex_;
  std::deque<CmEvent> events_;
  std::unordered_map<uint64_t, uint32_t> unread_;  // of peers, by token
  std::shared_ptr<Notifier> notifier_;
};

}  // namespace weft::nic
