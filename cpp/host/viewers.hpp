// cpp/host/viewers.hpp: answers viewers of this process (`weft top`) with a snapshot of its NIC.
//
// An abstract Unix socket "weft.top.<user>.<pid>.<random>" listens. A viewer of the same user connects; the thread that
// makes progress accepts, and sends a memfd with Nic::snapshot(). No step waits for the viewer. The kernel drops the
// name with the process, so no file stays behind. A process that makes no progress gives no answer.
//
// Cost while nobody looks: the waiter watches one more descriptor. Without an engine thread, one accept4() in
// kRoundsBetweenLooks rounds of progress with system calls.
// Lock order: answer() is called under the progress lock.
#pragma once

#include <atomic>
#include <string>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "link/epoll.hpp"
#include "nic/snapshot.hpp"

namespace weft::host {

class ViewerSocket final : public nic::Viewers {
 public:
  // Without a descriptor, or if another process has the name, this process is invisible to viewers.
  ViewerSocket(Random& random, link::EpollWaiter& waiter) noexcept;
  size_t answer(nic::Nic& nic) noexcept override;
  void close() noexcept { fd_.reset(); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  static constexpr uint32_t kRoundsBetweenLooks = 64;
  void listen(Random& random, link::EpollWaiter& waiter);

  std::string name_;
  UniqueFd fd_;
  std::atomic<bool> asked_{false};  // set by the waiter
  uint32_t rounds_ = 0;
};

}  // namespace weft::host
