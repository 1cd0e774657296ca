// cpp/nic/rx.hpp: the receive side of one endpoint: the match unit, the memory of unexpected messages, and for each
// flow of a peer the order of its messages.
//
// The caller passes arriving messages with the bytes of their frame, and gets the answer for the sender. Completions,
// pulls (reads of the rest of a rendezvous message from the sender's memory) and notices to senders go to an RxSink.
//
// Callers: any thread. One lock guards the context. Messages are matched and copied under the lock, and the sink is
// called under it, so completions are in the order of matching. Nothing of the domain, and no peer, waits for this
// lock. Frames of one connection arrive in order and one at a time, as the progress lock has it.
//
// Flow control: a message that cannot be kept is refused, and every later one of its flow is refused too until the
// sender sends it again. So the order is kept, and only messages that are kept are acknowledged. A credited message is
// never refused: one that arrives behind a refused message is held early, outside the match unit, until its turn.
// Design: docs/design/messages.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/lock.hpp"
#include "base/status.hpp"
#include "nic/match.hpp"
#include "nic/rx_buffers.hpp"
#include "nic/rx_mode.hpp"
#include "wire/address.hpp"
#include "wire/brief.hpp"
#include "wire/frame.hpp"

namespace weft::link {
class Peer;
}

namespace weft::nic {

constexpr uint32_t kNoSender = ~uint32_t{0}, kNoExtra = ~uint32_t{0}, kNoIndex = ~uint32_t{0};

// Flags of an RxMessage: those of its frame.
namespace rx_flag {
constexpr uint16_t kTagged = wire::kMessageTagged, kHasData = wire::kMessageHasData,
                   kRendezvous = wire::kMessageRendezvous, kCredited = wire::kMessageCredited,
                   kFirst = wire::kMessageFirst,  // makes a record
    kUnordered = wire::kMessageUnordered,         // no sequence, and never kept
    kWantsMatch = wire::kMessageWantsMatch, kWhole = wire::kMessageWhole;
// Of a kept message; no frame has it. The bytes of a whole message are on their way.
constexpr uint16_t kLanding = 0x100;
}  // namespace rx_flag
// In Receive::flags: the sink stores the bytes, because the receive has several buffers. Bits below are the caller's.
constexpr uint64_t kRxScattered = 1ull << 63;

// A message as its frame has it. The bytes of an eager message, or the first bytes of a rendezvous, come beside it.
struct RxMessage {
  uint64_t peer = 0;  // number of the connection: not 0, and no other connection has it later
  wire::EpAddress source;
  uint32_t sender = kNoSender;  // number of the flow's record; of its first message: the sender's fi_addr, or kNoIndex
  uint32_t sequence = 0;
  uint64_t tag = 0, data = 0, length = 0;
  uint64_t key = 0;    // rendezvous, whole: the sender's buffer
  uint64_t op_id = 0;  // the sender's operation
  uint16_t flags = 0;
};

enum class RxAnswer : uint8_t {
  none,      // credited: there is no answer
  done,      // arrived, and the sender's operation ends
  arrived,   // done() follows when the message has been matched, or its bytes pulled
  refused,   // flow control, or RNR: send it again
  closed,    // the endpoint is closed
  broken,    // breaks the protocol: end the connection
  no_memory  // for a record, or for a credited message: end the connection
};
struct RxReply {
  RxAnswer answer = RxAnswer::none;
  uint32_t sender = kNoSender;  // the flow's number
  uint32_t credits = 0;         // further messages that the sender may send as credited ones
};

// The end of a receive, or the result of a peek.
struct RxCompletion {
  uint64_t context = 0;
  uint64_t flags = 0;         // of the Receive
  uint32_t extra = kNoExtra;  // of the Receive; a peek has none
  uint64_t object = 0;        // of the Receive
  uint64_t buffer = 0;        // address of the message's first byte
  uint64_t length = 0;        // stored bytes; of a peek: the message's length
  uint64_t cut = 0;           // bytes without room
  uint64_t tag = 0, data = 0;
  wire::EpAddress source;
  uint32_t index = kNoIndex;  // the fi_addr by which the sender names itself
  Status status = Status::ok;
  bool tagged = false, has_data = false;
  bool multi = false;       // of a receive for several messages
  bool multi_last = false;  // the last completion of that buffer
  bool ends = false;        // the receive's last completion. Not of a peek
};

// WEFT_CXI_REORDER: bytes that a frame has brought, and that are not in the receive's buffer yet.
struct RxCarried {
  std::vector<std::byte> bytes;
  bool begun = false;  // some packets of the message are in the buffer
  uint64_t due_ns = 0;

  // null: out of memory.
  static std::shared_ptr<RxCarried> make(std::span<const std::byte> bytes) noexcept try {
    auto made = std::make_shared<RxCarried>();
    made->bytes.assign(bytes.begin(), bytes.end());
    return made;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
};

// The rest of a message: `bytes` from `from` on in the sender's buffer, to `to`. The sink passes the pull to pulled()
// when the bytes have arrived. op_id 0: no sender waits for that.
struct RxPull {
  uint64_t peer = 0;  // may have ended
  uint64_t key = 0, op_id = 0;
  uint64_t from = 0, to = 0, bytes = 0;
  Posted* posted = nullptr;
  RxCompletion completion;
  std::shared_ptr<RxCarried> carried = nullptr;  // the sink stores these bytes too, in front of `to`
  bool eager = false;                            // of a whole message, not of a rendezvous
  // A whole message that no receive had taken. Without `posted` its bytes go into the memory of such messages; with
  // it they are there, from `lies` on.
  Unexpected* kept = nullptr;
  uint64_t lies = 0;
  // A copy that the sender shares (shared_copy.cpp) and has not ended: its number, how our part ended, and its peer.
  uint32_t shared = 0;
  Status shared_status = Status::ok;
  std::shared_ptr<link::Peer> helper = nullptr;
  uint64_t give_up_ns = 0;  // of a helper that is lost
  bool alone = false;       // the sender could not copy
};

// Calls of the context, under its lock: they must not call the context, and take only locks below it.
class RxSink {
 public:
  // True: no room for further completions. Messages are refused until resume().
  virtual bool is_full() noexcept = 0;
  // Stores bytes of a message in a receive of several buffers, `offset` bytes behind its start. False: a page failed.
  virtual bool store(uint32_t extra, uint64_t offset, std::span<const std::byte> bytes) noexcept = 0;
  virtual void completed(const RxCompletion& completion) noexcept = 0;
  // HOT. The same for a receive of one buffer and one message, which is in the buffer. The receive is released already,
  // and its entry keeps its content during the call. source, index: of the flow.
  virtual void received(const Posted& receive, const wire::BriefView& message, const wire::EpAddress& source,
                        uint32_t index) noexcept;
  virtual void pull(const RxPull& pull) noexcept = 0;  // queues the pull
  // Tells a sender that was answered `arrived` that its operation ends. bytes: of its message that were taken.
  virtual void done(uint64_t peer, uint64_t op_id, uint64_t bytes) noexcept = 0;
  // The same for a message that no receive can have: the endpoint closes, or the bytes of a whole message failed to
  // come.
  virtual void lost(uint64_t peer, uint64_t op_id, Status why) noexcept = 0;
  // A receive ends without a completion, because the endpoint closes. multi: of a buffer for several messages, whose
  // earlier completions may still wait to be read.
  virtual void dropped(uint64_t context, uint64_t object, bool multi) noexcept = 0;
  // RxContext::settle() has to be called soon, from a thread that makes progress.
  virtual void unsettled() noexcept = 0;
  virtual uint64_t now_ns() noexcept = 0;
  // Only with Config::traced: a message has found no receive, and is kept.
  virtual void kept(const RxMessage&) noexcept {}
  // Only with Config::traced: settle() has ended a change of the match mode, which nobody can see yet.
  virtual void changed(const RxMode::Statistics&) noexcept {}
  // The flow may send the refused message again.
  // op_id: of a refused message.
  virtual void ready(uint64_t peer, uint64_t op_id, uint32_t sender) noexcept = 0;

 protected:
  ~RxSink() = default;
};

class RxContext {
 public:
  struct Config {
    MatchUnit::Limits limits;
    RxBuffers::Config buffers;
    uint32_t credited_bytes_max = 256;  // of a credited message
    uint32_t credits = 32;              // of one flow
    uint32_t flows_max = 4096;          // records of one connection
    bool relaxed = false;               // the packets of a message come into the buffer in any order: RxPull::carried
    uint64_t seed = 0;                  // for the match unit
    RxModeConfig mode;
    RxBuffers::Config requests;  // buffers of messages in software
    // Time for which a receive waits for a list entry before it fails (FI_PROTO_CXI_RNR); 0: by the mode.
    uint64_t append_retry_ns = 0;
    bool traced = false;  // the sink hears of kept messages and of changes of the mode
  };
  RxContext(const Config& config, RxSink* sink)
      : config_(config),
        sink_(sink),
        match_(config.limits, config.seed),
        mode_(config.mode),
        buffers_(config.mode.mode == MatchMode::software ? config.requests : config.buffers) {}
  RxContext(const RxContext&) = delete;
  RxContext& operator=(const RxContext&) = delete;

  // Before anything arrives: takes the list entries that every endpoint needs. False: the service has too few.
  [[nodiscard]] bool open() noexcept;

  // HOT.
  RxReply arrive(const RxMessage& message, std::span<const std::byte> bytes) noexcept;
  // HOT. A credited message in its short form, from a connection's number: the source is that of the flow's record.
  RxAnswer arrive_brief(uint64_t peer, const wire::BriefView& brief) noexcept;
  // The address of the flow's sender; nullopt: the connection has no such flow.
  std::optional<wire::EpAddress> source_of_flow(uint64_t peer, uint32_t sender) noexcept;
  // Further credited messages that the flow's sender may send; 0: the connection has no such flow.
  uint32_t credits_of_flow(uint64_t peer, uint32_t sender) noexcept;
  enum class Post : uint8_t { ok, full, closed, changing, no_entry };
  // HOT. Posts a receive; completes it at once if an unexpected message matches. One with `more` waits for the next
  // one without it, for a peek, or until as many wait as the mode's size: as on a queue without a doorbell.
  // full: there are posted_max receives, or no memory. changing: the match mode changes. no_entry: the service has no
  // list entry for it.
  // from: only messages of this address; Pattern::source is of no use outside the context.
  Post post(const Receive& receive, const wire::EpAddress* from = nullptr) noexcept;
  // A pull has ended. ok: all its bytes are there.
  void pulled(const RxPull& pull, Status status) noexcept;
  // Completes the oldest receive with this context that has no message, as canceled. False: there is none.
  bool cancel(uint64_t context) noexcept;

  // FI_PEEK: reports the oldest unexpected message that matches. claim: reserves it for receive_claimed() with the same
  // context; discard: ends it. missing: nothing matches. full: no memory, or posted_max.
  enum class Peek : uint8_t { look, claim, discard };
  enum class Found : uint8_t { found, missing, full, closed, changing };
  Found peek(const Pattern& what, Peek how, uint64_t context, uint64_t flags,
             const wire::EpAddress* from = nullptr) noexcept;
  // FI_CLAIM: receives the message that receive.context has claimed, or (discard) ends it. missing: it has claimed
  // none.
  Found receive_claimed(const Receive& receive, bool discard) noexcept;

  // Flows that were refused may send again, for as long as there is room. The caller has raised a limit or freed
  // memory.
  void set_limits(const MatchUnit::Limits& limits) noexcept;
  // There is room for completions again: refused flows may send.
  void resume() noexcept;
  // Messages of the flow do not reach the endpoint any more (its link is down): all of them are answered `closed`.
  void cut(uint64_t peer, uint32_t sender) noexcept;
  // The flow has ended at its sender.
  void end_flow(uint64_t peer, uint32_t sender) noexcept;
  // The connection has ended, and with it its flows. Messages that have arrived stay.
  void peer_down(uint64_t peer) noexcept;
  // Ends a change of the match mode, and posts receives that waited for a list entry. True: the mode has changed.
  bool settle() noexcept;
  // Discards receives and messages without completions. Pulls under way still end with pulled(). Once.
  void close() noexcept;

  struct Statistics {
    MatchUnit::Statistics match;
    RxBuffers::Statistics buffers;
    size_t flows = 0, flows_by_index = 0;  // flows_by_index: whose sender names itself by its fi_addr
    size_t sources = 0;                    // addresses that have a number
    uint64_t matched = 0;                  // messages that found a posted receive
    uint64_t unexpected = 0;               // messages that were kept
    uint64_t refused = 0;
    size_t early = 0;  // credited messages behind a refused one
    RxMode::Statistics mode;
    size_t waiting = 0;            // receives that wait for a list entry
    uint64_t append_attempts = 0;  // attempts to post one of these
  };
  Statistics statistics() noexcept;
  // Messages that no receive has taken, as a peek would report them: untagged ones first, in order of arrival. At most
  // `max` of them; *total: their number. Throws std::bad_alloc.
  std::vector<RxCompletion> unexpected_messages(size_t max, size_t* total);
#if !defined(NDEBUG)
  void check();  // check.cpp
#endif

 private:
  static constexpr size_t kSourcesMore = 4096;

  // A flow of a peer.
  struct alignas(kCacheLine) Sender {
    uint64_t peer = 0;  // 0: the record is unused
    wire::EpAddress address;
    uint32_t source = 0;
    uint32_t index = kNoIndex;
    uint32_t expected = 0;  // sequence of the next message
    uint32_t early = 0;     // credited messages held behind a refused one
    uint32_t credits = 0;   // given and not used
    bool refusing = false;  // the expected message was refused
    bool cut = false;
    uint64_t refused_op = 0;
    bool told = false;  // ready() has been called since
  };
  // In front of an unexpected message's bytes.
  struct alignas(kCacheLine) Parked {
    uint64_t peer, key, op_id;
    wire::EpAddress source;
    uint32_t buffer;
    uint64_t eager;  // bytes that are here
    uint32_t epoch;  // for RxMode::taken()
    uint32_t index;
    uint16_t flags;
  };
  static_assert(sizeof(Parked) == kCacheLine);
  // Behind the bytes of a whole message.
  struct alignas(kCacheLine) Landing {
    Match match;                 // of the receive that took the message while it landed; posted null: none did
    Status status = Status::ok;  // how the landing ended
  };
  static_assert(sizeof(Landing) == kCacheLine);
  // A credited message that waits for its turn.
  struct Early {
    RxMessage message;
    std::vector<std::byte> bytes;
  };

  uint32_t source_of(const wire::EpAddress& address);
  [[gnu::noinline]] void forget_sources();
  RxAnswer admit(const RxMessage& message, uint32_t* number) noexcept;
  [[gnu::noinline]] RxAnswer add_flow(const RxMessage& message, uint32_t* number) noexcept;
  RxAnswer take_credited(Sender* from, const RxMessage& message, std::span<const std::byte> bytes) noexcept;
  RxAnswer take_in(const RxMessage& message, const Sender& from, std::span<const std::byte> bytes) noexcept;
  RxAnswer keep(const RxMessage& message, const Sender& from, Arrival& arrival,
                std::span<const std::byte> bytes) noexcept;
  static RxMessage message_of(uint64_t peer, const Sender& from, const wire::BriefView& brief) noexcept;
  static Arrival arrival_of(const RxMessage& message, const Sender& from) noexcept;
  [[gnu::noinline]] RxAnswer hold_early(const RxMessage& message, std::span<const std::byte> bytes) noexcept;
  [[gnu::noinline]] bool release_early(uint32_t number) noexcept;
  bool deliver(const Match& match, const RxMessage& message, uint32_t index, std::span<const std::byte> bytes) noexcept;
  void end(Posted* posted, RxCompletion& completion) noexcept;
  Post post_locked(const Receive& receive) noexcept;
  Post post_now(const Receive& receive) noexcept;
  [[gnu::noinline]] Post hold(const Receive& receive) noexcept;
  bool ring() noexcept;  // posts the held receives; false: the mode changes, and the rest is held
  Post append(const Receive& receive) noexcept;
  [[gnu::noinline]] Post wait_for_entry(const Receive& receive) noexcept;
  [[gnu::noinline]] bool cancel_waiting(uint64_t context) noexcept;
  static RxCompletion ended(const Receive& receive) noexcept;
  static RxCompletion completion_of(const Match& match, const RxMessage& message, uint32_t index) noexcept;
  bool claim(Unexpected* message, uint64_t context) noexcept;
  void receive_parked(const Match& match) noexcept;
  void forget(Unexpected* message) noexcept;
  void drop(Unexpected* taken) noexcept;
  // rx_land.cpp: eager messages of several frames.
  [[gnu::noinline]] RxBuffers::Room room_to_land(const RxMessage& message) noexcept;
  [[gnu::noinline]] void land(Unexpected* message) noexcept;
  [[gnu::noinline]] void receive_whole(const Match& match) noexcept;
  [[gnu::noinline]] void pulled_whole(const RxPull& pull, Status status) noexcept;
  void landed(Unexpected* message, Status status) noexcept;
  static Landing& landing(const Unexpected& u) noexcept;
  [[gnu::noinline]] void tell_ready() noexcept;
  void drop_flow(uint32_t number) noexcept;
  static Parked& parked(const Unexpected& u) noexcept;
  static RxMessage message_of(const Unexpected& u) noexcept;
  static RxCompletion seen(const Unexpected& u, uint64_t context, uint64_t flags) noexcept;

  Config config_;
  RxSink* sink_;
  RankedSpin<lock_rank::kRx> lock_;
  bool closed_ GUARDED_BY(lock_) = false;
  MatchUnit match_ GUARDED_BY(lock_);
  RxMode mode_ GUARDED_BY(lock_);
  RxBuffers buffers_ GUARDED_BY(lock_);
  std::vector<Sender> senders_ GUARDED_BY(lock_);
  std::vector<uint32_t> senders_free_ GUARDED_BY(lock_);
  size_t indexed_ GUARDED_BY(lock_) = 0;  // senders that have an index
  // The numbers that stand for addresses in Pattern::source and Arrival::source. forget_sources() frees those that
  // nothing uses when there are sources_kept_.
  std::unordered_map<wire::EpAddress, uint32_t, wire::EpAddressHash> sources_ GUARDED_BY(lock_);
  std::vector<uint32_t> sources_free_ GUARDED_BY(lock_);
  uint32_t source_numbers_ GUARDED_BY(lock_) = 0;  // that were ever given
  size_t sources_kept_ GUARDED_BY(lock_) = kSourcesMore;
  std::unordered_map<uint64_t, uint32_t> flows_of_ GUARDED_BY(lock_);  // records of each connection
  // By sender, in the order of arrival. Only under flow control; a sender has at most as many as it had credits, and
  // its list alone is searched: a peer with thousands of flows would otherwise make each search as long as all lists.
  std::unordered_map<uint32_t, std::vector<Early>> early_ GUARDED_BY(lock_);
  size_t early_count_ GUARDED_BY(lock_) = 0;
  bool untold_ GUARDED_BY(lock_) = false;  // a flow was refused, and ready() not called since
  uint64_t matched_ GUARDED_BY(lock_) = 0, kept_ GUARDED_BY(lock_) = 0, refused_ GUARDED_BY(lock_) = 0;
  size_t copies_ GUARDED_BY(lock_) = 0;                 // pulls to and from the memory of kept messages
  std::vector<Unexpected*> claimed_ GUARDED_BY(lock_);  // by FI_CLAIM
  // A receive that waits for a list entry.
  struct Waiting {
    Receive receive;
    uint64_t until_ns;
  };
  std::deque<Waiting> waiting_ GUARDED_BY(lock_);
  std::deque<Receive> held_ GUARDED_BY(lock_);  // with FI_MORE, until a receive without it
  uint64_t append_attempts_ GUARDED_BY(lock_) = 0;
  uint64_t events_told_ GUARDED_BY(lock_) = 0;  // changes of the mode that settle() has reported
};

}  // namespace weft::nic
