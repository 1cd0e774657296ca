// cpp/link/shm_peer.hpp: the process at the other end of a shm connection; private to the files of ShmLink.
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/lock.hpp"
#include "base/mapping.hpp"
#include "link/cma.hpp"
#include "link/shm.hpp"

namespace weft::link {

constexpr uint64_t kNameAudit = 1;                      // epoll name of the audit's timer; others: listeners and conns
constexpr uint64_t kNameOfProcess = uint64_t{1} << 32;  // with a connection's id: the pidfd of its peer's process

// Wakes the peer. Never blocks: if the socket is full, the peer has unread doorbells and is awake anyway.
inline void ring_doorbell(int fd) noexcept {
  constexpr std::byte kRing[wire::kDoorbellBytes]{};
  (void)!::send(fd, kRing, sizeof(kRing), MSG_NOSIGNAL | MSG_DONTWAIT);
}

inline UniqueFd open_process(pid_t pid) noexcept {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

inline bool has_exited(int pidfd) noexcept {
  pollfd p{pidfd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

class ShmPeer final : public Peer {
 public:
  ShmPeer(ShmLink* link, Clock& clock) : Peer(link), link_(link), clock_(clock) {}
  ~ShmPeer() override = default;

  [[nodiscard]] std::string describe() const override { return "process " + std::to_string(process_id); }

  Status cma_copy(bool to_peer, std::span<const iovec> local, std::span<const iovec> remote) override {
    if (dead()) return Status::peer_gone;
    // The system can reuse a process id after the process died. So check the pidfd once per clock tick (4 ms): within
    // a tick the system cannot run through all ids.
    const uint64_t now = clock_.coarse_ns();
    if (alive_checked_ns.load(std::memory_order_relaxed) != now) {
      if (pidfd.valid() && has_exited(pidfd.get())) {
        link_->notice_death();
        return Status::peer_gone;
      }
      alive_checked_ns.store(now, std::memory_order_relaxed);
    }
    const Status status = cma_copy_all(process_id, table.header().life, to_peer, local, remote);
    if (status == Status::peer_gone) link_->notice_death();
    return status;
  }
  [[nodiscard]] bool is_awake() const noexcept override { return producer && !producer->is_awaited(); }
  [[nodiscard]] bool runs() const noexcept override { return !pidfd.valid() || !has_exited(pidfd.get()); }
  [[nodiscard]] uint64_t consumed() const noexcept {
    return reinterpret_cast<const std::atomic<uint64_t>*>(staging.data())[producer_id].load(std::memory_order_acquire);
  }
  // The peer's process died, or runs another program.
  [[nodiscard]] bool has_ended() const noexcept { return table.valid() && table.owner_gone(); }
  [[nodiscard]] bool lingers() const noexcept override {
    return table.valid() && (pidfd.valid() || table.header().life.load(std::memory_order_relaxed) != 0) && runs() &&
           !has_ended();
  }
  void die(Status why) noexcept { mark_dead(why == Status::ok ? Status::peer_gone : why); }
  // A chunk of the peer's staging memory; null if the number is out of range.
  [[nodiscard]] const std::byte* staged_payload(uint32_t chunk) const noexcept {
    const AreaShape& shape = area_shape(is_private());
    return chunk < shape.chunk_count ? staging.data() + shape.header_bytes() + size_t{chunk} * wire::kStagedPayloadMax
                                     : nullptr;
  }
  [[nodiscard]] bool is_private() const noexcept { return own_area != nullptr; }
  [[nodiscard]] int segment_fd(uint32_t i) const noexcept override { return segment_fds[i].get(); }
  // Frees the chunks that the peer has consumed.
  void reclaim() noexcept {
    submit_lock.assert_held();
    if (staged.empty()) return;
    for (const uint64_t count = consumed(); staged_freed < count && !staged.empty(); ++staged_freed) {
      area->staging.give_back(staged.front());
      staged.pop_front();
    }
  }
  void set_segment(uint32_t i, Mapping mapping, UniqueFd fd) {
    std::byte* base = mapping.data();
    segment_fds[i] = std::move(fd);
    (void)::madvise(base, mapping.size(), MADV_HUGEPAGE);  // as the owner does
    segment_bytes_[i] = mapping.size();
    segment_mappings.push_back(std::move(mapping));
    segments_[i].store(base, std::memory_order_release);
  }

  std::array<uint8_t, 16> uuid{};
  uint32_t producer_id = 0;        // our producer id in the peer's ring
  std::unique_ptr<Area> own_area;  // of this connection alone
  Area* area = nullptr;            // own_area, or the link's shared area
  uint32_t inbox_id = 0;           // the peer's producer id in our ring
  UniqueFd pidfd;
  Mapping ring_mapping, staging, table_mapping;
  std::optional<ring::MpscProducer> producer;
  std::vector<Mapping> segment_mappings;
  std::array<UniqueFd, mem::kSegmentCountMax> segment_fds;  // set before segments_[i], then unchanged
  int socket_fd = -1;                                       // owned by the connection
  uint32_t conn_id = 0;
  std::vector<uint32_t> segments_asked;
  std::atomic<uint64_t> alive_checked_ns{0};
  std::atomic<Status> hung_up{Status::ok};  // not ok: why poll_events() will drop the connection

  RankedSpin<lock_rank::kShmSubmit> submit_lock;        // keeps staged chunks in the order of their frames
  std::deque<uint32_t> staged GUARDED_BY(submit_lock);  // chunks that the peer has not consumed, oldest first
  uint64_t staged_freed GUARDED_BY(submit_lock) = 0;    // chunks that the peer has consumed and we have freed, ever
  uint64_t consumed_from_it = 0;                        // staged payloads of the peer that we have consumed

 private:
  ShmLink* link_;  // the link of the connection, which another link may wrap
  Clock& clock_;
};

}  // namespace weft::link
