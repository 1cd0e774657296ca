// cpp/nic/endpoint.cpp: the life of an endpoint: bound, enabled, canceled, closed.
#include <algorithm>

#include "base/backoff.hpp"
#include "nic/fast.inl"
#include "nic/group.hpp"
#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

Endpoint::Endpoint(Domain* domain, const EndpointConfig& config) : TxPort(domain, config) {}

void Endpoint::bind_cq(std::shared_ptr<CompletionQueue> cq, uint64_t flags) {
  const DomainLock guard(domain_);
  if (state_ != State::created)
    throw Error(fi_err::kEOPBADSTATE, "bind a completion queue before the endpoint is enabled");
  if ((flags & flag::kSend) != 0) {
    tx_cq_ = cq;
    selective_ = (flags & flag::kSelectiveCompletion) != 0;
  }
  if ((flags & flag::kRecv) != 0) {
    rx_cq_ = cq;
    rx_selective_ = (flags & flag::kSelectiveCompletion) != 0;
  }
}

void Endpoint::bind_counter(std::shared_ptr<Counter> counter, uint64_t flags) {
  const DomainLock guard(domain_);
  if (state_ != State::created) throw Error(fi_err::kEOPBADSTATE, "bind a counter before the endpoint is enabled");
  if ((flags & flag::kWrite) != 0) write_cntr_ = counter;
  if ((flags & flag::kRead) != 0) read_cntr_ = counter;
  if ((flags & flag::kRemoteWrite) != 0) remote_write_cntr_ = counter;
  if ((flags & flag::kRemoteRead) != 0) remote_read_cntr_ = counter;
  if ((flags & flag::kSend) != 0) messages_.count_with(counter);
  if ((flags & flag::kRecv) != 0) recv_cntr_ = counter;
}

void Endpoint::bind_av(std::shared_ptr<AddressVector> av) {
  const DomainLock guard(domain_);
  if (state_ != State::created)
    throw Error(fi_err::kEOPBADSTATE, "bind an address vector before the endpoint is enabled");
  av_ = std::move(av);
}

uint32_t Endpoint::table_flags() const noexcept {
  uint32_t flags = domain_->config().prov_key ? mem::kEpProvKey : 0;
  uint32_t served = 0;  // the rights that the endpoint's capabilities grant to peers
  if ((config_.caps & flag::kRma) != 0) served |= mem::kEpRemoteRead | mem::kEpRemoteWrite;
  if ((config_.caps & flag::kAtomic) != 0) served |= mem::kEpAtomicRead | mem::kEpAtomicWrite;
  if ((config_.caps & flag::kRemoteRead) == 0) served &= ~(mem::kEpRemoteRead | mem::kEpAtomicRead);
  if ((config_.caps & flag::kRemoteWrite) == 0) served &= ~(mem::kEpRemoteWrite | mem::kEpAtomicWrite);
  flags |= served;
  if (remote_read_cntr_) flags |= mem::kEpNotifyRead;
  if (remote_write_cntr_) flags |= mem::kEpNotifyWrite;
  if (config_.foreign_key) flags |= mem::kEpForeignKey;
  if (config_.connected) flags |= mem::kEpConnected;
  return flags;
}

uint32_t Endpoint::enable(uint32_t nic, std::optional<uint32_t> pid, std::span<const uint16_t> vnis, Claim claim) {
  Nic& n = *domain_->nic();
  if (claim == Claim::keep) {
    const DomainLock guard(domain_);
    if (state_ == State::closed) throw Error(fi_err::kEOPBADSTATE, "the endpoint is closed");
    if (state_ == State::enabled) throw Error(fi_err::kEOPBADSTATE, "the endpoint is enabled already");
    if (!av_) throw Error(fi_err::kENOAV, "the endpoint has no address vector: bind one before enable()");
    constexpr uint64_t kStarts = flag::kRead | flag::kWrite | flag::kSend;
    if (!tx_cq_ && (config_.caps & kStarts) != 0) {
      throw Error(fi_err::kENOCQ, "the endpoint has no completion queue for its operations: bind one with fi.TRANSMIT");
    }
    model_.begin(*domain_, nic);
  }
  if (!rx_cq_) rx_cq_ = tx_cq_;
  vnis_.assign(vnis.begin(), vnis.end());
  if (vnis_.empty()) {
    vnis_.push_back(config_.vni);
  } else {
    config_.vni = vnis_[0];
    vni_mask_ = 0;
  }
  wire::EpAddress address{nic, pid.value_or(0), config_.vni, 0};
  // In a small range try each number once, starting at a random one; in a large range try random numbers.
  constexpr uint64_t kAttempts = 1024;
  const uint64_t pid_count = uint64_t{config_.pids.last} - config_.pids.first + 1;
  uint64_t number = pid ? 0 : n.random().next();
  for (uint64_t attempt = 0;; ++attempt) {
    if (!pid) address.pid = config_.pids.first + static_cast<uint32_t>(number % pid_count);
    uint32_t generation = 0;
    const wire::EpAddress several{address.nic, address.pid, 0, 0};
    const uint32_t index =
        n.table().open_ep(domain_->index(), table_flags(), vni_mask_ == 0 ? several : address, &generation);
    size_t claimed = 0;
    const auto name = [&](size_t i) { return wire::EpAddress{nic, address.pid, vnis_[i / n.links().size()], 0}; };
    const auto unclaim = [&] {
      for (size_t i = 0; i < claimed; ++i) n.links()[i % n.links().size()]->release(name(i));
      n.table().close_ep(index);
    };
    try {
      for (; claimed < vnis_.size() * n.links().size(); ++claimed) {
        n.links()[claimed % n.links().size()]->claim(name(claimed), index, generation);
      }
    } catch (const Error& e) {
      unclaim();
      if (!pid && e.fi_code() == fi_err::kEADDRINUSE && attempt + 1 < std::min(pid_count, kAttempts)) {
        number = pid_count <= kAttempts ? number + 1 : n.random().next();
        continue;
      }
      throw;
    }
    if (claim == Claim::try_only) {
      unclaim();
      return address.pid;
    }
    const Guard objects(n.objects_lock());
    const DomainLock guard(domain_);
    constexpr uint64_t kMessages = flag::kMsg | flag::kTagged;
    if ((config_.caps & kMessages) != 0 && (config_.caps & flag::kRecv) != 0 && rx_cq_) {
      generation_ = generation;
      port_owner_ = std::make_unique<RxPort>(this, rx_cq_, recv_cntr_, rx_selective_,
                                             config_.messages.source ? av_.get() : nullptr, n.random().next());
      if (!port_owner_->open()) {
        port_owner_.reset();
        unclaim();
        throw Error(fi_err::kENOSPC, "the endpoint's service has no list entries for its buffers");
      }
    }
    if (config_.messages.software_counts) {
      for (const auto& counter : {messages_.counter(), recv_cntr_}) {
        if (counter) domain_->add_late_counter(counter);
      }
    }
    if (config_.messages.control_slots != 0 || config_.messages.reads_max != 0 || model_.reorder())
      domain_->add_software(shared_from_this());
    av_->add_user(this);
    if (rx_cq_) rx_cq_->add_receiver();
    index_ = index;
    generation_ = generation;
    shut_number_ = uint64_t{generation} << 32;  // differs from the numbers of earlier endpoints of the slot
    address_ = address;
    mover_.open(address, tx_cq_.get());
    if (trace_ != nullptr) [[unlikely]] {
      trace_->set_name(trace_->trace().name_endpoint(address.nic, address.pid, address.vni, domain_->index(),
                                                     n.text_of(address, domain_->config().addresses)));
    }
    if (port_owner_) port_.store(port_owner_.get(), std::memory_order_release);
    n.publish(shared_from_this());
    state_ = State::enabled;
    set_plain();
    if (Reorder* const reorder = model_.reorder()) domain_->add_reordering(reorder);
    return address.pid;
  }
}

void Endpoint::close() noexcept {
  Nic& n = *domain_->nic();
  cm().refuse_waiting();
  bool was_enabled = false;
  {
    const Guard objects(n.objects_lock());
    const DomainLock guard(domain_);
    if (state_ == State::closed) return;
    was_enabled = state_ == State::enabled;
    if (Reorder* const reorder = model_.reorder(); was_enabled && reorder != nullptr) {
      try {
        reorder->release_all();
      } catch (const std::bad_alloc&) {  // what is left ends as canceled
      }
      domain_->remove_reordering(reorder);
    }
    state_ = State::closed;
    plain_ = false;
    mover_.close();
    held_.clear();
    if (was_enabled) n.withdraw(index_);
    close_operations();
    if (groups_) groups_->close_all();
    if (port_owner_) port_owner_->close();
    if (was_enabled && rx_cq_) rx_cq_->remove_receiver(this);  // messages that arrive until now may make it starve
    close_flows();
    if (was_enabled) domain_->remove_software(this);
    if (was_enabled) av_->remove_user(this);
  }
  domain_->triggers().forget(this);
  // Wait for long copies of other threads, which use this endpoint and its domain afterwards.
  Backoff backoff;
  while (mover_.copies()) backoff.pause();
  {
    const DomainLock guard(domain_);
  }
  if (was_enabled) n.end_frames();  // the frame under way may have found the endpoint, or its port
  if (port_owner_) port_owner_->end_pulls();
  if (was_enabled && config_.messages.software_counts) {
    for (const auto& counter : {messages_.counter(), recv_cntr_}) {
      if (counter) domain_->remove_late_counter(counter);
    }
  }
  for (const uint32_t slot : messages_.lent()) {
    (void)n.quiesce(slot);
    n.table().release(slot);
  }
  if (was_enabled) {
    // Closed before the address is free: a sender must not take it for the next endpoint that has the address.
    n.table().close_ep(index_);
    for (const uint16_t vni : vnis_) {
      for (link::Link* link : n.links()) link->release({address_.nic, address_.pid, vni, 0});
    }
    n.close_mappings_of(*this);
    n.wake_parked();  // calls through this endpoint end
  }
}

size_t Endpoint::cancel(uint64_t context) {
  const DomainLock guard(domain_);
  const size_t found = cancel_operations(context);
  RxPort* const port = port_.load(std::memory_order_relaxed);
  return found + (port != nullptr && port->context().cancel(context) ? 1 : 0);
}

void Endpoint::connect_to(const std::optional<wire::EpAddress>& peer) {
  const uint64_t fi_addr = peer ? av_->insert(*peer) : ~uint64_t{0};
  const DomainLock guard(domain_);
  fixed_dest_ = fi_addr;
  if (state_ == State::enabled) {
    domain_->nic()->table().set_ep_peer(index_, peer.value_or(wire::EpAddress{~uint32_t{0}, 0, 0, 0}));
  }
}

void Endpoint::software_progress() noexcept {
  messages_.run_controls();
  if (RxPort* const port = port_.load(std::memory_order_acquire); port != nullptr) port->software_progress();
}

}  // namespace weft::nic
