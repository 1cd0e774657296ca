// cpp/nic/endpoint.cpp: the data path of an endpoint: direct access first, frames where that is not possible.
//
// HOT (post, 8-byte direct put): no system call, no allocation, one lock. Lines touched: the domain's activity word
// (written), the endpoint, the address vector's entry, the peer's endpoint entry and region entry (read, shared), the
// target's line (written), one completion entry (written). Benchmark: bench/cpp/main.cpp (put8).
#include <algorithm>
#include <cstring>

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

constexpr uint32_t kMaxPieces = 64;
constexpr uint64_t kMuchBytes = uint64_t{64} << 10;  // of one operation: its sending takes some 10 us
// Flags of an operation that is more than a copy.
constexpr uint64_t kLongWay = flag::kRemoteCqData | flag::kFence | flag::kCommitComplete;

// A piece of the target: direct (a pointer) or in the peer's address space.
struct Piece {
  std::byte* pointer;  // null: this process cannot name it
  uint64_t remote;     // the owner's virtual address
  uint64_t length;
  bool device;  // the pointer is for a device's runtime, not for load and store
};

enum class Reach { direct, device, cma, mixed, frames, missing };

// Device memory that peers have shared, open while the pieces are used.
using Opened = std::vector<std::shared_ptr<mem::Devices::Opened>>;

// Apart: nobody with host memory pays for it.
[[gnu::noinline]] void locate_device(const link::Peer& peer, mem::Devices& devices, uint64_t where, uint64_t local_addr,
                                     Piece* out, Opened* opened) {
  out->device = true;
  if (!devices.any()) return;
  if (peer.same_process) {
    out->pointer = reinterpret_cast<std::byte*>(out->remote);
    return;
  }
  const mem::DeviceNote* shared = peer.table.note(where);
  if (shared == nullptr) return;
  mem::DeviceNote note;
  std::memcpy(&note, shared, sizeof(note));  // the table is the peer's: what is checked must be what is used
  const uint64_t at = out->remote - note.base;
  if (local_addr < note.base || at > note.length || out->length > note.length - at) return;
  if (auto open = devices.open(&peer, note)) {
    out->pointer = open->base + at;
    opened->push_back(std::move(open));
  }
}

inline bool locate(const link::Peer& peer, mem::Devices& devices, uint32_t segment, uint64_t where, uint64_t local_addr,
                   uint64_t offset, uint64_t length, Piece* out, uint32_t* missing, Opened* opened) {
  out->remote = local_addr + offset;
  out->length = length;
  out->pointer = nullptr;
  out->device = false;
  if (segment == mem::kDeviceSegment) [[unlikely]] {
    locate_device(peer, devices, where, local_addr, out, opened);
    return true;
  }
  if (peer.same_process) {
    out->pointer = reinterpret_cast<std::byte*>(local_addr + offset);
    return true;
  }
  if (segment == mem::kNoSegment) return true;
  std::byte* base = peer.segment_base(segment);
  if (base == nullptr) {
    *missing = segment;
    return false;
  }
  // The table is the peer's: what it says is checked before it becomes a pointer.
  const uint64_t at = where + offset;
  const uint64_t bytes = peer.segment_bytes(segment);
  if (at > bytes || length > bytes - at) return true;
  out->pointer = base + at;
  return true;
}

Reach translate(const link::Peer& peer, mem::Devices& devices, const mem::MrView& view, uint64_t length, Piece* pieces,
                uint32_t* count, uint32_t* missing, Opened* opened) {
  const mem::MrEntry& e = *view.entry;
  const uint32_t first = *count;
  if ((e.access & (mem::kMrSingleUse | mem::kMrByOwner)) != 0) [[unlikely]] {
    if ((e.access & mem::kMrSingleUse) != 0 || !peer.same_process) return Reach::frames;
  }
  if (e.segment != mem::kIovSegment) {
    if (*count == kMaxPieces) return Reach::frames;
    if (!locate(peer, devices, e.segment, e.where, e.local_addr, view.offset, length, &pieces[*count], missing,
                opened)) {
      return Reach::missing;
    }
    ++*count;
  } else {
    uint64_t offset = view.offset, left = length;
    for (const mem::IovEntry& iov : peer.table.iov(e)) {
      if (offset >= iov.length) {
        offset -= iov.length;
        continue;
      }
      const uint64_t n = std::min(left, iov.length - offset);
      if (n == 0) break;
      if (*count == kMaxPieces) return Reach::frames;
      if (!locate(peer, devices, iov.segment, iov.where, iov.local_addr, offset, n, &pieces[*count], missing, opened)) {
        return Reach::missing;
      }
      ++*count;
      left -= n;
      offset = 0;
    }
  }
  bool any_direct = false, any_cma = false, any_device = false;
  for (uint32_t i = first; i < *count; ++i) {
    (pieces[i].pointer != nullptr ? any_direct : any_cma) = true;
    any_device = any_device || pieces[i].device;
    if (pieces[i].device && pieces[i].pointer == nullptr) return Reach::frames;
  }
  if (any_device && any_cma) return Reach::frames;
  if (any_device) return Reach::device;
  if (!any_cma) return Reach::direct;
  if (!peer.cma) return Reach::frames;
  return any_direct ? Reach::mixed : Reach::cma;
}

// An atomic on memory in reach, by this thread; false: a page of it failed. One element of 4 or 8 bytes in a peer's
// segment takes no guarded call (17 ns): nobody can take a segment's pages away, and the application's own words are
// copied by instructions that may fault.
[[gnu::always_inline]] inline bool apply_here(const link::Peer& peer, AtomicOp op, Datatype datatype, std::byte* target,
                                              const void* operand, const void* compare, void* result, size_t count) {
  const size_t size = datatype_size(datatype);
  if (count != 1 || (size != 8 && size != 4) || peer.same_process) [[unlikely]]
    return atomic_guarded(op, datatype, target, operand, compare, result, count);
  if (op == AtomicOp::sum && (datatype == Datatype::int64 || datatype == Datatype::uint64)) [[likely]] {
    bool possible;
    const bool done = mem::add_guarded_hot(target, operand, result, &possible);
    if (possible) [[likely]]
      return done;
  }
  alignas(8) std::byte ours[8], expected[8], before[8];
  if (operand != nullptr && !mem::copy_guarded_hot(ours, static_cast<const std::byte*>(operand), size)) return false;
  if (compare != nullptr && !mem::copy_guarded_hot(expected, static_cast<const std::byte*>(compare), size))
    return false;
  atomic_apply(op, datatype, target, ours, expected, result != nullptr ? before : nullptr, 1);
  return result == nullptr || mem::copy_guarded_hot(static_cast<std::byte*>(result), before, size);
}

// Moves bytes between local buffers and pieces, in order.
// With `devices`: some of either side is a device's memory (bit i of `of_device`: local[i]), and its runtime copies.
Status move(link::Peer& peer, bool to_peer, const iovec* local, size_t local_count, const Piece* pieces, uint32_t count,
            const mem::Devices* devices = nullptr, uint8_t of_device = 0) {
  bool all_remote = devices == nullptr;
  for (uint32_t i = 0; i < count; ++i) all_remote = all_remote && pieces[i].pointer == nullptr;
  if (all_remote) {
    iovec remote[kMaxPieces];
    for (uint32_t i = 0; i < count; ++i) remote[i] = {reinterpret_cast<void*>(pieces[i].remote), pieces[i].length};
    return peer.cma_copy(to_peer, {local, local_count}, {remote, count});
  }
  size_t at = 0, done = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t offset = 0;
    while (offset < pieces[i].length) {
      while (at < local_count && done == local[at].iov_len) {
        ++at;
        done = 0;
      }
      if (at == local_count) return Status::ok;
      size_t n = std::min<size_t>(pieces[i].length - offset, local[at].iov_len - done);
      auto* here = static_cast<std::byte*>(local[at].iov_base) + done;
      if (std::byte* there = pieces[i].pointer; there != nullptr) {
        if (devices != nullptr) {
          const mem::Devices::Side ours{here, (of_device >> at & 1) != 0}, theirs{there + offset, pieces[i].device};
          const Status s = to_peer ? devices->copy(theirs, ours, n) : devices->copy(ours, theirs, n);
          if (s != Status::ok) return s;
        } else if (!(to_peer ? copy_guarded_hot(there + offset, here, n) : copy_guarded_hot(here, there + offset, n))) {
          return Status::fault;
        }
      } else if (devices != nullptr) {  // the kernel copies from and to host memory only
        constexpr size_t kBounceBytes = 1u << 20;
        n = std::min(n, kBounceBytes);
        const std::unique_ptr<std::byte[]> bounce(new (std::nothrow)
                                                      std::byte[n]);  // the lock may be released: no throw
        if (bounce == nullptr) return Status::no_memory;
        const iovec l{bounce.get(), n}, r{reinterpret_cast<void*>(pieces[i].remote + offset), n};
        const mem::Devices::Side ours{here, (of_device >> at & 1) != 0}, between{bounce.get(), false};
        Status s = to_peer ? devices->copy(between, ours, n) : Status::ok;
        if (s == Status::ok) s = peer.cma_copy(to_peer, {&l, 1}, {&r, 1});
        if (s == Status::ok && !to_peer) s = devices->copy(ours, between, n);
        if (s != Status::ok) return s;
      } else {
        const iovec l{here, n}, r{reinterpret_cast<void*>(pieces[i].remote + offset), n};
        if (const Status s = peer.cma_copy(to_peer, {&l, 1}, {&r, 1}); s != Status::ok) return s;
      }
      offset += n;
      done += n;
    }
  }
  return Status::ok;
}

constexpr uint32_t want_of(OpKind kind) noexcept {
  return kind == OpKind::read ? mem::kRemoteRead : mem::kRemoteWrite;
}

constexpr uint64_t completion_flags(OpKind kind, AtomicFamily family) noexcept {
  if (kind == OpKind::atomic) return flag::kAtomic | (family == AtomicFamily::base ? flag::kWrite : flag::kRead);
  return flag::kRma | (kind == OpKind::read ? flag::kRead : flag::kWrite);
}

// Of a list that describes no transfer: it has no pieces, or more bytes than an address space.
constexpr uint64_t kNoSum = ~uint64_t{0};

uint64_t sum_bytes(std::span<const iovec> list) noexcept {
  uint64_t n = 0;
  for (const iovec& v : list) {
    if (__builtin_add_overflow(n, v.iov_len, &n)) return kNoSum;
  }
  return n;
}

uint64_t sum_bytes(std::span<const wire::RmaRange> list) noexcept {
  if (list.empty()) return kNoSum;
  uint64_t n = 0;
  for (const wire::RmaRange& r : list) {
    if (__builtin_add_overflow(n, r.length, &n)) return kNoSum;
  }
  return n;
}

// All bytes of a list, or all of `from` into it, through the devices' runtimes.
Status copy_device(const mem::Devices& devices, std::span<const iovec> list, uint8_t of_device, std::byte* host,
                   bool to_host) noexcept {
  for (size_t i = 0; i < list.size(); ++i) {
    const mem::Devices::Side ours{host, false}, theirs{list[i].iov_base, (of_device >> i & 1) != 0};
    const Status s =
        to_host ? devices.copy(ours, theirs, list[i].iov_len) : devices.copy(theirs, ours, list[i].iov_len);
    if (s != Status::ok) return s;
    host += list[i].iov_len;
  }
  return Status::ok;
}

// The `length` bytes from `offset` on, gathered from a list of the application's buffers. fault: a page failed.
Status gather(std::span<const iovec> list, uint64_t offset, std::byte* out, uint64_t length) noexcept {
  for (const iovec& v : list) {
    if (length == 0) break;
    if (offset >= v.iov_len) {
      offset -= v.iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(length, v.iov_len - offset);
    if (!copy_guarded(out, static_cast<const std::byte*>(v.iov_base) + offset, n)) return Status::fault;
    out += n;
    length -= n;
    offset = 0;
  }
  return Status::ok;
}

}  // namespace

Status scatter(std::span<const iovec> list, uint64_t offset, const std::byte* in, uint64_t length) noexcept {
  for (const iovec& v : list) {
    if (length == 0) break;
    if (offset >= v.iov_len) {
      offset -= v.iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(length, v.iov_len - offset);
    if (!copy_guarded(static_cast<std::byte*>(v.iov_base) + offset, in, n)) return Status::fault;
    in += n;
    length -= n;
    offset = 0;
  }
  return Status::ok;
}

namespace {

std::span<const std::byte> as_bytes(const std::string& text) noexcept {
  return std::as_bytes(std::span(text));
}

}  // namespace

Endpoint::Endpoint(Domain* domain, const EndpointConfig& config)
    : domain_(domain),
      config_(config),
      short_bytes_max_(std::min<uint64_t>(domain->nic_->limits_.inline_copy_bytes, config.max_msg_size)),
      atomic_bytes_max_(domain->nic_->limits_.atomic_bytes_max),
      raw_keys_(domain->config_.raw_keys ? 1 : 0) {}

// ---- posting -----------------------------------------------------------------------------------------------------

Refusal Endpoint::check_post(uint64_t dest, uint64_t flags, bool inject_call, bool* wants, PeerEp** target,
                             std::shared_ptr<PeerEp>** shared) {
  if (state_ != State::enabled) [[unlikely]]
    return state_ == State::closed ? Refusal::closed : Refusal::not_enabled;
  *wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
  if (*wants && !tx_cq_->has_room()) [[unlikely]]
    return Refusal::cq_full;
  dest = dest_of(dest);
  if (dest >= av_->entries_.size() || !av_->entries_[dest]) [[unlikely]]
    return config_.connected ? Refusal::not_connected : Refusal::bad_address;
  *shared = &av_->entries_[dest];
  *target = av_->entries_[dest].get();
  return Refusal::none;
}

[[gnu::always_inline]] inline void Endpoint::complete(bool wants, uint64_t context, uint64_t flags, uint64_t len) {
  if (wants) tx_cq_->push_local(context, flags, len);
  const auto& counter = (flags & flag::kRead) != 0 ? read_cntr_ : write_cntr_;
  if (counter) [[unlikely]]
    counter->add(counter->counts_bytes ? len : 1);
}

// HOT. Where `length` bytes at addr may be accessed by load and store without telling the owner; null: take the long
// way. Touches the remembered translation, the owner's region entry and endpoint entry (shared lines); no store.
[[gnu::always_inline]] inline std::byte* Endpoint::fast_target(PeerEp& target, uint64_t key, uint64_t addr,
                                                               uint64_t length, uint32_t want) noexcept {
  if (!speaks_to(target) || raw_keys_ != 0) [[unlikely]]
    return nullptr;
  const Translation& t = target.translations[translation_of(key)];
  if (t.key != key || t.entry == nullptr) return nullptr;
  // SYNC POINT: read after the domain's lock was taken, so the owner either sees us busy or we see the key revoked.
  if (t.entry->state.load(std::memory_order_acquire) != t.state) return nullptr;
  if (target.ep_entry->generation.load(std::memory_order_relaxed) != target.ep_generation) return nullptr;
  const uint64_t offset = addr - t.base;
  if ((t.allowed & want) != want || offset > t.length || length > t.length - offset) return nullptr;
  return t.pointer + offset;
}

void Endpoint::remember(PeerEp& target, const mem::MrView& view, uint64_t key) {
  const mem::MrEntry& e = *view.entry;
  const link::Peer& peer = *target.peer;
  if (e.segment == mem::kIovSegment) return;
  const mem::MrView whole{view.entry, view.slot, 0};
  Piece piece;
  uint32_t count = 0, missing = 0;
  Opened none;
  if (translate(peer, target.domain->nic()->devices(), whole, e.length, &piece, &count, &missing, &none) !=
      Reach::direct) {
    return;
  }
  const uint32_t ep_flags = target.ep_entry->flags.load(std::memory_order_relaxed);
  uint32_t allowed = 0;
  if ((e.access & mem::kMrNotifyRead) == 0 && (ep_flags & mem::kEpNotifyRead) == 0) {
    allowed |= e.access & (ep_flags << 9) & (mem::kRemoteRead | mem::kAtomicRead);
  }
  if ((e.access & mem::kMrNotifyWrite) == 0 && (ep_flags & mem::kEpNotifyWrite) == 0) {
    allowed |= e.access & (ep_flags << 9) & (mem::kRemoteWrite | mem::kAtomicWrite);
  }
  target.translations[translation_of(key)] = {
      key, &e, e.state.load(std::memory_order_relaxed), e.base, e.length, piece.pointer, allowed};
}

PostResult Endpoint::post_one(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key,
                              uint64_t flags, uint64_t context, uint64_t imm, bool inject_call) {
  if (length <= short_bytes_max_ && (flags & kLongWay) == 0) [[likely]] {
    const DomainLock guard(domain_);
    const uint64_t to = dest_of(dest);
    if (state_ == State::enabled && to < av_->entries_.size() && av_->entries_[to]) [[likely]] {
      PeerEp& target = *av_->entries_[to];
      const bool wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
      if (target.ep_entry != nullptr && target.outstanding == 0 && target.waiting.empty() &&
          (!wants || tx_cq_->has_room())) [[likely]] {
        const bool write = kind == OpKind::write;
        std::byte* there = fast_target(target, key, addr, length, write ? mem::kRemoteWrite : mem::kRemoteRead);
        if (there != nullptr) [[likely]] {
          auto* here = static_cast<std::byte*>(local);
          if (write ? copy_guarded_hot(there, here, length) : copy_guarded_hot(here, there, length)) [[likely]] {
            ++domain_->statistics.direct;
            domain_->statistics.bytes += length;
            complete(wants, context, write ? flag::kRma | flag::kWrite : flag::kRma | flag::kRead, length);
            return {Refusal::none, wants};
          }  // a page failed: the long way says so
        }
      } else if (target.ready && target.ep_entry == nullptr && raw_keys_ == 0 && speaks_to(target)) {
        return post_framed(kind, local, length, to, addr, key, flags, context, imm, inject_call);
      }
    }
  }
  return post_one_slow(kind, local, length, dest, addr, key, flags, context, imm, inject_call);
}

// To a peer that shares no memory there is one way only. With the domain's lock.
[[gnu::noinline]] PostResult Endpoint::post_framed(OpKind kind, void* local, uint64_t length, uint64_t to,
                                                   uint64_t addr, uint64_t key, uint64_t flags, uint64_t context,
                                                   uint64_t imm, bool inject_call) {
  bool wants = !inject_call && (!selective_ || (flags & flag::kCompletion) != 0);
  if (wants && !tx_cq_->has_room()) return {Refusal::cq_full};
  if (const Refusal r = check_unfinished(flags, &wants); r != Refusal::none) return {r};
  const std::shared_ptr<PeerEp>& target = av_->entries_[to];
  Op* op = make_op(kind, target, wants, flags, context, imm, length, inject_call);
  op->remote[0] = {addr, length, key};
  op->remote_count = 1;
  const iovec piece{local, length};
  if (!keep_local(op, {&piece, 1})) {
    finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, queue_op(*target, op)};
}

// Where the operation's bytes come from or go to: the caller's buffers, or a copy of what it may reuse at once.
bool Endpoint::keep_local(Op* op, std::span<const iovec> local) {
  if ((op->inject_call || (op->flags & flag::kInject) != 0) && op->kind == OpKind::write) {
    op->held.resize(op->total);
    op->status = gather(local, 0, op->held.data(), op->total);
    op->local[0] = {op->held.data(), op->held.size()};
    op->local_count = 1;
  } else {
    std::ranges::copy(local, op->local);
    op->local_count = static_cast<uint8_t>(local.size());
  }
  return op->status == Status::ok;
}

// Apart, so that the short way sets up no stack for it.
PostResult Endpoint::post_one_slow(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr,
                                   uint64_t key, uint64_t flags, uint64_t context, uint64_t imm, bool inject_call) {
  const iovec piece{local, length};
  const wire::RmaRange range{addr, length, key};
  RmaArgs args;
  args.kind = kind;
  args.dest = dest;
  args.local = {&piece, 1};
  args.remote = {&range, 1};
  args.flags = flags;
  args.context = context;
  args.imm = imm;
  args.inject_call = inject_call;
  return post(args);
}

// The ranges of an operation as the peer knows them. With the domain's lock.
std::span<const wire::RmaRange> Endpoint::named(std::span<const wire::RmaRange> remote, wire::RmaRange* room) const {
  if (raw_keys_ == 0) [[likely]]
    return remote;
  for (size_t i = 0; i < remote.size(); ++i) {
    room[i] = {remote[i].addr, remote[i].length, domain_->mapped_key(remote[i].key)};
  }
  return {room, remote.size()};
}

PostResult Endpoint::post(const RmaArgs& asked) {
  RmaArgs args = asked;
  const uint64_t total = args.local.size() == 1 ? args.local[0].iov_len : sum_bytes(args.local);
  const uint64_t remote_total = args.remote.size() == 1 ? args.remote[0].length : sum_bytes(args.remote);
  if (args.local.size() > kIovMax || args.remote.size() > kIovMax) return {Refusal::too_many_pieces};
  if (total != remote_total || total == kNoSum) return {Refusal::length_mismatch};
  if (total > config_.max_msg_size) return {Refusal::too_long};

  const DomainLock guard(domain_);
  bool wants;
  PeerEp* target;
  std::shared_ptr<PeerEp>* shared;
  if (const Refusal r = check_post(args.dest, args.flags, args.inject_call, &wants, &target, &shared);
      r != Refusal::none) [[unlikely]] {
    return {r};
  }
  wire::RmaRange room[kIovMax];
  args.remote = named(args.remote, room);
  std::shared_ptr<PeerEp> kept;
  if (!speaks_to(*target)) [[unlikely]] {
    if (!wants && tx_cq_->full()) return {Refusal::cq_full};
    fail(args.context, completion_flags(args.kind, {}), Status::unauthorized,
         describe(args.kind == OpKind::read ? "read" : "write", args.remote[0], *target, Status::unauthorized), total);
    count_remote(args.kind == OpKind::read, true, 0);
    return {Refusal::none, true};
  }
  const bool fence = (args.flags & flag::kFence) != 0;
  bool data_done = false;
  const bool commit = (args.flags & flag::kCommitComplete) != 0;  // the owner flushes its file
  if (!commit && target->ready && target->waiting.empty() && target->peer->table.valid() && !target->peer->dead() &&
      (target->outstanding == 0 || (!fence && config_.msg_order == 0))) [[likely]] {
    kept = *shared;  // a copy outside the lock lets others change the address vector meanwhile
    Status status = Status::ok;
    switch (try_direct(*target, args.kind, args.local.data(), args.local.size(), args.remote.data(), args.remote.size(),
                       total, args.flags, args.imm, &status, true, args.device)) {
      case Direct::done:
        complete(wants, args.context, completion_flags(args.kind, {}), total);
        return {Refusal::none, wants};
      case Direct::failed:
        if (!wants && tx_cq_->full()) return {Refusal::cq_full};  // there is no room for its error
        fail(args.context, completion_flags(args.kind, {}), status,
             describe(args.kind == OpKind::read ? "read" : "write", args.remote[0], *target, status), total);
        if (status == Status::no_endpoint) target->set_lost();  // ask again next time
        count_remote(args.kind == OpKind::read, true, 0);
        return {Refusal::none, true};
      case Direct::no_room:
        data_done = true;
        break;
      case Direct::frames:
      case Direct::park:
        break;
    }
  }
  if (const Refusal r = check_unfinished(args.flags, &wants); r != Refusal::none) return {r};
  Op* op =
      make_op(args.kind, kept ? kept : *shared, wants, args.flags, args.context, args.imm, total, args.inject_call);
  op->data_done = data_done;
  std::copy(args.remote.begin(), args.remote.end(), op->remote);
  op->remote_count = static_cast<uint8_t>(args.remote.size());
  if (args.device && !data_done) {
    const bool write = args.kind == OpKind::write;
    if (!stage(op, write ? args.local : std::span<const iovec>{}, write ? std::span<const iovec>{} : args.local,
               args.device, total)) {
      finish(op);
      return {Refusal::none, true};
    }
  } else if (!keep_local(op, args.local)) {
    finish(op);
    return {Refusal::none, true};
  }
  return {Refusal::none, true, queue_op(*target, op)};
}

// The direct path: key check, copy, and a notice where the target wants to know. With the domain's lock; a long copy is
// made outside of it under an activity word of its own (only if may_unlock).
Endpoint::Direct Endpoint::try_direct(PeerEp& target, OpKind kind, const iovec* local, size_t local_count,
                                      const wire::RmaRange* remote, size_t remote_count, uint64_t total, uint64_t flags,
                                      uint64_t imm, Status* status, bool may_unlock, uint8_t device) {
  link::Peer& peer = *target.peer;
  mem::Devices& devices = domain_->nic_->devices();
  const uint32_t want = want_of(kind);
  mem::MrView view;
  Piece pieces[kMaxPieces];
  uint32_t count = 0, missing = 0, entry_flags = 0;
  Opened opened;
  bool by_device = device != 0;
  std::shared_ptr<link::Peer> kept;  // while the lock is released the peer may die and leave `target`
  Reach reach = Reach::direct;
  for (size_t i = 0; i < remote_count; ++i) {
    *status = peer.table.check(seen_by(target), target.ep_index, target.ep_generation, remote[i].key, remote[i].addr,
                               remote[i].length, want, view);
    if (*status != Status::ok) [[unlikely]]
      return Direct::failed;
    entry_flags |= view.entry->access;
    const Reach r = translate(peer, devices, view, remote[i].length, pieces, &count, &missing, &opened);
    if (r == Reach::direct) remember(target, view, remote[i].key);
    if (r == Reach::missing) [[unlikely]] {
      peer.link()->request_segment(peer, missing);
      return Direct::park;
    }
    if (r == Reach::device) {
      by_device = true;
    } else if (r != Reach::direct) {
      reach = r == Reach::frames || reach == Reach::frames ? Reach::frames : Reach::cma;
    }
  }
  if (reach == Reach::frames) return Direct::frames;
  if ((flags & flag::kRemoteCqData) != 0 && !target.takes_data()) [[unlikely]]
    return Direct::park;
  const mem::Devices* copier = by_device ? &devices : nullptr;

  const bool to_peer = kind == OpKind::write;
  if (reach == Reach::direct && !by_device && total <= domain_->nic_->limits_.inline_copy_bytes) [[likely]] {
    if (count == 1 && local_count == 1) [[likely]] {
      auto* here = static_cast<std::byte*>(local[0].iov_base);
      if (!(to_peer ? copy_guarded_hot(pieces[0].pointer, here, total)
                    : copy_guarded_hot(here, pieces[0].pointer, total))) {
        *status = Status::fault;
      }
    } else {
      *status = move(peer, to_peer, local, local_count, pieces, count);
    }
    if (*status != Status::ok) [[unlikely]]
      return Direct::failed;
    ++domain_->statistics.direct;
  } else if (total != 0) {
    reach == Reach::direct ? ++domain_->statistics.direct : ++domain_->statistics.cma;
    if (may_unlock) {
      // SYNC POINT: the long activity is visible before the lock's word becomes even, so a closing owner that saw the
      // lock released sees the long activity. It stands for all regions of the call: slot 'any'.
      Nic& nic = *domain_->nic_;
      const uint32_t activity = nic.begin_long_activity(remote_count == 1 ? view.slot : mem::TableView::kNoSlot);
      kept = target.peer;
      const std::shared_ptr<CompletionQueue> cq = tx_cq_;
      ++target.outstanding;
      ++target.long_copies;
      long_copies_.fetch_add(1, std::memory_order_relaxed);
      cq->reserve();
      domain_->unlock();
      *status = move(*kept, to_peer, local, local_count, pieces, count, copier, device);
      nic.end_long_activity(activity);
      domain_->lock();
      cq->unreserve();
      long_copies_.fetch_sub(1, std::memory_order_release);
      --target.outstanding;
      --target.long_copies;
      // Meanwhile the peer may have died, and the endpoint may have been closed: then no notice is due.
      if (*status == Status::ok && (kept->dead() || target.peer != kept)) *status = Status::peer_gone;
      if (state_ != State::enabled) *status = Status::canceled;
      if (!target.waiting.empty()) domain_->pump(target);
    } else {
      *status = move(peer, to_peer, local, local_count, pieces, count, copier, device);
    }
    if (*status == Status::access) *status = Status::fault;
    if (*status != Status::ok) return Direct::failed;
  }
  domain_->statistics.bytes += total;

  const uint32_t notify = to_peer ? mem::kMrNotifyWrite : mem::kMrNotifyRead;
  const uint32_t ep_notify = to_peer ? mem::kEpNotifyWrite : mem::kEpNotifyRead;
  const bool has_data = (flags & flag::kRemoteCqData) != 0;
  if (has_data || (entry_flags & notify) != 0 ||
      (peer.table.ep(target.ep_index).flags.load(std::memory_order_relaxed) & ep_notify) != 0) [[unlikely]] {
    *status = send_notice(target, !to_peer, false, remote[0], total, has_data, imm);
    if (*status == Status::again) return Direct::no_room;
    if (*status != Status::ok) return Direct::failed;
  }
  return Direct::done;
}

Status Endpoint::send_notice(PeerEp& target, bool read, bool atomic, const wire::RmaRange& range, uint64_t total,
                             bool has_data, uint64_t imm, AtomicOp op) {
  wire::Frame f;
  f.kind = wire::FrameKind::notice;
  f.atomic_op = static_cast<uint8_t>(op);
  f.flags = static_cast<uint8_t>((has_data ? wire::kFrameHasData : 0) | (read ? wire::kFrameIsRead : 0) |
                                 (atomic ? wire::kFrameIsAtomic : 0) | wire::kFrameLast);
  f.key = range.key;
  f.addr = range.addr;
  f.length = total;
  f.imm_data = imm;
  f.ep_index = target.ep_index;
  f.ep_generation = target.ep_generation;
  f.source = seen_by(target);
  return target.peer->link()->submit(*target.peer, f, {});
}

void Endpoint::count_remote(bool read, bool failed, uint64_t bytes) {
  const auto& counter = read ? read_cntr_ : write_cntr_;
  if (!counter) return;
  if (failed) {
    counter->add_errors(1);
  } else {
    counter->add(counter->counts_bytes ? bytes : 1);
  }
}

void Endpoint::fail(uint64_t context, uint64_t flags, Status status, std::string text, uint64_t total) noexcept {
  ++domain_->statistics.failed;
  CqEntry entry;
  entry.context = context;
  entry.flags = flags;
  CqError error;
  const auto [err, prov] = domain_->config_.statuses[status];
  error.err = err;
  error.prov_errno = prov;
  error.status = status;
  error.olen = total;
  error.text = std::move(text);
  tx_cq_->push_error(entry, std::move(error));
}

// ---- operations that take time -----------------------------------------------------------------------------------

Op* Endpoint::make_op(OpKind kind, std::shared_ptr<PeerEp> target, bool wants, uint64_t flags, uint64_t context,
                      uint64_t imm, uint64_t total, bool inject_call) {
  Op* op = domain_->ops_.add();
  op->kind = kind;
  op->ep = this;
  op->target = std::move(target);
  op->wants_completion = wants;
  op->inject_call = inject_call;
  op->flags = flags;
  op->context = context;
  op->imm = imm;
  op->total = total;
  ++outstanding_;
  if (wants) {
    tx_cq_->reserve();
    op->holds_cq_room = true;
  }
  return op;
}

Refusal Endpoint::check_unfinished(uint64_t flags, bool* wants) const {
  if ((flags & (flag::kIfUnfinished | flag::kOnlyNow)) != 0) [[unlikely]] {
    if ((flags & flag::kOnlyNow) != 0) return Refusal::not_now;
    if (!tx_cq_->has_room()) return Refusal::cq_full;
    *wants = true;
  }
  if (outstanding_ >= config_.tx_size) return Refusal::tx_full;
  if (!*wants && tx_cq_->full()) return Refusal::cq_full;  // it may fail, which must be told
  if (state_ != State::enabled) return Refusal::closed;    // closed while it was copying
  return Refusal::none;
}

uint64_t Endpoint::queue_op(PeerEp& target, Op* op) {
  // While it sends much, what is acknowledged can wait for its next poll: the engine would take turns with it.
  if (op->total >= kMuchBytes) domain_->nic_->note_app();
  const uint64_t id = op->id;  // it may be over, and another one's, when advance() returns
  if (target.waiting.empty() && advance_safely(op)) [[likely]]
    return id;
  try {
    target.waiting.push_back(op);
  } catch (const std::bad_alloc&) {
    op->status = Status::no_memory;
    finish(op);
    return id;
  }
  domain_->nic_->waiting_ops_.fetch_add(1, std::memory_order_seq_cst);
  domain_->pump(target);
  if (!target.waiting.empty() && !target.resolving) domain_->nic_->need_engine();
  return id;
}

// The operation is over: tell the user, give its buffers back, recycle it. Not in a waiting list any more.
void Endpoint::finish(Op* op) noexcept {
  const std::shared_ptr<PeerEp> target = std::move(op->target);
  if (op->counted) --target->outstanding;
  if (op->parent == nullptr) --outstanding_;
  if (op->holds_cq_room) tx_cq_->unreserve();
  if (op->device_result_count != 0 && op->status == Status::ok) [[unlikely]] {
    op->status = copy_device(domain_->nic_->devices(), {op->device_result, op->device_result_count}, op->device_results,
                             op->held.data() + op->device_at, false);
  }
  if (op->status == Status::ok && op->parent == nullptr && op->kind != OpKind::cm) [[likely]] {
    const OpKind as = op->kind == OpKind::batch ? (op->data_done ? OpKind::read : OpKind::write) : op->kind;
    complete(op->wants_completion, op->context, completion_flags(as, op->family), op->total);
    if (!op->wants_completion) domain_->release_context(op->context);
  } else {
    finish_otherwise(op, target);
  }
  domain_->release_cookies(op);
  domain_->ops_.remove(op);
}

// A part of a vectored call, a failure, or what connecting endpoints say.
[[gnu::noinline]] void Endpoint::finish_otherwise(Op* op, const std::shared_ptr<PeerEp>& target) noexcept {
  // Without memory for them, texts stay empty.
  const auto text_of = [&](const char* what) noexcept {
    try {
      return describe(what, op->remote[0], *target, op->status);
    } catch (const std::bad_alloc&) {
      return std::string();
    }
  };
  if (op->kind == OpKind::cm) {
    if (cm_) {
      CmEvent event;
      event.token = cm_token_;
      event.kind = op->status == Status::ok ? CmKind::delivered : CmKind::failed;
      event.what = static_cast<CmKind>(op->atomic_op);
      event.connection = op->imm;
      event.status = op->status;
      if (op->status != Status::ok) {
        const std::string text = text_of("connection request");
        try {
          event.data.assign(as_bytes(text).begin(), as_bytes(text).end());
        } catch (const std::bad_alloc&) {
          event.data.clear();
        }
      }
      (void)cm_->push(std::move(event));
    }
    // A passive endpoint sends rejections only, and strangers may ask from ever new addresses.
    if (listens_) av_->forget(*target);
  } else if (Op* parent = op->parent; parent != nullptr) {
    *op->status_out = domain_->config_.statuses[op->status].err;
    if (op->status != Status::ok && parent->status == Status::ok) {
      parent->status = op->status;
      parent->remote[0] = op->remote[0];  // what the error's text tells
      parent->target = target;
    }
    if (--parent->children == 0 && parent->submitted) finish(parent);
  } else {
    const char* what = op->kind == OpKind::read     ? "read"
                       : op->kind == OpKind::write  ? "write"
                       : op->kind == OpKind::atomic ? "atomic"
                                                    : "vectored call, first of its failures,";
    const uint64_t flags = completion_flags(op->kind, op->family);
    fail(op->context, op->kind == OpKind::batch ? flag::kRma : flags, op->status, text_of(what), op->total);
    count_remote((flags & flag::kRead) != 0, true, 0);
    if (op->status == Status::no_endpoint) target->set_lost();
  }
}

bool Endpoint::advance_safely(Op* op) noexcept {
  try {
    return advance(op);
  } catch (const std::exception&) {  // no memory; what was sent of it finds no operation when it is answered
    op->status = Status::no_memory;
    finish(op);
    return true;
  }
}

// Moves a waiting operation on. True: it left the waiting list (its frames are all sent, or it is over).
bool Endpoint::advance(Op* op) {
  PeerEp& t = *op->target;
  if (!t.ready) {
    if (!t.resolving && !domain_->nic_->resolve(op->target)) {
      op->status = Status::no_endpoint;
      finish(op);
      return true;
    }
    if (!t.ready) return false;
  }
  if (t.peer->dead()) {
    op->status = t.peer->down_status();
    finish(op);
    return true;
  }
  if ((op->flags & flag::kFence) != 0 && !op->counted && t.outstanding != 0) return false;
  // What a thread is copying right now comes before us, and frames would overtake it.
  if (t.long_copies != 0 && !op->counted && config_.msg_order != 0) return false;
  const bool started = op->counted || op->check_sent;
  const bool ordered_behind = t.outstanding != 0 && config_.msg_order != 0;
  if (op->data_done) {
    const bool atomic = op->kind == OpKind::atomic;
    if ((op->flags & flag::kRemoteCqData) != 0 && !t.takes_data()) return false;
    const bool read = op->kind == OpKind::read || (atomic && op->family != AtomicFamily::base);
    const Status s = send_notice(t, read, atomic, op->remote[0], op->total, (op->flags & flag::kRemoteCqData) != 0,
                                 op->imm, op->atomic_op);
    if (s == Status::again) return false;
    op->status = s;
    finish(op);
    return true;
  }
  if (op->kind == OpKind::cm) return advance_frames(op);
  if (!started && t.peer->table.valid() && !ordered_behind && (op->flags & flag::kCommitComplete) == 0) {
    Status status = Status::ok;
    Direct direct;
    if (op->kind == OpKind::atomic) {
      AtomicArgs a;
      a.family = op->family;
      a.op = op->atomic_op;
      a.datatype = op->datatype;
      a.operand = {op->local, op->local_count};
      a.compare = {op->compare, op->compare_count};
      a.result = {op->result, op->result_count};
      a.remote = {op->remote, op->remote_count};
      a.flags = op->flags;
      a.imm = op->imm;
      direct = try_direct_atomic(t, a, op->total, &status);
    } else {
      direct = try_direct(t, op->kind, op->local, op->local_count, op->remote, op->remote_count, op->total, op->flags,
                          op->imm, &status, false, 0);
    }
    switch (direct) {
      case Direct::done:
      case Direct::failed:
        op->status = status;
        finish(op);
        return true;
      case Direct::no_room:
        op->data_done = true;
        return false;
      case Direct::park:
        return false;
      case Direct::frames:
        break;
    }
  }
  return advance_frames(op);
}

bool Endpoint::advance_frames(Op* op) {
  PeerEp& t = *op->target;
  if (!op->counted) {
    op->counted = true;
    op->peer = t.peer.get();
    ++t.outstanding;
    ++domain_->statistics.framed;
  }
  wire::Frame f;
  f.op_id = op->id;
  f.ep_index = t.ep_index;
  f.ep_generation = t.ep_generation;
  f.source = seen_by(t);
  if (op->kind == OpKind::cm) {
    f.kind = wire::FrameKind::cm;
    f.atomic_op = static_cast<uint16_t>(op->atomic_op);
    f.imm_data = op->imm;
    f.flags = wire::kFrameLast;
    const Status s = submit_request(t, f, op->held);
    if (s == Status::again) return false;
    op->submitted = true;
    if (s == Status::ok) {
      ++op->frames_out;
    } else {
      op->status = s;
      finish(op);
    }
    return true;
  }
  // Several remote ranges: have all of them verified first, so that a bad one leaves the good ones untouched.
  if (op->remote_count > 1 && !op->check_sent) {
    f.kind = wire::FrameKind::check;
    f.family = static_cast<uint8_t>(op->family);
    f.flags = op->kind == OpKind::read ? wire::kFrameIsRead : op->kind == OpKind::atomic ? wire::kFrameIsAtomic : 0;
    f.atomic_op = static_cast<uint16_t>(op->atomic_op);
    const auto bytes = std::as_bytes(std::span(op->remote, op->remote_count));
    const Status s = submit_request(t, f, bytes);
    if (s == Status::again) return false;
    if (s != Status::ok) {
      op->status = s;
      if (op->frames_out == 0) finish(op);
      return true;
    }
    op->check_sent = true;
    ++op->frames_out;
  }
  std::byte gathered[8192];  // an atomic's operand and compare values
  for (;;) {
    const wire::RmaRange& range = op->remote[op->at_remote];
    const uint64_t left = range.length - op->at_offset;
    f.key = range.key;
    f.addr = range.addr;
    f.length = range.length;
    f.frag_offset = op->at_offset;
    f.flags = (op->flags & flag::kCommitComplete) != 0 && op->kind != OpKind::read ? wire::kFrameCommit : 0;
    std::span<const std::byte> payload;
    uint64_t n = 0;
    switch (op->kind) {
      case OpKind::write: {
        f.kind = wire::FrameKind::write;
        uint64_t offset = op->at_total;
        for (uint8_t i = 0; i < op->local_count; ++i) {
          if (offset >= op->local[i].iov_len) {
            offset -= op->local[i].iov_len;
            continue;
          }
          n = std::min({left, op->local[i].iov_len - offset, uint64_t{t.peer->payload_max}});
          payload = {static_cast<const std::byte*>(op->local[i].iov_base) + offset, n};
          break;
        }
        break;
      }
      case OpKind::read:
        f.kind = wire::FrameKind::read;
        n = std::min(left, uint64_t{t.peer->payload_max});
        f.imm_data = op->at_total;  // comes back in the answer: where its bytes belong
        f.payload_length = 0;
        break;
      case OpKind::atomic: {
        f.kind = wire::FrameKind::atomic;
        f.family = static_cast<uint8_t>(op->family);
        f.atomic_op = static_cast<uint16_t>(op->atomic_op);
        f.datatype = static_cast<uint16_t>(op->datatype);
        n = range.length;
        f.frag_offset = op->at_total;  // comes back in the answer
        uint64_t bytes = 0;
        if (op->local_count != 0) {
          (void)gather({op->local, op->local_count}, op->at_total, gathered, n);  // of op->held: it does not fail
          bytes = n;
        }
        if (op->compare_count != 0) {
          (void)gather({op->compare, op->compare_count}, op->at_total, gathered + n, n);
          bytes = 2 * n;
        }
        payload = {gathered, bytes};
        break;
      }
      case OpKind::batch:
      case OpKind::cm:
        return true;
    }
    const bool last = op->at_remote + 1 == op->remote_count && op->at_offset + n == range.length;
    if (last) {
      f.flags |= wire::kFrameLast;
      if (op->kind != OpKind::read && (op->flags & flag::kRemoteCqData) != 0) {
        if (!t.takes_data()) [[unlikely]] {
          if (t.ep_entry == nullptr) ask_for_room(op);
          return false;
        }
        f.flags |= wire::kFrameHasData;
        f.imm_data = op->imm;
      }
    }
    // A read says how much of the range it wants by the reserved pair (frag_offset, status).
    if (op->kind == OpKind::read) f.status = static_cast<int32_t>(n);
    const Status s = submit_request(t, f, payload);
    if (s == Status::again) return false;
    if (s != Status::ok) {
      op->status = s;
      op->submitted = true;
      if (op->frames_out == 0) finish(op);
      return true;
    }
    ++op->frames_out;
    op->at_offset += n;
    op->at_total += n;
    if (op->at_offset == range.length) {
      op->at_offset = 0;
      ++op->at_remote;
    }
    if (last) break;
  }
  op->submitted = true;
  return true;
}

bool Endpoint::stage(Op* op, std::span<const iovec> read_from, std::span<const iovec> written_to, uint8_t device,
                     uint64_t total) {
  op->held.resize(total);
  op->local[0] = {op->held.data(), total};
  op->local_count = 1;
  std::ranges::copy(written_to, op->device_result);
  op->device_result_count = static_cast<uint8_t>(written_to.size());
  op->device_results = device;
  op->status = copy_device(domain_->nic_->devices(), read_from, device, op->held.data(), true);
  return op->status == Status::ok;
}

// ---- vectored calls ----------------------------------------------------------------------------------------------

PostResult Endpoint::post_batch(OpKind kind, std::byte* local, uint64_t local_length, std::span<BatchDesc> descs,
                                uint64_t flags, uint64_t context, bool device) {
  // How many descriptors are done under one hold of the lock: closing regions and other threads wait no longer.
  constexpr size_t kChunk = 256;
  const bool fence = (flags & flag::kFence) != 0;
  const bool commit = (flags & flag::kCommitComplete) != 0;
  Op* parent = nullptr;
  bool wants = false;
  uint64_t total = 0;
  Status first_bad = Status::ok;
  size_t first_bad_at = 0;
  std::shared_ptr<PeerEp> bad_target;
  for (size_t begin = 0; begin < descs.size() || begin == 0; begin += kChunk) {
    const DomainLock guard(domain_);
    if (begin == 0) {
      if (state_ != State::enabled) return {state_ == State::closed ? Refusal::closed : Refusal::not_enabled};
      wants = !selective_ || (flags & flag::kCompletion) != 0;
      if (config_.connected && fixed_dest_ == ~uint64_t{0}) return {Refusal::not_connected};
      if (wants ? !tx_cq_->has_room() : tx_cq_->full()) return {Refusal::cq_full};
      if (outstanding_ >= config_.tx_size) return {Refusal::tx_full};  // the call is one operation of the queue
      if (wants) tx_cq_->reserve();
    } else if (state_ != State::enabled) {
      for (size_t i = begin; i < descs.size(); ++i) descs[i].status = domain_->config_.statuses[Status::canceled].err;
      if (first_bad == Status::ok) {
        first_bad = Status::canceled;
        first_bad_at = begin;
      }
      break;
    }
    const size_t end = std::min(descs.size(), begin + kChunk);
    for (size_t i = begin; i < end; ++i) {
      BatchDesc& d = descs[i];
      const uint64_t to = dest_of(d.dest_addr);
      Status status = Status::ok;
      if (state_ != State::enabled) [[unlikely]] {
        status = Status::canceled;  // closed during a long copy of the descriptor before
      } else if (d.local_offset > local_length || d.length > local_length - d.local_offset) {
        status = Status::invalid;
      } else if (to >= av_->entries_.size() || !av_->entries_[to]) {
        status = Status::no_endpoint;
      } else {
        PeerEp& t = *av_->entries_[to];
        const iovec piece{local + d.local_offset, d.length};
        const wire::RmaRange range{d.remote_addr, d.length, raw_keys_ == 0 ? d.key : domain_->mapped_key(d.key)};
        Direct direct = Direct::frames;
        if (!speaks_to(t)) [[unlikely]] {
          direct = Direct::failed;
          status = Status::unauthorized;
        }
        if (!commit && !device && t.ready && t.outstanding == 0 && t.waiting.empty() &&
            d.length <= domain_->nic_->limits_.inline_copy_bytes) {
          const bool write = kind == OpKind::write;
          std::byte* there =
              fast_target(t, d.key, d.remote_addr, d.length, write ? mem::kRemoteWrite : mem::kRemoteRead);
          auto* here = local + d.local_offset;
          if (there != nullptr &&
              (write ? copy_guarded_hot(there, here, d.length) : copy_guarded_hot(here, there, d.length))) [[likely]] {
            ++domain_->statistics.direct;
            domain_->statistics.bytes += d.length;
            total += d.length;
            d.status = 0;
            continue;
          }
        }
        // A copy outside the lock lets others change the address vector meanwhile.
        const std::shared_ptr<PeerEp> shared = av_->entries_[to];
        if (direct != Direct::failed && !commit && t.ready && t.waiting.empty() && t.peer->table.valid() &&
            !t.peer->dead() && (t.outstanding == 0 || (!fence && config_.msg_order == 0))) {
          direct = try_direct(t, kind, &piece, 1, &range, 1, d.length, flags, 0, &status, true, device ? 1 : 0);
        }
        if (direct == Direct::done || direct == Direct::failed) {
          // decided: status says how
        } else if (state_ != State::enabled) [[unlikely]] {
          status = Status::canceled;
        } else {
          if (parent == nullptr) {
            parent = make_op(OpKind::batch, shared, false, flags, context, 0, 0, false);
            parent->data_done = kind == OpKind::read;  // a vectored call keeps its direction here
          }
          Op* child = make_op(kind, shared, false, flags, 0, 0, d.length, false);
          child->data_done = direct == Direct::no_room;
          child->local[0] = piece;
          child->local_count = 1;
          child->remote[0] = range;
          child->remote_count = 1;
          child->parent = parent;
          --outstanding_;  // the call counts once, however many descriptors wait
          child->status_out = &d.status;
          ++parent->children;
          d.status = domain_->config_.statuses[Status::again].err;
          const std::span<const iovec> staged{&piece, 1}, nothing;
          if (device && !child->data_done &&
              !stage(child, kind == OpKind::write ? staged : nothing, kind == OpKind::write ? nothing : staged, 1,
                     d.length)) {
            finish(child);
            continue;
          }
          (void)queue_op(t, child);
          total += d.length;
          continue;
        }
      }
      d.status = domain_->config_.statuses[status].err;
      if (status == Status::ok) {
        total += d.length;
      } else if (first_bad == Status::ok) {
        first_bad = status;
        first_bad_at = i;
        if (to < av_->entries_.size()) bad_target = av_->entries_[to];
      }
    }
  }
  const DomainLock guard(domain_);
  if (wants) tx_cq_->unreserve();
  if (parent != nullptr) {
    parent->total = total;
    parent->wants_completion = wants;
    if (wants) {
      tx_cq_->reserve();
      parent->holds_cq_room = true;
    }
    if (first_bad != Status::ok) {
      parent->status = first_bad;
      parent->remote[0] = {descs[first_bad_at].remote_addr, descs[first_bad_at].length, descs[first_bad_at].key};
    }
    parent->submitted = true;
    const uint64_t id = parent->id;
    if (parent->children == 0) {
      finish(parent);
      return {Refusal::none, true, 0};
    }
    return {Refusal::none, true, id};
  }
  const uint64_t done_flags = completion_flags(kind, {});
  if (first_bad == Status::ok) {
    complete(wants, context, done_flags, total);
    return {Refusal::none, wants};
  }
  const BatchDesc& bad = descs[first_bad_at];
  std::string text = "descriptor " + std::to_string(first_bad_at) + " of " + std::to_string(descs.size()) + ": ";
  if (bad_target) {
    text += describe(kind == OpKind::read ? "read" : "write", {bad.remote_addr, bad.length, bad.key}, *bad_target,
                     first_bad);
  } else if (first_bad == Status::canceled) {
    text += "the endpoint was closed during the call";
  } else if (first_bad == Status::invalid) {
    text += "local_offset " + std::to_string(bad.local_offset) + " and length " + std::to_string(bad.length) +
            " pass the end of the local buffer of " + std::to_string(local_length) + " B";
  } else {
    text += "dest_addr " + std::to_string(bad.dest_addr) + " is not in the address vector";
  }
  fail(context, done_flags, first_bad, text + "; every descriptor's own status stands in its status field", total);
  count_remote(kind == OpKind::read, true, 0);
  return {Refusal::none, true};
}

// ---- atomics -----------------------------------------------------------------------------------------------------

Endpoint::Direct Endpoint::try_direct_atomic(PeerEp& target, const AtomicArgs& args, uint64_t total, Status* status) {
  link::Peer& peer = *target.peer;
  const uint32_t want = want_of(args.family, args.op);
  Piece pieces[kMaxPieces];
  uint32_t count = 0, missing = 0, entry_flags = 0;
  Opened opened;
  const size_t size = datatype_size(args.datatype);
  for (const wire::RmaRange& range : args.remote) {
    mem::MrView view;
    *status = peer.table.check(seen_by(target), target.ep_index, target.ep_generation, range.key, range.addr,
                               range.length, want, view);
    if (*status != Status::ok) [[unlikely]]
      return Direct::failed;
    entry_flags |= view.entry->access;
    const uint32_t before = count;
    switch (translate(peer, domain_->nic_->devices(), view, range.length, pieces, &count, &missing, &opened)) {
      case Reach::direct:
        remember(target, view, range.key);
        break;
      case Reach::missing:
        peer.link()->request_segment(peer, missing);
        return Direct::park;
      default:
        // Not reachable by load and store: the owner's engine does it. It also answers a wrong alignment.
        return Direct::frames;
    }
    for (uint32_t i = before; i < count; ++i) {
      const auto address = reinterpret_cast<uintptr_t>(pieces[i].pointer);
      if (address % atomic_alignment(args.datatype) != 0 || pieces[i].length % size != 0) {
        *status = Status::misaligned;
        return Direct::failed;
      }
      if (atomic_width(args.datatype, address) == AtomicWidth::locked) return Direct::frames;
    }
  }
  if ((args.flags & flag::kRemoteCqData) != 0 && !target.takes_data()) [[unlikely]]
    return Direct::park;
  // Element runs: as far as a target piece and each local list go on.
  uint64_t done = 0;
  alignas(16) std::byte operand_room[64], compare_room[64], result_room[64];
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t offset = 0;
    while (offset < pieces[i].length) {
      const void* operand = nullptr;
      const void* compare = nullptr;
      void* result = nullptr;
      uint64_t run = pieces[i].length - offset;
      if (args.operand.size() <= 1 && args.compare.size() <= 1 && args.result.size() <= 1) [[likely]] {
        if (!args.operand.empty()) operand = static_cast<const std::byte*>(args.operand[0].iov_base) + done;
        if (!args.compare.empty()) compare = static_cast<const std::byte*>(args.compare[0].iov_base) + done;
        if (!args.result.empty()) result = static_cast<std::byte*>(args.result[0].iov_base) + done;
      } else {
        run = size;
        if (!args.operand.empty()) {
          *status = gather(args.operand, done, operand_room, size);
          operand = operand_room;
        }
        if (!args.compare.empty()) {
          if (*status == Status::ok) *status = gather(args.compare, done, compare_room, size);
          compare = compare_room;
        }
        result = args.result.empty() ? nullptr : result_room;
      }
      if (*status == Status::ok &&
          !apply_here(peer, args.op, args.datatype, pieces[i].pointer + offset, operand, compare, result, run / size)) {
        *status = Status::fault;
      }
      if (*status == Status::ok && result == result_room) *status = scatter(args.result, done, result_room, size);
      if (*status != Status::ok) return Direct::failed;
      offset += run;
      done += run;
    }
  }
  ++domain_->statistics.direct;
  domain_->statistics.bytes += total;
  const bool read = args.family != AtomicFamily::base;
  const uint32_t notify = region_notify(read, true, args.op);
  const uint32_t ep_notify = read ? mem::kEpNotifyRead : mem::kEpNotifyWrite;
  const bool has_data = (args.flags & flag::kRemoteCqData) != 0;
  if (has_data || (entry_flags & notify) != 0 ||
      (peer.table.ep(target.ep_index).flags.load(std::memory_order_relaxed) & ep_notify) != 0) [[unlikely]] {
    *status = send_notice(target, read, true, args.remote[0], total, has_data, args.imm, args.op);
    if (*status == Status::again) return Direct::no_room;
    if (*status != Status::ok) return Direct::failed;
  }
  return Direct::done;
}

// HOT (one element, target in reach): no system call, no allocation, one lock; lines as for a put, and the target's
// line is taken for writing by the locked instruction. Benchmark: bench/cpp/main.cpp (fetch-add).
PostResult Endpoint::post_atomic(const AtomicArgs& args) {
  if (args.remote.size() == 1 && args.operand.size() <= 1 && args.compare.size() <= 1 && args.result.size() <= 1 &&
      (args.flags & kLongWay) == 0 && (args.operand_device | args.compare_device | args.result_device) == 0)
      [[likely]] {
    const wire::RmaRange& range = args.remote[0];
    const uint64_t total = range.length;
    const bool fits =
        (args.operand.empty() || args.operand[0].iov_len == total) &&
        (args.family == AtomicFamily::base || (!args.result.empty() && args.result[0].iov_len == total)) &&
        (args.family != AtomicFamily::compare || (!args.compare.empty() && args.compare[0].iov_len == total)) &&
        total <= atomic_bytes_max_;
    const DomainLock guard(domain_);
    const uint64_t to = dest_of(args.dest);
    if (fits && state_ == State::enabled && to < av_->entries_.size() && av_->entries_[to]) [[likely]] {
      PeerEp& target = *av_->entries_[to];
      const bool wants = !args.inject_call && (!selective_ || (args.flags & flag::kCompletion) != 0);
      if (target.ready && target.outstanding == 0 && target.waiting.empty() && (!wants || tx_cq_->has_room()))
          [[likely]] {
        std::byte* there = fast_target(target, range.key, range.addr, total, want_of(args.family, args.op));
        const auto address = reinterpret_cast<uintptr_t>(there);
        if (there != nullptr && atomic_width(args.datatype, address) != AtomicWidth::locked) [[likely]] {
          const uint64_t flags = completion_flags(OpKind::atomic, args.family);
          if (!apply_here(*target.peer, args.op, args.datatype, there,
                          args.operand.empty() ? nullptr : args.operand[0].iov_base,
                          args.compare.empty() ? nullptr : args.compare[0].iov_base,
                          args.result.empty() ? nullptr : args.result[0].iov_base,
                          total / datatype_size(args.datatype))) [[unlikely]] {
            // Not the long way: some elements may have been done.
            fail(args.context, flags, Status::fault, describe("atomic", range, target, Status::fault), total);
            count_remote((flags & flag::kRead) != 0, true, 0);
            return {Refusal::none, true};
          }
          ++domain_->statistics.direct;
          domain_->statistics.bytes += total;
          complete(wants, args.context, flags, total);
          return {Refusal::none, wants};
        }
      }
    }
  }
  return post_atomic_slow(args);
}

PostResult Endpoint::post_atomic_slow(const AtomicArgs& asked) {
  AtomicArgs args = asked;
  if (args.operand.size() > kIovMax || args.compare.size() > kIovMax || args.result.size() > kIovMax ||
      args.remote.size() > kIovMax) {
    return {Refusal::too_many_pieces};
  }
  const uint64_t total = sum_bytes(args.remote);
  if (total == kNoSum) return {Refusal::length_mismatch};
  if (total > atomic_bytes_max_) return {Refusal::too_long};
  if ((!args.operand.empty() && sum_bytes(args.operand) != total) ||
      (args.family != AtomicFamily::base && sum_bytes(args.result) != total) ||
      (args.family == AtomicFamily::compare && sum_bytes(args.compare) != total)) {
    return {Refusal::length_mismatch};
  }
  // A device's operands are read here, and its results written from here: operand, compare, result.
  std::vector<std::byte> room;
  iovec host[3];
  Status staged = Status::ok;
  const mem::Devices& devices = domain_->nic_->devices();
  const bool device = (args.operand_device | args.compare_device | args.result_device) != 0;
  if (device) {
    room.resize(3 * total);
    for (size_t i = 0; i < 3; ++i) host[i] = {room.data() + i * total, total};
    if (!args.operand.empty()) {
      staged = copy_device(devices, args.operand, args.operand_device, room.data(), true);
      args.operand = {&host[0], 1};
    }
    if (!args.compare.empty()) {
      if (staged == Status::ok) {
        staged = copy_device(devices, args.compare, args.compare_device, room.data() + total, true);
      }
      args.compare = {&host[1], 1};
    }
    if (!args.result.empty()) args.result = {&host[2], 1};
  }
  const DomainLock guard(domain_);
  bool wants;
  PeerEp* target;
  std::shared_ptr<PeerEp>* shared;
  if (const Refusal r = check_post(args.dest, args.flags, args.inject_call, &wants, &target, &shared);
      r != Refusal::none) [[unlikely]] {
    return {r};
  }
  const bool fence = (args.flags & flag::kFence) != 0;
  bool data_done = false;
  const uint64_t flags = completion_flags(OpKind::atomic, args.family);
  const auto failed = [&](Status status) -> PostResult {
    if (!wants && tx_cq_->full()) return {Refusal::cq_full};  // there is no room for its error
    fail(args.context, flags, status, describe("atomic", args.remote[0], *target, status), total);
    if (status == Status::no_endpoint) target->set_lost();
    count_remote((flags & flag::kRead) != 0, true, 0);
    return {Refusal::none, true};
  };
  wire::RmaRange names[kIovMax];
  args.remote = named(args.remote, names);
  if (staged != Status::ok) return failed(staged);
  if (!speaks_to(*target)) return failed(Status::unauthorized);
  if ((args.flags & flag::kCommitComplete) == 0 && target->ready && target->waiting.empty() &&
      target->peer->table.valid() && !target->peer->dead() &&
      (target->outstanding == 0 || (!fence && config_.msg_order == 0))) [[likely]] {
    Status status = Status::ok;
    const Direct direct = try_direct_atomic(*target, args, total, &status);
    if (device && (direct == Direct::done || direct == Direct::no_room)) {
      status = copy_device(devices, asked.result, args.result_device, room.data() + 2 * total, false);
      if (status != Status::ok) return failed(status);
    }
    switch (direct) {
      case Direct::done:
        complete(wants, args.context, flags, total);
        return {Refusal::none, wants};
      case Direct::failed:
        return failed(status);
      case Direct::no_room:
        data_done = true;
        break;
      case Direct::frames:
      case Direct::park:
        break;
    }
  }
  if (const Refusal r = check_unfinished(args.flags, &wants); r != Refusal::none) return {r};
  Op* op = make_op(OpKind::atomic, *shared, wants, args.flags, args.context, args.imm, total, args.inject_call);
  op->family = args.family;
  op->atomic_op = args.op;
  op->datatype = args.datatype;
  op->data_done = data_done;
  std::copy(args.remote.begin(), args.remote.end(), op->remote);
  op->remote_count = static_cast<uint8_t>(args.remote.size());
  // Operands are copied: the caller of inject may reuse them at once, and a few bytes are cheaper copied than tracked.
  op->held.resize(3 * total);
  if (!args.operand.empty()) {
    op->status = gather(args.operand, 0, op->held.data(), total);
    op->local[0] = {op->held.data(), total};
    op->local_count = 1;
  }
  if (!args.compare.empty()) {
    if (op->status == Status::ok) op->status = gather(args.compare, 0, op->held.data() + total, total);
    op->compare[0] = {op->held.data() + total, total};
    op->compare_count = 1;
  }
  if (op->status != Status::ok) {
    finish(op);
    return {Refusal::none, true};
  }
  if (device && !data_done) {
    op->device_results = args.result_device;
    op->result[0] = {op->held.data() + 2 * total, total};
    op->result_count = args.result.empty() ? 0 : 1;
    op->device_at = 2 * total;
    std::ranges::copy(asked.result, op->device_result);
    op->device_result_count = static_cast<uint8_t>(asked.result.size());
  } else {
    std::copy(args.result.begin(), args.result.end(), op->result);
    op->result_count = static_cast<uint8_t>(args.result.size());
  }
  return {Refusal::none, true, queue_op(*target, op)};
}

// ---- connecting --------------------------------------------------------------------------------------------------

void Endpoint::bind_cm(std::shared_ptr<CmQueue> queue, uint64_t token, bool listens) {
  const DomainLock guard(domain_);
  cm_ = std::move(queue);
  cm_token_ = token;
  listens_ = listens;
}

PostResult Endpoint::send_cm(const wire::EpAddress& to, CmKind kind, uint64_t connection,
                             std::span<const std::byte> data) {
  const uint64_t fi_addr = av_->insert(to);
  const DomainLock guard(domain_);
  if (state_ != State::enabled) return {state_ == State::closed ? Refusal::closed : Refusal::not_enabled};
  if (fi_addr >= av_->entries_.size() || !av_->entries_[fi_addr]) return {Refusal::bad_address};
  const std::shared_ptr<PeerEp> target = av_->entries_[fi_addr];
  if (kind == CmKind::request) cm_request_ = connection;
  Op* op = make_op(OpKind::cm, target, false, 0, 0, connection, data.size(), false);
  op->atomic_op = static_cast<AtomicOp>(kind);
  op->held.assign(data.begin(), data.end());
  return {Refusal::none, true, queue_op(*target, op)};
}

void Endpoint::connect_to(const std::optional<wire::EpAddress>& peer) {
  const uint64_t fi_addr = peer ? av_->insert(*peer) : ~uint64_t{0};
  const DomainLock guard(domain_);
  fixed_dest_ = fi_addr;
  if (state_ == State::enabled) {
    domain_->nic_->table().set_ep_peer(index_, peer.value_or(wire::EpAddress{~uint32_t{0}, 0, 0, 0}));
  }
}

bool Endpoint::held_back(uint64_t dest) {
  const DomainLock guard(domain_);
  dest = dest_of(dest);
  if (dest >= av_->entries_.size() || !av_->entries_[dest]) return false;
  const PeerEp& target = *av_->entries_[dest];
  return target.ready && !target.waiting.empty() && !target.takes_data();
}

Status Endpoint::down_status(uint64_t dest) {
  const DomainLock guard(domain_);
  if (dest >= av_->entries_.size() || !av_->entries_[dest]) return Status::ok;
  const PeerEp& target = *av_->entries_[dest];
  return target.peer != nullptr && target.peer->dead() ? target.peer->down_status() : target.down;
}

// ---- life --------------------------------------------------------------------------------------------------------

void Endpoint::bind_cq(std::shared_ptr<CompletionQueue> cq, uint64_t flags) {
  const DomainLock guard(domain_);
  if (state_ != State::created)
    throw Error(fi_err::kEOPBADSTATE, "bind a completion queue before the endpoint is enabled");
  if ((flags & flag::kSend) != 0) {
    tx_cq_ = cq;
    selective_ = (flags & flag::kSelectiveCompletion) != 0;
  }
  if ((flags & flag::kRecv) != 0) rx_cq_ = cq;
}

void Endpoint::bind_counter(std::shared_ptr<Counter> counter, uint64_t flags) {
  const DomainLock guard(domain_);
  if (state_ != State::created) throw Error(fi_err::kEOPBADSTATE, "bind a counter before the endpoint is enabled");
  if ((flags & flag::kWrite) != 0) write_cntr_ = counter;
  if ((flags & flag::kRead) != 0) read_cntr_ = counter;
  if ((flags & flag::kRemoteWrite) != 0) remote_write_cntr_ = counter;
  if ((flags & flag::kRemoteRead) != 0) remote_read_cntr_ = counter;
}

void Endpoint::bind_av(std::shared_ptr<AddressVector> av) {
  const DomainLock guard(domain_);
  if (state_ != State::created)
    throw Error(fi_err::kEOPBADSTATE, "bind an address vector before the endpoint is enabled");
  av_ = std::move(av);
}

uint32_t Endpoint::table_flags() const noexcept {
  uint32_t flags = domain_->config_.prov_key ? mem::kEpProvKey : 0;
  uint32_t served = 0;  // the rights that the capabilities grant to peers
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

uint32_t Endpoint::enable(uint32_t nic, std::optional<uint32_t> pid, std::span<const uint16_t> vnis) {
  Nic& n = *domain_->nic_;
  {
    const DomainLock guard(domain_);
    if (state_ == State::closed) throw Error(fi_err::kEOPBADSTATE, "the endpoint is closed");
    if (state_ == State::enabled) throw Error(fi_err::kEOPBADSTATE, "the endpoint is enabled already");
    if (!av_) throw Error(fi_err::kENOAV, "the endpoint has no address vector: bind one before enable()");
    constexpr uint64_t kStarts = flag::kRead | flag::kWrite | flag::kSend;
    if (!tx_cq_ && (config_.caps & kStarts) != 0) {
      throw Error(fi_err::kENOCQ, "the endpoint has no completion queue for its operations: bind one with fi.TRANSMIT");
    }
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
  // Of a small range each number is tried once, from a random one on; of a large range, random ones.
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
    try {
      for (; claimed < vnis_.size() * n.links().size(); ++claimed) {
        n.links()[claimed % n.links().size()]->claim(name(claimed), index, generation);
      }
    } catch (const Error& e) {
      for (size_t i = 0; i < claimed; ++i) n.links()[i % n.links().size()]->release(name(i));
      n.table().close_ep(index);
      if (!pid && e.fi_code() == fi_err::kEADDRINUSE && attempt + 1 < std::min(pid_count, kAttempts)) {
        number = pid_count <= kAttempts ? number + 1 : n.random().next();
        continue;
      }
      throw;
    }
    const std::lock_guard objects(n.objects_mutex_);
    const DomainLock guard(domain_);
    if (rx_cq_) rx_cq_->add_receiver();
    index_ = index;
    generation_ = generation;
    shut_number_ = uint64_t{generation} << 32;  // an endpoint of the same slot has counted other numbers
    address_ = address;
    n.eps_[index] = shared_from_this();
    state_ = State::enabled;
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
    state_ = State::closed;
    if (was_enabled) n.eps_[index_] = nullptr;
    if (was_enabled && rx_cq_) rx_cq_->remove_receiver(this);
    // What is under way ends as canceled; answers that still arrive find no operation and are dropped.
    std::vector<Op*> mine;
    domain_->ops_.each([&](Op* op) {
      if (op->ep == this && op->kind != OpKind::batch) mine.push_back(op);
    });
    std::ranges::sort(mine, {}, &Op::sequence);
    for (Op* op : mine) {
      auto& waiting = op->target->waiting;
      if (const auto it = std::ranges::find(waiting, op); it != waiting.end()) {
        waiting.erase(it);
        n.waiting_ops_.fetch_sub(1, std::memory_order_relaxed);
      }
      op->status = Status::canceled;
      finish(op);
    }
  }
  // A long copy of another thread comes back to this endpoint, and to its domain.
  Backoff backoff;
  while (long_copies_.load(std::memory_order_acquire) != 0) backoff.pause();
  {
    const DomainLock guard(domain_);
  }
  if (was_enabled) {
    for (const uint16_t vni : vnis_) {
      for (link::Link* link : n.links()) link->release({address_.nic, address_.pid, vni, 0});
    }
    n.table().close_ep(index_);
  }
}

size_t Endpoint::cancel(uint64_t context) {
  const DomainLock guard(domain_);
  std::vector<Op*> found;
  domain_->ops_.each([&](Op* op) {
    const bool begun = op->counted && (op->at_total != 0 || op->check_sent || op->submitted);
    if (op->ep == this && op->context == context && !begun && op->parent == nullptr && op->kind != OpKind::batch) {
      found.push_back(op);
    }
  });
  std::ranges::sort(found, {}, &Op::sequence);
  for (Op* op : found) {
    std::erase(op->target->waiting, op);
    domain_->nic_->waiting_ops_.fetch_sub(1, std::memory_order_relaxed);
    op->status = Status::canceled;
    finish(op);
  }
  return found.size();
}

}  // namespace weft::nic
