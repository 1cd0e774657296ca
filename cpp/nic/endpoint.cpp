// cpp/nic/endpoint.cpp: the life of an endpoint: bound, enabled, canceled, closed.
#include <algorithm>

#include "base/backoff.hpp"
#include "nic/fast.inl"
#include "nic/group.hpp"
#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

Endpoint::Endpoint(Domain* domain, const EndpointConfig& config)
    : domain_(domain),
      short_bytes_max_(std::min<uint64_t>(domain->nic_->limits_.inline_copy_bytes, config.max_msg_size)),
      long_way_(kLongWay | (config.holds_more ? flag::kMore : 0)),
      model_(config, aliases_),
      connected_(config.connected),
      length_mask_(config.tells_lengths ? ~uint64_t{0} : 0),
      mover_(domain, model_),
      config_(config),
      atomic_bytes_max_(domain->nic_->limits_.atomic_bytes_max),
      raw_keys_(domain->config_.raw_keys || domain->config_.standard_below != 0 ? 1 : 0),
      order_(order_rules(config.msg_order, config.fence_covers_all)),
      aliases_(config.msg_order, config.tclass) {
  if (Trace* const trace = domain->nic_->trace(); trace != nullptr) trace_ = std::make_unique<EndpointTrace>(trace);
  OpRules& rules = config_.rules;
  rules.more = rules.fence_needs_cap || rules.local_lengths || rules.key_form_count != 0 || rules.fence_also != 0 ||
               rules.data_key_mask != 0;
  const ClassSet others = order_.of(OpClass::write) | order_.of(OpClass::read) | order_.of(OpClass::atomic);
  takes_credits_ = (others & class_bit(OpClass::send)) == 0;
  const auto of_send = order_.of(OpClass::send);
  send_stops_ =
      static_cast<ClassSet>((of_send & ~class_bit(OpClass::send)) | Flow::kWaiting | Flow::kForeign | Flow::kLongSend);
  for (size_t c = 0; c < kClassCount; ++c) stops_[c] = order_.waits_for[c] | Flow::kWaiting | Flow::kForeign;
}

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
  if ((flags & flag::kSend) != 0) send_cntr_ = counter;
  if ((flags & flag::kRecv) != 0) recv_cntr_ = counter;
}

void Endpoint::bind_av(std::shared_ptr<AddressVector> av) {
  const DomainLock guard(domain_);
  if (state_ != State::created)
    throw Error(fi_err::kEOPBADSTATE, "bind an address vector before the endpoint is enabled");
  av_ = std::move(av);
}

uint32_t Endpoint::table_flags() const noexcept {
  uint32_t flags = domain_->config_.prov_key ? mem::kEpProvKey : 0;
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
  Nic& n = *domain_->nic_;
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
        n.table().open_ep(domain_->index_, table_flags(), vni_mask_ == 0 ? several : address, &generation);
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
    const std::lock_guard objects(n.objects_mutex_);
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
      for (const auto& counter : {send_cntr_, recv_cntr_}) {
        if (counter) domain_->add_late_counter(counter);
      }
    }
    if (config_.messages.control_slots != 0 || config_.messages.reads_max != 0 || model_.reorder())
      domain_->add_software(shared_from_this());
    av_->users_.push_back(this);
    if (rx_cq_) rx_cq_->add_receiver();
    index_ = index;
    generation_ = generation;
    shut_number_ = uint64_t{generation} << 32;  // differs from the numbers of earlier endpoints of the slot
    address_ = address;
    mover_.open(address, tx_cq_.get());
    if (trace_ != nullptr) [[unlikely]] {
      trace_->set_name(trace_->trace().name_endpoint(address.nic, address.pid, address.vni, domain_->index_,
                                                     n.text_of(address, domain_->config_.addresses)));
    }
    if (port_owner_) {
      port_.store(port_owner_.get(), std::memory_order_release);
      n.ports_[index].store(port_owner_.get(), std::memory_order_release);
    }
    n.eps_[index] = shared_from_this();
    n.live_eps_[index].store(this, std::memory_order_release);
    state_ = State::enabled;
    set_plain();
    if (model_.reorder()) domain_->reordering_.push_back(this);
    return address.pid;
  }
}

void Endpoint::close() noexcept {
  Nic& n = *domain_->nic_;
  bool was_enabled = false;
  {
    const std::lock_guard objects(n.objects_mutex_);
    const DomainLock guard(domain_);
    if (state_ == State::closed) return;
    was_enabled = state_ == State::enabled;
    if (was_enabled && model_.reorder()) {
      try {
        release_all();
      } catch (const std::bad_alloc&) {  // what is left ends as canceled
      }
      std::erase(domain_->reordering_, this);
    }
    state_ = State::closed;
    plain_ = false;
    mover_.close();
    held_.clear();
    if (was_enabled) n.eps_[index_] = nullptr;
    if (was_enabled) n.live_eps_[index_].store(nullptr, std::memory_order_relaxed);
    if (was_enabled) n.ports_[index_].store(nullptr, std::memory_order_release);
    if (was_enabled && rx_cq_) rx_cq_->remove_receiver(this);
    // Operations under way end as canceled (close_drops: without entries); late answers find no operation.
    std::vector<Op*> mine;
    domain_->ops_.each([&](Op* op) {
      if (op->ep == this && op->kind != OpKind::batch) mine.push_back(op);
    });
    std::ranges::sort(mine, {}, &Op::sequence);
    for (Op* op : mine) {
      domain_->stop_waiting(op);
      op->status = Status::canceled;
      finish(op);
    }
    if (groups_) groups_->close_all();
    if (port_owner_) port_owner_->close();
    for (const auto& flow : flows_) {
      if (flow) end_message_flow(*flow);
    }
    flows_.clear();
    control_.clear();
    if (was_enabled) domain_->remove_software(this);
    if (was_enabled) std::erase(av_->users_, this);
  }
  domain_->triggers_->forget(this);
  // Wait for long copies of other threads, which use this endpoint and its domain afterwards.
  Backoff backoff;
  while (mover_.copies()) backoff.pause();
  {
    const DomainLock guard(domain_);
  }
  if (was_enabled) n.end_frames();  // the frame under way may have found the endpoint, or its port
  if (port_owner_) port_owner_->end_pulls();
  if (was_enabled && config_.messages.software_counts) {
    for (const auto& counter : {send_cntr_, recv_cntr_}) {
      if (counter) domain_->remove_late_counter(counter);
    }
  }
  for (const uint32_t slot : lent_) {
    (void)n.quiesce(slot);
    n.table().release(slot);
  }
  if (was_enabled) {
    for (const uint16_t vni : vnis_) {
      for (link::Link* link : n.links()) link->release({address_.nic, address_.pid, vni, 0});
    }
    n.table().close_ep(index_);
    n.close_mappings_of(*this);
    n.wake_parked();  // calls through this endpoint end
  }
}

std::pair<CommandQueue::Counts, uint32_t> Endpoint::commands() const {
  const DomainLock guard(domain_);
  const CommandQueue* const commands = model_.commands();
  if (commands == nullptr) return {};
  return {commands->counts(), commands->free_slots()};
}

void Endpoint::set_lane(uint8_t lane, uint64_t msg_order, uint8_t tclass) {
  const DomainLock guard(domain_);
  aliases_.set(lane, msg_order, tclass);
}

uint8_t Endpoint::open_lane() {
  const DomainLock guard(domain_);
  return aliases_.open(config_.msg_order);
}

void Endpoint::close_lane(uint8_t lane) noexcept {
  const DomainLock guard(domain_);
  aliases_.close(lane);
}

size_t Endpoint::cancel(uint64_t context) {
  const DomainLock guard(domain_);
  std::vector<Op*> found;
  domain_->ops_.each([&](Op* op) {
    // A message between two attempts (FI_PROTO_CXI_RNR) can be canceled.
    bool begun = op->kind == OpKind::pull || (op->counted && op->submitted);
    if (op->kind == OpKind::send) begun = begun || (op->send().numbered && op->send().retry_at_ns == 0);
    if (op->accesses() && op->counted) begun = begun || op->access().at_total != 0 || op->access().check_sent;
    if (config_.rules.only_receives_cancel) return;
    if (op->ep == this && op->context == context && !begun && op->parent == nullptr && op->kind != OpKind::batch) {
      found.push_back(op);
    }
  });
  std::ranges::sort(found, {}, &Op::sequence);
  for (Op* op : found) {
    domain_->stop_waiting(op);
    op->status = Status::canceled;
    finish(op);
  }
  RxPort* const port = port_.load(std::memory_order_relaxed);
  return found.size() + (port != nullptr && port->context().cancel(context) ? 1 : 0);
}

std::shared_ptr<link::Peer> Endpoint::peer_of(uint64_t dest) {
  const DomainLock guard(domain_);
  if (!av_ || dest >= av_->entries_.size() || !av_->entries_[dest]) return nullptr;
  const Route& route = dest < flows_.size() && flows_[dest] ? *flows_[dest]->route : *av_->entries_[dest];
  return route.ready ? route.peer : nullptr;
}

Status Endpoint::down_status(uint64_t dest) {
  const DomainLock guard(domain_);
  if (!av_ || dest >= av_->entries_.size() || !av_->entries_[dest]) return Status::ok;
  const Route& route = dest < flows_.size() && flows_[dest] ? *flows_[dest]->route : *av_->entries_[dest];
  return route.peer != nullptr && route.peer->dead() ? route.peer->down_status() : route.down;
}

}  // namespace weft::nic
