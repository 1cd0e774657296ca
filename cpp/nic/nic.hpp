// cpp/nic/nic.hpp: the software NIC: domains, endpoints, regions, and the one engine that serves them.
//
//   Nic ── Domain ── Endpoint ── AddressVector ── PeerEp ── link::Peer
//     │       ├───── CompletionQueue, Counter
//     │       └───── MemoryRegion (an entry of mem::Table)
//     └── links (self, shm, ...), engine thread
//
// Locks, in the order in which they may be taken: progress lock, region-serving lock, a domain's lock, link locks.
// A domain's lock is an activity word of the memory table: taking it is what tells peers' owners that we are accessing.
//
// This room opens no file, reads no clock and draws no random number itself: clock, random numbers, links, limits and
// the place to sleep are parameters.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/spinlock.hpp"
#include "link/link.hpp"
#include "mem/cache.hpp"
#include "mem/guard.hpp"
#include "mem/segment.hpp"
#include "mem/table.hpp"
#include "nic/atomics.hpp"
#include "nic/cm.hpp"
#include "nic/op.hpp"
#include "nic/queue.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

using mem::copy_guarded;
using mem::copy_guarded_hot;

struct Limits {
  uint32_t mr_count_max = 1u << 21;
  // Longer copies are made outside the domain's lock, which costs 250 ns: 64 KiB take some microseconds, about what a
  // thread that waits for the lock spins before it yields.
  size_t inline_copy_bytes = 64 * 1024;
  size_t iov_count_max = 8;
  size_t atomic_bytes_max = 4096;          // a call
  uint64_t close_wait_ns = 5'000'000'000;  // how long closing a region waits for peers that are copying
};

class Nic;
class Hold;
class Domain;
class Endpoint;
class AddressVector;

// What an initiator remembers of a region it reached by load and store. Valid while the owner's entry still has the
// same state word: then nothing about the region has changed.
struct alignas(kCacheLine) Translation {
  uint64_t key = 0;
  const mem::MrEntry* entry = nullptr;
  uint64_t state = 0;
  uint64_t base = 0;
  uint64_t length = 0;
  std::byte* pointer = nullptr;  // to the region's first byte
  uint32_t allowed = 0;          // the rights that are granted and need no notice
};
static_assert(sizeof(Translation) == kCacheLine);
constexpr size_t kTranslationCount = 4;
constexpr size_t translation_of(uint64_t key) noexcept {
  return (key ^ key >> wire::kKeySlotBits) & (kTranslationCount - 1);
}

// The peer endpoint behind one address-vector entry. Everything under the domain's lock.
struct PeerEp {
  wire::EpAddress address;
  bool ready = false;
  bool resolving = false;
  uint32_t ep_index = 0, ep_generation = 0;
  uint32_t outstanding = 0;  // operations under way: frames, and long copies
  uint32_t long_copies = 0;  // those of them that a thread is copying outside the lock
  uint32_t asked = 0;        // how many ways to find it were tried, the last of which is under way
  std::shared_ptr<link::Peer> peer;
  Status down = Status::ok;  // how the last way there ended
  std::deque<Op*> waiting;   // in order; the front may be partly submitted
  // Of a peer whose table is not shared: its queue takes no more data, and when to ask for room again.
  bool no_room = false;
  uint64_t ask_room_at_ns = 0, ask_room_wait_ns = 0;
  Domain* domain = nullptr;
  const mem::EpEntry* ep_entry = nullptr;  // in the peer's table; null where that is not shared
  Translation translations[kTranslationCount];

  void set_ready(std::shared_ptr<link::Peer> p, uint32_t index, uint32_t generation) {
    peer = std::move(p);
    ep_index = index;
    ep_generation = generation;
    ep_entry = peer->table.valid() ? &peer->table.ep(index) : nullptr;
    down = Status::ok;
    no_room = false;
    for (Translation& t : translations) t = {};
    ready = true;
  }
  // Whether the endpoint's queue takes entries of what is written with data.
  [[nodiscard]] bool takes_data() const noexcept {
    if (ep_entry == nullptr) return !no_room;
    return (ep_entry->flags.load(std::memory_order_acquire) & mem::kEpNoRoom) == 0 ||
           ep_entry->generation.load(std::memory_order_acquire) != ep_generation;
  }
  void set_lost() noexcept {
    ready = false;
    ep_entry = nullptr;
    for (Translation& t : translations) t = {};
  }
};

// The rights that an atomic needs at the target.
constexpr uint32_t want_of(AtomicFamily family, AtomicOp op) noexcept {
  if (family == AtomicFamily::base) return mem::kAtomicWrite;
  return op == AtomicOp::atomic_read ? mem::kAtomicRead : mem::kAtomicRead | mem::kAtomicWrite;
}

// Who of a region's counters hears of an access. A fetching atomic reads for its initiator and modifies the region,
// both; fi_mr(3) fi_mr_bind counts what modifies. An endpoint's counters go by what the initiator asked for.
constexpr uint32_t region_notify(bool read, bool atomic, AtomicOp op) noexcept {
  const bool modifies = atomic ? op != AtomicOp::atomic_read : !read;
  return (read ? mem::kMrNotifyRead : 0) | (modifies ? mem::kMrNotifyWrite : 0);
}

// Spreads `length` bytes over a list of the application's buffers, from byte `offset` of it on. fault: a page failed.
Status scatter(std::span<const iovec> list, uint64_t offset, const std::byte* in, uint64_t length) noexcept;

// One remote access as the caller describes it.
struct RmaArgs {
  OpKind kind = OpKind::write;
  uint64_t dest = 0;  // fi_addr
  std::span<const iovec> local;
  std::span<const wire::RmaRange> remote;
  uint64_t flags = 0;  // operation flags, already merged with the endpoint's defaults
  uint64_t context = 0;
  uint64_t imm = 0;
  bool inject_call = false;  // fi_inject_*: no success completion at all
  uint8_t device = 0;        // bit i: local[i] is a device's memory
};

struct AtomicArgs {
  uint64_t dest = 0;
  AtomicFamily family = AtomicFamily::base;
  AtomicOp op{};
  Datatype datatype{};
  std::span<const iovec> operand;  // lengths in bytes
  std::span<const iovec> compare;
  std::span<const iovec> result;
  std::span<const wire::RmaRange> remote;  // lengths in bytes
  uint64_t flags = 0;
  uint64_t context = 0;
  uint64_t imm = 0;
  bool inject_call = false;
  uint8_t operand_device = 0, compare_device = 0, result_device = 0;  // bit i: that buffer is a device's memory
};

// One descriptor of a vectored call: weft.fi.RMA_DESC.
struct BatchDesc {
  uint64_t local_offset;
  uint64_t length;
  uint64_t dest_addr;
  uint64_t remote_addr;
  uint64_t key;
  int32_t status;
  uint32_t reserved;
};
static_assert(sizeof(BatchDesc) == 48);

enum class Refusal : uint8_t {  // why a call was refused at once
  none = 0,
  cq_full,        // EAGAIN
  tx_full,        // EAGAIN
  not_enabled,    // EOPBADSTATE
  closed,         // EBADF -> EOPBADSTATE
  no_cq,          // ENOCQ
  bad_address,    // EINVAL: fi_addr not in the address vector
  not_connected,  // ENOTCONN: FI_EP_MSG
  length_mismatch,
  too_long,  // EMSGSIZE
  too_many_pieces,
  no_capability,
  forked,
  not_now,  // flag::kOnlyNow: it would take longer than the call
};

struct PostResult {
  Refusal refusal = Refusal::none;
  bool context_used = false;  // a completion with the context was or will be delivered
  uint64_t op_id = 0;         // not zero: under way; buffers are needed until it is done
};

// The endpoint numbers from which the NIC chooses one where the application names none.
struct PidRange {
  uint32_t first = 0x40000000u;
  uint32_t last = 0x7fffffffu;
};

struct EndpointConfig {
  uint64_t caps = 0;
  uint32_t tx_size = 1024;
  uint64_t inject_size = 256;
  uint64_t max_msg_size = ~uint64_t{0} >> 1;
  uint64_t msg_order = 0;
  uint64_t tx_op_flags = 0;
  uint16_t vni = 0;
  bool foreign_key = false;  // its VNI is not the domain's
  bool connected = false;    // FI_EP_MSG: one peer, of connect_to()
  PidRange pids;
};

class Endpoint final : public std::enable_shared_from_this<Endpoint>, private Receiver {
 public:
  Endpoint(Domain* domain, const EndpointConfig& config);

  void bind_cq(std::shared_ptr<CompletionQueue> cq, uint64_t flags);
  void bind_counter(std::shared_ptr<Counter> counter, uint64_t flags);
  void bind_av(std::shared_ptr<AddressVector> av);
  // Claims the identity; without a pid a free one is chosen. Throws EADDRINUSE, ENOAV, ENOCQ, EOPBADSTATE.
  // vnis: under FI_AV_AUTH_KEY, those of its address vector, all of which it answers to; otherwise none.
  uint32_t enable(uint32_t nic, std::optional<uint32_t> pid, std::span<const uint16_t> vnis = {});
  void close() noexcept;
  size_t cancel(uint64_t context);

  // Connecting. What arrives, and what becomes of what was sent, goes to the queue with the token.
  // listens: requests are taken.
  void bind_cm(std::shared_ptr<CmQueue> queue, uint64_t token, bool listens);
  // Posts a message to the endpoint at `to`. EAGAIN-like refusals as for transfers.
  PostResult send_cm(const wire::EpAddress& to, CmKind kind, uint64_t connection, std::span<const std::byte> data);
  // From here on transfers go to this peer, and it alone is admitted. Nothing: to nobody, and nobody is.
  void connect_to(const std::optional<wire::EpAddress>& peer);

  // A peer's bytes as this process has them mapped. While `keep` is held they stay mapped, and the peer hands their
  // place to no other region, even after it closed the one that they were.
  struct Window {
    Status status = Status::again;         // again: the way to the peer, or to the memory, is still being made
    std::byte* pointer = nullptr;          // null where loads and stores do not get there
    std::shared_ptr<Hold> keep = nullptr;  // to be dropped before the NIC
  };
  // want: mem::kRemoteRead, mem::kRemoteWrite. Nobody hears of accesses through it, and closing the region cannot end
  // them.
  Window window(uint64_t dest, uint64_t key, uint64_t addr, uint64_t length, uint32_t want);
  // How the way to a peer ended; ok while it is whole, or was never made.
  Status down_status(uint64_t dest);
  // Operations wait because the peer's completion queue has no room for what they bring.
  bool held_back(uint64_t dest);

  // The data path. HOT; see endpoint.cpp.
  PostResult post(const RmaArgs& asked);
  // One buffer to or from one range: the same as post(), shorter.
  PostResult post_one(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr, uint64_t key,
                      uint64_t flags, uint64_t context, uint64_t imm, bool inject_call);
  PostResult post_atomic(const AtomicArgs& args);
  PostResult post_atomic_slow(const AtomicArgs& asked);
  PostResult post_batch(OpKind kind, std::byte* local, uint64_t local_length, std::span<BatchDesc> descs,
                        uint64_t flags, uint64_t context, bool device = false);

  [[nodiscard]] Domain* domain() const noexcept { return domain_; }
  [[nodiscard]] const EndpointConfig& config() const noexcept { return config_; }
  [[nodiscard]] bool enabled() const noexcept { return state_ == State::enabled; }
  [[nodiscard]] bool closed() const noexcept { return state_ == State::closed; }
  [[nodiscard]] uint32_t outstanding() const noexcept { return outstanding_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  [[nodiscard]] uint32_t generation() const noexcept { return generation_; }
  [[nodiscard]] const wire::EpAddress& address() const noexcept { return address_; }
  [[nodiscard]] const CompletionQueue* tx_cq() const noexcept { return tx_cq_.get(); }
  [[nodiscard]] bool selective() const noexcept { return selective_; }

 private:
  friend class Domain;
  friend class Nic;
  enum class State : uint8_t { created, enabled, closed };
  enum class Direct : uint8_t { done, failed, frames, park, no_room };

  [[nodiscard]] uint32_t table_flags() const noexcept;
  Refusal check_post(uint64_t dest, uint64_t flags, bool inject_call, bool* wants, PeerEp** target,
                     std::shared_ptr<PeerEp>** shared);
  Direct try_direct(PeerEp& target, OpKind kind, const iovec* local, size_t local_count, const wire::RmaRange* remote,
                    size_t remote_count, uint64_t total, uint64_t flags, uint64_t imm, Status* status, bool may_unlock,
                    uint8_t device);
  std::span<const wire::RmaRange> named(std::span<const wire::RmaRange> remote, wire::RmaRange* room) const;
  // Takes what an operation reads out of device memory, and gives it host memory for what it writes there.
  bool stage(Op* op, std::span<const iovec> read_from, std::span<const iovec> written_to, uint8_t device,
             uint64_t total);
  // How the target sees this endpoint: it answers to the VNIs that it and its peers share.
  [[nodiscard]] bool speaks_to(const PeerEp& target) const noexcept {
    return ((target.address.vni ^ config_.vni) & vni_mask_) == 0;
  }
  [[nodiscard]] wire::EpAddress seen_by(const PeerEp& target) const noexcept {
    return {address_.nic, address_.pid, target.address.vni, 0};
  }
  Direct try_direct_atomic(PeerEp& target, const AtomicArgs& args, uint64_t total, Status* status);
  void complete(bool wants, uint64_t context, uint64_t flags, uint64_t len);
  void fail(uint64_t context, uint64_t flags, Status status, std::string text, uint64_t total) noexcept;
  void finish(Op* op) noexcept;  // complete or fail, then forget
  void finish_otherwise(Op* op, const std::shared_ptr<PeerEp>& target) noexcept;
  [[nodiscard]] std::string describe(const char* what, const wire::RmaRange& range, const PeerEp& target,
                                     Status status) const;
  Op* make_op(OpKind kind, std::shared_ptr<PeerEp> target, bool wants, uint64_t flags, uint64_t context, uint64_t imm,
              uint64_t total, bool inject_call);
  bool advance(Op* op);  // true when it left the waiting queue
  bool advance_safely(Op* op) noexcept;
  PostResult post_framed(OpKind kind, void* local, uint64_t length, uint64_t to, uint64_t addr, uint64_t key,
                         uint64_t flags, uint64_t context, uint64_t imm, bool inject_call);
  // False: a page of the caller's buffers failed; op->status says so.
  static bool keep_local(Op* op, std::span<const iovec> local);
  [[gnu::noinline]] PostResult post_one_slow(OpKind kind, void* local, uint64_t length, uint64_t dest, uint64_t addr,
                                             uint64_t key, uint64_t flags, uint64_t context, uint64_t imm,
                                             bool inject_call);
  bool advance_frames(Op* op);
  // Puts an operation behind those that wait for the peer, and moves them on. Returns its number.
  uint64_t queue_op(PeerEp& target, Op* op);
  // Whether an operation that takes longer than the call may begin; sets what make_op() is to report.
  Refusal check_unfinished(uint64_t flags, bool* wants) const;
  // Where a transfer goes: a connected endpoint disregards what the call says.
  [[nodiscard]] uint64_t dest_of(uint64_t dest) const noexcept { return config_.connected ? fixed_dest_ : dest; }
  std::byte* fast_target(PeerEp& target, uint64_t key, uint64_t addr, uint64_t length, uint32_t want) noexcept;
  static void remember(PeerEp& target, const mem::MrView& view, uint64_t key);
  Status send_notice(PeerEp& target, bool read, bool atomic, const wire::RmaRange& range, uint64_t total, bool has_data,
                     uint64_t imm, AtomicOp op = {});
  void count_remote(bool read, bool failed, uint64_t bytes);
  Status submit_request(PeerEp& target, wire::Frame& frame, std::span<const std::byte> payload);
  void ask_for_room(Op* op);
  void on_room() noexcept override;
  // With the domain's lock. What a peer wrote with data; the flag for its answer: 0 or kFrameNoRoom.
  uint8_t receive_data(link::Peer& peer, const CqEntry& entry, bool* over) noexcept;

  Domain* domain_;
  EndpointConfig config_;
  uint64_t short_bytes_max_;  // copied under the lock, and within max_msg_size
  uint64_t atomic_bytes_max_;
  State state_ = State::created;
  bool selective_ = false;
  std::atomic<uint32_t> outstanding_{0};  // operations that have an Op; changed under the lock, read by anyone
  std::atomic<uint32_t> long_copies_{0};
  std::shared_ptr<CompletionQueue> tx_cq_, rx_cq_;
  std::shared_ptr<AddressVector> av_;
  std::shared_ptr<Counter> write_cntr_, read_cntr_, remote_write_cntr_, remote_read_cntr_;
  uint32_t index_ = 0, generation_ = 0;
  bool shut_ = false;         // its peers were told that rx_cq_ has no room ...
  uint64_t shut_number_ = 0;  // ... so many times
  wire::EpAddress address_;
  uint16_t vni_mask_ = 0xffff;  // 0: of several VNIs, the address vector says which peer uses which
  uint16_t raw_keys_;           // not 0: keys are handles of map_raw()
  std::vector<uint16_t> vnis_;  // all that it answers to
  uint64_t fixed_dest_ = ~uint64_t{0};
  std::shared_ptr<CmQueue> cm_;
  bool listens_ = false;
  uint64_t cm_token_ = 0, cm_request_ = 0;  // of the last connection that was asked for
};

class AddressVector {
 public:
  explicit AddressVector(Domain* domain) : domain_(domain) {}
  uint64_t insert(const wire::EpAddress& address);
  bool remove(uint64_t fi_addr);
  void forget(const PeerEp& target);  // with the domain's lock
  [[nodiscard]] std::optional<wire::EpAddress> lookup(uint64_t fi_addr) const;
  [[nodiscard]] uint64_t find(const wire::EpAddress& address) const;  // kKeyNotAvail (FI_ADDR_NOTAVAIL) when unknown
  [[nodiscard]] size_t count() const noexcept { return entries_.size() - free_.size(); }

 private:
  friend class Endpoint;
  friend class Nic;
  void remove_locked(uint64_t fi_addr);
  Domain* domain_;
  std::vector<std::shared_ptr<PeerEp>> entries_;
  std::vector<uint64_t> free_;
  std::unordered_map<wire::EpAddress, uint64_t, wire::EpAddressHash> by_address_;  // also by the name on this host
};

// A registered region. state: disabled -> enabled -> closed.
class MemoryRegion : public std::enable_shared_from_this<MemoryRegion> {
 public:
  MemoryRegion(Domain* domain, std::span<const mem::MrBuffer> buffers, uint32_t slot, uint64_t key, uint32_t access,
               bool remote)
      : domain_(domain), slot_(slot), key_(key), access_(access), remote_(remote) {
    if (buffers.size() == 1) {
      only_ = buffers[0];
    } else {
      several_.assign(buffers.begin(), buffers.end());
    }
  }

  void bind_endpoint(const Endpoint& ep);
  void enable();
  // Takes access away for a while; returns when nobody is copying any more. As close(): false and *why.
  bool disable(std::string* why);
  // Revokes the key, waits until nobody is copying, frees the entry. False when a peer did not finish in time: then the
  // region is as before and *why says who. Call without any lock of the NIC. Of several threads one closes, the others
  // wait for it.
  bool close(std::string* why);

  [[nodiscard]] uint64_t key() const noexcept { return key_; }
  // What peers call its first byte.
  [[nodiscard]] uint64_t base() const noexcept;
  [[nodiscard]] uint32_t access() const noexcept { return access_; }
  [[nodiscard]] bool enabled() const noexcept { return enabled_; }
  // A single-use region whose one operation was done.
  [[nodiscard]] bool used_up() const noexcept;
  [[nodiscard]] bool closed() const noexcept { return life_.load(std::memory_order_acquire) == Life::closed; }
  [[nodiscard]] std::span<const mem::MrBuffer> buffers() const noexcept {
    return several_.empty() && only_ ? std::span(&*only_, 1) : std::span(several_);
  }
  [[nodiscard]] Domain* domain() const noexcept { return domain_; }

 private:
  friend class Nic;
  friend class Domain;
  enum class Life : uint8_t { open, held, closed };
  // One thread at a time enables, disables or closes; others wait for it. False: the region is closed.
  bool hold() noexcept;
  void let_go(Life life) noexcept { life_.store(life, std::memory_order_release); }
  void make_usable();
  bool revoke(std::string* why);

  Domain* domain_;
  std::optional<mem::MrBuffer> only_;  // nearly every region has one buffer: no allocation for it
  std::vector<mem::MrBuffer> several_;
  uint32_t slot_;
  uint64_t key_;
  uint32_t access_;
  bool remote_;  // has an entry in the table
  bool enabled_ = false;
  std::atomic<Life> life_{Life::open};
  std::vector<uint32_t> eps_;  // mem::ep_binding() of the endpoints that it is bound to; none: any of the domain
  struct BoundCounter {
    std::shared_ptr<Counter> counter;
    uint64_t flags;  // kRemoteRead, kRemoteWrite
  };
  std::vector<BoundCounter> counters_;
};

struct RegionExtra {                         // what few regions have
  std::span<const mem::DeviceNote> notes{};  // of the buffers; iface 0: the host's
  const mem::AccessGuard* guard = nullptr;
  std::optional<uint64_t> base;  // under virtual addressing: address of the first byte, where it is not mapped there
};

struct DomainConfig {
  uint32_t nic = 0;
  bool prov_key = false;
  bool virt_addr = false;
  bool raw_keys = false;  // FI_MR_RAW: transfers name regions by handles that map_raw() made
  StatusMap statuses;     // what failed operations are reported as
};

class Domain {
 public:
  Domain(Nic* nic, const DomainConfig& config);
  ~Domain();
  void close() noexcept;

  void lock() noexcept {
    uint64_t word = activity_->word.load(std::memory_order_relaxed);
    // SYNC POINT: this full barrier publishes that we are accessing before any table entry is read (mem/table.hpp).
    if ((word & 1) == 0 && activity_->word.compare_exchange_strong(word, word + 1, std::memory_order_seq_cst))
        [[likely]] {
      fence_after_lock();
      return;
    }
    lock_slow();
    fence_after_lock();
  }
  void unlock() noexcept {
    // SYNC POINT: every access made under the lock is done before the word becomes even.
    activity_->word.store(activity_->word.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  std::shared_ptr<Endpoint> make_endpoint(const EndpointConfig& config);
  // Registers; throws ENOKEY, ENOSPC. `unowned`: bare addresses, whose pages may be missing.
  // kind: mem::kMrSingleUse, mem::kMrPersistent, mem::kMrByOwner.
  std::shared_ptr<MemoryRegion> register_region(std::span<const iovec> buffers, uint64_t access, uint64_t requested_key,
                                                bool unowned, bool enabled, uint32_t kind = 0,
                                                const RegionExtra& extra = {});

  void bind_region_counter(const std::shared_ptr<MemoryRegion>& region, std::shared_ptr<Counter> counter,
                           uint64_t flags);

  // A handle for a peer's key, and back; kKeyNotAvail for a handle that is none. The latter with the lock.
  uint64_t map_raw(uint64_t key);
  bool unmap_raw(uint64_t handle);
  [[nodiscard]] uint64_t mapped_key(uint64_t handle) const noexcept {
    const auto it = raw_keys_.find(handle);
    return it == raw_keys_.end() ? wire::kKeyNotAvail : it->second;
  }

  // What an operation needs until it is done; then the caller owns it again. False: it is done already.
  bool attach(uint64_t op_id, std::span<const uint64_t> cookies);
  [[nodiscard]] bool has_released() const noexcept { return released_count_.load(std::memory_order_relaxed) != 0; }
  std::vector<uint64_t> take_released();

  [[nodiscard]] Nic* nic() const noexcept { return nic_; }
  [[nodiscard]] const DomainConfig& config() const noexcept { return config_; }
  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  struct Statistics {
    uint64_t direct = 0, cma = 0, framed = 0, failed = 0, bytes = 0;
  } statistics;

 private:
  friend class Endpoint;
  friend class AddressVector;
  friend class MemoryRegion;
  friend class Nic;
  void lock_slow() noexcept;
  static void fence_after_lock() noexcept {
#if !defined(__x86_64__)  // where a locked instruction is no full barrier for the loads that follow
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  size_t pump(PeerEp& target) noexcept;  // moves waiting operations on; with the lock
  void release_cookies(Op* op) noexcept;
  void release_context(uint64_t context) noexcept;

  Nic* nic_;
  DomainConfig config_;
  uint32_t index_;
  mem::ActivityWord* activity_;
  OpTable ops_;
  std::vector<uint64_t> released_;
  std::atomic<uint64_t> released_count_{0};
  std::vector<std::weak_ptr<PeerEp>> peer_eps_;
  std::unordered_map<uint64_t, uint64_t> raw_keys_;  // handle -> key
  uint64_t next_handle_ = 0;
};

struct DomainLock {
  explicit DomainLock(Domain* d) noexcept : domain(d) { domain->lock(); }
  ~DomainLock() { domain->unlock(); }
  DomainLock(const DomainLock&) = delete;
  DomainLock& operator=(const DomainLock&) = delete;
  Domain* domain;
};

struct NicStatistics {
  uint64_t direct_ops = 0, cma_ops = 0, framed_ops = 0, failed_ops = 0, bytes = 0;
  uint64_t frames_served = 0, engine_wakes = 0, peers = 0, regions = 0, allocated_bytes = 0;
  uint64_t resting_bytes = 0;  // freed, and kept for peers that have pointers to it
  uint64_t waiting_ops = 0;    // posted, and not yet handed to a link
  uint64_t deferred = 0;       // answers, and frames that wait behind them, for peers that take nothing at the moment
};

class Nic final : public link::FrameSink, public mem::PlaceHolders {
 public:
  struct Parts {  // what the NIC is built on; links are tried in order
    Clock* clock = nullptr;
    Random* random = nullptr;
    link::Waiter* waiter = nullptr;
    mem::Table* table = nullptr;
    mem::SegmentSet* segments = nullptr;
    mem::Devices* devices = nullptr;
    mem::RegistrationCache* cache = nullptr;  // null: none
    std::vector<link::Link*> links;
  };
  Nic(Parts parts, Limits limits)
      : parts_(std::move(parts)), limits_(limits), eps_(mem::kEpCountMax), domains_(mem::kDomainCountMax) {}
  ~Nic() override { stop_engine(); }

  void start_engine();
  void stop_engine() noexcept;
  [[nodiscard]] bool has_engine() const noexcept { return has_engine_.load(std::memory_order_relaxed); }

  // The device allocation around [address, address + length), as the registration cache or the runtimes know it.
  std::optional<mem::DeviceMemory> device_memory(uint64_t address, uint64_t length);
  // One round: frames, connections, waiting operations. Returns how much was done; 0 also when another thread is at it.
  // Connections cost system calls; a polling thread leaves them to the engine where there is one.
  size_t progress(bool events = true);
  // The first page of this process's [address, address + length) that is not there, or not readable.
  std::optional<uint64_t> missing_page(uint64_t address, uint64_t length);
  // The application is at it: while it comes back the engine leaves the links to it, and looks in once a millisecond.
  uint64_t note_app() noexcept {
    const uint64_t polls = app_polls_.load(std::memory_order_relaxed) + 1;
    app_polls_.store(polls, std::memory_order_relaxed);
    return polls;
  }
  // HOT. What a polling thread calls: as cheap as one load while nothing waits.
  size_t poll_from_app() {
    const uint64_t polls = note_app();
    bool ready = waiting_ops_.load(std::memory_order_relaxed) != 0;
    for (link::Link* l : parts_.links) ready |= l->maybe_ready();
    if (!ready && (has_engine() || (polls & 63) != 0)) [[likely]]
      return 0;
    return progress(!has_engine());
  }
  // Before a thread sleeps on an Event: makes sure that somebody serves the NIC meanwhile.
  void prepare_app_sleep();
  // Without an engine thread: the calling thread sleeps in its place, at most timeout_ns.
  void wait_as_engine(int64_t timeout_ns);

  [[nodiscard]] mem::Table& table() noexcept { return *parts_.table; }
  [[nodiscard]] mem::SegmentSet& segments() noexcept { return *parts_.segments; }
  [[nodiscard]] mem::Devices& devices() noexcept { return *parts_.devices; }
  [[nodiscard]] mem::RegistrationCache* cache() noexcept { return parts_.cache; }
  [[nodiscard]] Clock& clock() noexcept { return *parts_.clock; }
  [[nodiscard]] Random& random() noexcept { return *parts_.random; }
  [[nodiscard]] link::Waiter& waiter() noexcept { return *parts_.waiter; }
  [[nodiscard]] const std::vector<link::Link*>& links() const noexcept { return parts_.links; }
  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }
  [[nodiscard]] NicStatistics statistics();
  // How many connections to peers have ended: a change tells a poller to look at its peers.
  [[nodiscard]] uint64_t downs() const noexcept { return downs_.load(std::memory_order_acquire); }

  // What links know of an address: its name on this host, how it is written, why it was not reached.
  [[nodiscard]] std::optional<wire::EpAddress> local_name(const wire::EpAddress& address) const;
  [[nodiscard]] std::string text_of(const wire::EpAddress& address) const;
  [[nodiscard]] std::string explain(const wire::EpAddress& address) const;

  // Around fork(): what the child looks at must be whole.
  void before_fork();
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

  // PlaceHolders: what this process's table and those of its peers say.
  void held_places(std::vector<mem::HeldPlace>& out) override;
  uint64_t holds_stamp() override;

  // FrameSink
  void on_frame(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                std::span<const std::byte> payload) override;
  void on_resolved(const std::shared_ptr<void>& token, Status status, const std::shared_ptr<link::Peer>& peer,
                   uint32_t ep_index, uint32_t ep_generation) override;
  void on_segment(const std::shared_ptr<link::Peer>& peer) override;
  void on_peer_down(const std::shared_ptr<link::Peer>& peer) override;

 private:
  friend class Domain;
  friend class Endpoint;
  friend class MemoryRegion;
  void engine_loop();
  size_t progress_locked(bool events) noexcept;
  size_t pump_all();
  bool serve_write(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                   std::span<const std::byte> payload);
  void serve(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload);
  // Without memory the answer is no_memory: nothing that a peer asks for ends the process or leaves this room.
  void serve_safely(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                    std::span<const std::byte> payload) noexcept;
  void answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& request, Status status,
              std::span<const std::byte> payload, uint8_t room = 0) noexcept;
  Status room_of(const wire::Frame& frame, uint8_t* room) const;
  void on_answer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame,
                 std::span<const std::byte> payload) noexcept;
  Status on_cm(const wire::Frame& frame, std::span<const std::byte> payload);
  uint8_t local_event(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint32_t slot, bool read,
                      uint64_t bytes) noexcept;
  // How the check of this frame's operation ended, if it had one; forgets it with the last frame.
  Status announced(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, uint64_t* total);
  void count_frame() noexcept {  // with the progress lock: one thread at a time
    frames_served_.store(frames_served_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // What waits for a peer that takes nothing: deferred.cpp.
  void defer(const std::shared_ptr<link::Peer>& peer, const wire::Frame& frame, std::span<const std::byte> payload,
             bool serve_again) noexcept;
  size_t retry_deferred() noexcept;
  void forget_deferred(link::Peer& peer) noexcept;
  [[nodiscard]] static bool must_follow(const link::Peer& peer) noexcept;
  // Counts an entry of the peer beyond an endpoint's queue; false: it has had too many since its peers were told.
  static bool count_late(link::Peer& peer, uint32_t ep_index, uint64_t shut_number) noexcept;
  void hang_up(const std::shared_ptr<link::Peer>& peer, Status why) noexcept;
  // Something waits that only progress() can move on, and no peer will ring for it.
  void need_engine() noexcept;
  [[nodiscard]] bool must_look_again() const noexcept {
    return deferred_count_.load(std::memory_order_seq_cst) != 0 || waiting_ops_.load(std::memory_order_seq_cst) != 0;
  }
  uint32_t add_domain(Domain* domain);
  void remove_domain(Domain* domain) noexcept;
  uint64_t next_op() {
    const std::lock_guard objects(objects_mutex_);
    return next_op_;
  }
  // Waits until no access that began before is still running. Empty: nobody; otherwise who did not finish.
  std::string quiesce(uint32_t slot);
  uint32_t begin_long_activity(uint32_t slot) noexcept;
  void end_long_activity(uint32_t at) noexcept;
  // The ways from the first-th on; false: no link reaches it.
  bool resolve(const std::shared_ptr<PeerEp>& target, uint32_t first = 0);

  Parts parts_;
  Limits limits_;
  alignas(kCacheLine) std::atomic<uint64_t> app_polls_{0};
  std::atomic<uint64_t> waiting_ops_{0};  // operations that progress() must move on
  std::atomic<uint64_t> downs_{0};
  alignas(kCacheLine) std::mutex progress_mutex_;
  SpinLock serve_lock_;  // held while a frame accesses a region: closing a region waits for it
  uint32_t busy_rounds_ = 0;
  std::vector<std::shared_ptr<link::Peer>> owed_;  // peers for which something waits
  std::atomic<size_t> deferred_count_{0};          // frames that wait, of all peers; changed with the progress lock
  std::atomic<bool> engine_rests_{false};          // it will not look again unless it is woken
  // Operations of several ranges that a peer has announced: what the check found, until their last frame.
  struct Announced {
    uint64_t op_id;
    uint64_t total;  // bytes of all ranges
    Status status;
  };
  static constexpr size_t kAnnouncedMax = 256;  // a peer; the oldest is forgotten, and nobody but that peer notices
  std::unordered_map<link::Peer*, std::deque<Announced>> announced_;
  mutable std::mutex objects_mutex_;  // eps_, domains_, counted_regions_, next_op_
  std::vector<std::shared_ptr<Endpoint>> eps_;
  std::vector<Domain*> domains_;
  std::unordered_map<uint32_t, std::weak_ptr<MemoryRegion>> counted_regions_;
  uint64_t next_op_ = 1;  // a new domain's first: a late answer to one of a closed domain must not find another
  std::thread engine_;
  std::atomic<bool> has_engine_{false};  // not engine_.joinable(): the engine itself asks while engine_ is assigned
  std::atomic<bool> stopping_{false};
  std::atomic<bool> engine_armed_{false};
  std::atomic<uint32_t> sleepers_{0};  // threads that have armed the doorbell to sleep until it rings
  std::atomic<uint64_t> frames_served_{0}, engine_wakes_{0};
};

}  // namespace weft::nic
