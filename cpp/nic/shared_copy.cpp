// cpp/nic/shared_copy.cpp: long copies of messages by both processes (link/copy_job.hpp): the receiver, which begins a
// copy, and the sender, which helps from its next look at its frames on.
#include "base/backoff.hpp"
#include "base/cache.hpp"
#include "link/copy_job.hpp"
#include "nic/nic.hpp"
#include "nic/rx_port.hpp"
#include "nic/tx_port.hpp"

namespace weft::nic {

namespace {

using link::CopyShare;

constexpr uint64_t kSharedBytesMin = 2 * CopyShare::kLeastBytes;
constexpr int kLooks = 1000;                   // for the sender's last report: about as long as a part takes
constexpr uint64_t kGiveUpNs = 1'000'000'000;  // of a lost peer whose process runs
constexpr int kPartsMax = 64;                  // of one copy: a receiver that lies ends the help

}  // namespace

// ---- the receiver ---------------------------------------------------------------------------------------------------

bool RxPort::may_share(const RxPull& pull, link::Peer& peer) const noexcept {
  return pull.bytes >= kSharedBytesMin && pull.op_id != 0 && !pull.eager && !pull.alone && !relaxed_ &&
         (pull.completion.flags & kRxScattered) == 0 && peer.help.ours != nullptr && peer.is_awake() &&
         peer.help.begin();
}

// from: the message's bytes in the sender's address space.
RxPort::Pulled RxPort::pull_shared(RxPull& pull, const std::shared_ptr<link::Peer>& peer, uint64_t from,
                                   Status* status) noexcept {
  // 0 is the number of no copy.
  if (++peer->help.number == 0) ++peer->help.number;
  CopyShare share(peer->help.ours, peer->help.number, pull.bytes);
  share.begin();
  wire::Frame f;
  f.kind = wire::FrameKind::help;
  f.op_id = pull.op_id;
  f.help = {pull.to, pull.from, pull.bytes, peer->help.number, {}};
  (void)peer->link()->submit(*peer, f, {});  // without it the sender takes no part
  *status = Status::ok;
  while (const auto part = share.take_front()) {
    const iovec here{reinterpret_cast<void*>(pull.to + part->offset), part->bytes};
    const iovec there{reinterpret_cast<void*>(from + part->offset), part->bytes};
    *status = peer->cma_copy(false, {&here, 1}, {&there, 1});
    if (*status != Status::ok) share.stop();
  }
  pull.shared = peer->help.number;
  pull.shared_status = *status;
  pull.helper = peer;
  return end_shared(pull, status);
}

// The sender may still be writing into the receiver's memory: waits for its report. later: its part takes long.
RxPort::Pulled RxPort::end_shared(RxPull& pull, Status* status) noexcept {
  link::Peer& peer = *pull.helper;
  const CopyShare share(peer.help.ours, pull.shared, pull.bytes);
  CopyShare::Theirs theirs = share.theirs();
  for (int look = 0; look < kLooks && theirs == CopyShare::Theirs::under_way; ++look) {
    cpu_relax();
    theirs = share.theirs();
  }
  *status = pull.shared_status == Status::access ? Status::fault : pull.shared_status;
  if (theirs == CopyShare::Theirs::under_way) {
    if (!peer.dead()) return Pulled::later;
    const uint64_t now = nic_->clock().now_ns();
    if (pull.give_up_ns == 0) pull.give_up_ns = now + kGiveUpNs;
    if (peer.runs() && now < pull.give_up_ns) return Pulled::later;
  }
  if (*status == Status::ok && peer.dead()) *status = peer.down_status();
  const bool again = theirs == CopyShare::Theirs::gave_up && *status == Status::ok;
  if (theirs == CopyShare::Theirs::broken && *status == Status::ok) *status = Status::protocol;
  // A sender that broke the rules, or was lost with its report, gets no further job.
  if (theirs <= CopyShare::Theirs::copied || theirs == CopyShare::Theirs::gave_up)
    peer.help.end(theirs == CopyShare::Theirs::copied);
  pull.shared = 0;
  const std::shared_ptr<link::Peer> from = std::move(pull.helper);
  if (!again) return Pulled::ended;
  pull.alone = true;
  return pull_now(pull, from, status);
}

// Until the sender writes no more; for a stopped one as long as closing a region waits.
void RxPort::await_shared(RxPull& pull) noexcept {
  Status status = pull.shared_status = Status::canceled;
  const uint64_t end_ns = nic_->clock().now_ns() + nic_->limits().close_wait_ns;
  for (Backoff backoff; pull.shared != 0 && nic_->clock().now_ns() < end_ns; backoff.pause())
    (void)end_shared(pull, &status);
}

// ---- the sender -----------------------------------------------------------------------------------------------------

// The buffer stays valid meanwhile: its operation ends with a later frame, and an endpoint that closes waits for the
// frame under way.
bool help_copy(Domain& domain, link::Peer& peer, const wire::Frame& frame) noexcept {
  if (peer.help.theirs == nullptr) return false;
  const wire::Help& help = frame.help;
  std::byte* from = nullptr;
  {
    const DomainLock guard(&domain);
    Op* const op = domain.operations().find(frame.op_id);
    if (op == nullptr || op->kind != OpKind::send || op->peer != &peer || op->local.size() != 1) return false;
    Op::Send& send = op->send();
    if (send.lent == Op::Send::kNotLent || send.helped || help.length > op->total ||
        help.offset > op->total - help.length)
      return false;
    send.helped = true;
    from = static_cast<std::byte*>(op->local[0].iov_base) + help.offset;
  }
  CopyShare share(peer.help.theirs, help.number, help.length);
  int parts = 0;
  for (; parts < kPartsMax; ++parts) {
    const auto part = share.take_back();
    if (!part) break;
    const iovec here{from + part->offset, part->bytes};
    const iovec there{reinterpret_cast<void*>(help.place + part->offset), part->bytes};
    const bool copied = peer.cma_copy(true, {&here, 1}, {&there, 1}) == Status::ok;
    share.report(copied);
    if (!copied) break;
  }
  return parts != 0;
}

}  // namespace weft::nic
