// cpp/nic/tx_port.cpp: the send side's construction, its flows' ends, and questions for room at the peer.
#include "nic/tx_port.hpp"

#include <algorithm>

#include "nic/fast.inl"
#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kAskFirstNs = 250'000, kAskLastNs = 8'000'000;

}  // namespace

TxPort::TxPort(Domain* domain, const EndpointConfig& config)
    : domain_(domain),
      short_bytes_max_(std::min<uint64_t>(domain->nic()->limits().inline_copy_bytes, config.max_msg_size)),
      long_way_(kLongWay | (config.holds_more ? flag::kMore : 0)),
      model_(*this, config, aliases_),
      connected_(config.connected),
      length_mask_(config.tells_lengths ? ~uint64_t{0} : 0),
      config_(config),
      atomic_bytes_max_(domain->nic()->limits().atomic_bytes_max),
      mover_(domain, model_),
      raw_keys_(domain->config().raw_keys || domain->config().standard_below != 0 ? 1 : 0),
      order_(order_rules(config.msg_order, config.fence_covers_all)),
      aliases_(config.msg_order, config.tclass),
      messages_(*this, domain, config_.messages, order_),
      cm_(*this) {
  if (Trace* const trace = domain->nic()->trace(); trace != nullptr) trace_ = std::make_unique<EndpointTrace>(trace);
  OpRules& rules = config_.rules;
  rules.more = rules.fence_needs_cap || rules.local_lengths || rules.key_form_count != 0 || rules.fence_also != 0 ||
               rules.data_key_mask != 0;
  for (size_t c = 0; c < kClassCount; ++c) stops_[c] = order_.waits_for[c] | Flow::kWaiting | Flow::kForeign;
}

TxPort::~TxPort() = default;

std::pair<CommandQueue::Counts, uint32_t> TxPort::commands() const {
  const DomainLock guard(domain_);
  const CommandQueue* const commands = model_.commands();
  if (commands == nullptr) return {};
  return {commands->counts(), commands->free_slots()};
}

void TxPort::set_lane(uint8_t lane, uint64_t msg_order, uint8_t tclass) {
  const DomainLock guard(domain_);
  aliases_.set(lane, msg_order, tclass);
}

uint8_t TxPort::open_lane() {
  const DomainLock guard(domain_);
  return aliases_.open(config_.msg_order);
}

void TxPort::close_lane(uint8_t lane) noexcept {
  const DomainLock guard(domain_);
  aliases_.close(lane);
}

size_t TxPort::cancel_operations(uint64_t context) {
  std::vector<Op*> found;
  domain_->operations().each([&](Op* op) {
    // A message between two attempts (FI_PROTO_CXI_RNR) can be canceled.
    bool begun = op->kind == OpKind::pull || (op->counted && op->submitted);
    if (op->kind == OpKind::send) begun = begun || (op->send().numbered && op->send().retry_at_ns == 0);
    if (op->accesses() && op->counted) begun = begun || op->access().at_total != 0 || op->access().check_sent;
    if (config_.rules.only_receives_cancel) return;
    if (op->tx == this && op->context == context && !begun && op->parent == nullptr && op->kind != OpKind::batch) {
      found.push_back(op);
    }
  });
  std::ranges::sort(found, {}, &Op::sequence);
  for (Op* op : found) {
    domain_->stop_waiting(op);
    op->status = Status::canceled;
    finish(op);
  }
  return found.size();
}

void TxPort::close_operations() noexcept {
  std::vector<Op*> mine;
  domain_->operations().each([&](Op* op) {
    if (op->tx == this && op->kind != OpKind::batch) mine.push_back(op);
  });
  std::ranges::sort(mine, {}, &Op::sequence);
  for (Op* op : mine) {
    domain_->stop_waiting(op);
    op->status = Status::canceled;
    finish(op);
  }
}

void TxPort::close_flows() noexcept {
  for (const auto& flow : flows_) {
    if (flow) messages_.end_flow(*flow);
  }
  flows_.clear();
  messages_.close();
}

std::shared_ptr<link::Peer> TxPort::peer_of(uint64_t dest) {
  const DomainLock guard(domain_);
  if (!av_ || !av_->route(dest)) return nullptr;
  const Route& route = dest < flows_.size() && flows_[dest] ? *flows_[dest]->route : *av_->route(dest);
  return route.ready ? route.peer : nullptr;
}

Status TxPort::down_status(uint64_t dest) {
  const DomainLock guard(domain_);
  if (!av_ || !av_->route(dest)) return Status::ok;
  const Route& route = dest < flows_.size() && flows_[dest] ? *flows_[dest]->route : *av_->route(dest);
  return route.peer != nullptr && route.peer->dead() ? route.peer->down_status() : route.down;
}

bool TxPort::held_back(uint64_t dest) {
  const DomainLock guard(domain_);
  dest = dest_of(dest);
  if (dest >= flows_.size() || !flows_[dest]) return false;
  const Flow& flow = *flows_[dest];
  return flow.route->ready && flow.waits() && !flow.route->takes_data();
}

// Sends a request frame. again: the link is full, or the peer has the maximum of unanswered requests.
Status TxPort::submit_request(Route& route, wire::Frame& frame, std::span<const std::byte> payload) {
  link::Peer& peer = *route.peer;
  if (!peer.begin_request()) return Status::again;
  const Status s = peer.link()->submit(peer, frame, payload);
  if (s != Status::ok) [[unlikely]]
    peer.undo_request();
  return s;
}

// Sends the question for room for the first waiting operation; the answer sets or clears Route::no_room.
void TxPort::ask_for_room(Op* op) {
  Route& t = *op->flow->route;
  const uint64_t now = domain_->nic()->clock().now_ns();
  if (op->asks_room || now < t.ask_room_at_ns) return;
  t.ask_room_wait_ns = std::clamp(2 * t.ask_room_wait_ns, kAskFirstNs, kAskLastNs);
  t.ask_room_at_ns = now + t.ask_room_wait_ns;
  wire::Frame f;
  f.kind = wire::FrameKind::check;
  f.flags = wire::kFrameHasData;
  f.op_id = op->id;
  f.ep_index = t.ep_index;
  f.ep_generation = t.ep_generation;
  f.source = mover_.seen_by(t);
  if (submit_request(t, f, {}) != Status::ok) return;  // a lost peer is reported by on_peer_down()
  ++op->frames_out;
  op->asks_room = true;
}

}  // namespace weft::nic
