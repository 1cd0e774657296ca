// cpp/link/self.cpp: see self.hpp.
#include "link/self.hpp"

#include <unistd.h>

#include <algorithm>

#include "mem/guard.hpp"

namespace weft::link {

namespace {

class SelfPeer final : public Peer {
 public:
  SelfPeer(Link* link, const mem::TableView& own) : Peer(link) {
    table = own;
    same_process = true;
    cma = true;
    process_id = ::getpid();
  }
  [[nodiscard]] std::string describe() const override { return "this process"; }
  // Copies with guards, so that a missing page gives a status instead of a signal; needs no system call.
  Status cma_copy(bool to_peer, std::span<const iovec> local, std::span<const iovec> remote) override {
    size_t here = 0, there = 0, here_done = 0, there_done = 0;
    while (here < local.size() && there < remote.size()) {
      const size_t n = std::min(local[here].iov_len - here_done, remote[there].iov_len - there_done);
      if (n != 0) {
        auto* const ours = static_cast<std::byte*>(local[here].iov_base) + here_done;
        auto* const theirs = static_cast<std::byte*>(remote[there].iov_base) + there_done;
        if (!(to_peer ? mem::copy_guarded(theirs, ours, n) : mem::copy_guarded(ours, theirs, n))) return Status::fault;
      }
      here_done += n;
      there_done += n;
      if (here_done == local[here].iov_len) ++here, here_done = 0;
      if (there_done == remote[there].iov_len) ++there, there_done = 0;
    }
    return Status::ok;
  }
};

}  // namespace

SelfLink::SelfLink(mem::Table& table, Waiter& waiter)
    : Link(LinkKind::self), waiter_(waiter), peer_(std::make_shared<SelfPeer>(this, table)) {}
SelfLink::~SelfLink() = default;

void SelfLink::claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) {
  const Guard lock(mutex_);
  if (!claimed_.emplace(address, std::pair{ep_index, ep_generation}).second) {
    throw Error(fi_err::kEADDRINUSE, "address " + address.text() + " is taken by another endpoint of this process");
  }
}

void SelfLink::release(const wire::EpAddress& address) noexcept {
  const Guard lock(mutex_);
  claimed_.erase(address);
}

Link::Resolving SelfLink::resolve(const wire::EpAddress& address, const std::shared_ptr<void>&, Found* found) {
  const Guard lock(mutex_);
  const auto it = claimed_.find(address);
  if (it == claimed_.end()) return Resolving::no;
  *found = {peer_, it->second.first, it->second.second};
  return Resolving::found;
}

Status SelfLink::submit(Peer&, wire::Frame& frame, std::span<const std::byte> payload) {
  try {
    const Guard lock(mutex_);
    if (queue_.size() >= kQueueMax) return Status::again;
    frame.payload_length = static_cast<uint32_t>(payload.size());
    queue_.push_back({frame, std::vector<std::byte>(payload.size())});
    if (!payload.empty() && !mem::copy_guarded(queue_.back().payload.data(), payload.data(), payload.size())) {
      queue_.pop_back();
      return Status::fault;
    }
    // SYNC POINT: seq_cst, like the store and the load in prepare_sleep(): at least one side sees the other's write.
    queued_.fetch_add(1, std::memory_order_seq_cst);
  } catch (const std::bad_alloc&) {
    return Status::again;
  }
  if (sleeping_.exchange(false)) waiter_.wake();
  return Status::ok;
}

size_t SelfLink::poll(FrameSink& sink, size_t budget) {
  size_t n = 0;
  while (n < budget && queued_.load(std::memory_order_acquire) != 0) {
    Queued item;
    {
      const Guard lock(mutex_);
      if (queue_.empty()) break;
      item = std::move(queue_.front());
      queue_.pop_front();
      queued_.fetch_sub(1, std::memory_order_relaxed);
    }
    sink.on_frame(peer_, item.frame, item.payload);
    ++n;
  }
  return n;
}

bool SelfLink::prepare_sleep() {
  sleeping_.store(true, std::memory_order_seq_cst);
  return queued_.load(std::memory_order_seq_cst) == 0;
}

}  // namespace weft::link
