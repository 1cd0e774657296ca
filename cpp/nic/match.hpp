// cpp/nic/match.hpp: the match unit of one receive context: posted receives and unexpected messages.
//
// A message goes to the receive that was posted first among those that match; a receive takes the message that arrived
// first among those that it matches. The unit knows neither endpoints nor links nor the bytes of messages: the caller
// moves data, reports completions, and returns each entry that a call has handed out.
//
// Callers: not thread-safe. The lock of the receive context that owns the unit guards every call.
// Cost: independent of the number of entries, except:
//  * Receives with ignore masks that are not 0: the first kMaskedShapes combinations of (mask, source given or any) in
//    use at a time are hashed, and a message looks each of them up. Receives of further combinations are kept in one
//    list, and a message is compared with those posted before the best hashed match.
//  * A receive that ignores bits of the tag, or takes a tag from any source, looks through the unexpected messages in
//    order of arrival. If its combination does so often, messages are indexed for the combination, up to
//    kMaskIndexes combinations at a time; making an index costs one pass, and is repaid by the passes that it saves.
//    Never a pass: tag and source given; everything ignored.
//  * cancel() by context: the first cancel indexes the receives by context, and the index is kept while cancels go on.
// Memory: entries come from two pools that grow up to the limits and are kept.
// Source: fi_tagged(3), fi_msg(3), fi_cxi(7) "Messaging".
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/cache.hpp"
#include "nic/lists.hpp"

namespace weft::nic {

constexpr uint64_t kAnySource = ~uint64_t{0};

// What a receive or a peek asks for. Sources are numbers that the receive context gives to senders.
struct Pattern {
  uint64_t tag = 0;
  uint64_t ignore = 0;  // bits of the tag that need not be equal
  uint64_t source = kAnySource;
  bool tagged = false;  // untagged: tag and ignore are not looked at
};

struct Receive {
  Pattern what;
  uint64_t address = 0, length = 0;
  uint64_t context = 0;
  uint64_t flags = 0;     // the caller's
  uint64_t min_left = 0;  // multi: the buffer is retired when less room than this is left
  uint32_t extra = 0;     // the caller's
  uint64_t object = 0;    // the caller's, of a receive for one message
  bool multi = false;     // FI_MULTI_RECV: takes messages until the room is used up
  bool more = false;      // FI_MORE: waits for a receive without it
};

// A message that arrives.
struct Arrival {
  uint64_t tag = 0;
  uint64_t source = 0;
  uint64_t length = 0;
  uint64_t data = 0;    // remote CQ data
  uint64_t cookie = 0;  // the caller's: where the message's bytes are
  uint16_t flags = 0;   // the caller's
  bool tagged = false;
};

// A posted receive. fresh: made, and not in the lists. listed: messages can match it. retired: it takes no more
// messages. canceled: the same, by cancel().
struct alignas(kCacheLine) Posted {
  enum class State : uint8_t { fresh, listed, retired, canceled };

  // The first line is all that a search for a match reads.
  KeyLink by_key;  // in the list of receives that are not hashed: next and prev are its neighbours
  uint64_t tag, ignore, source;
  uint64_t sequence;   // in the order of posting
  uint64_t length;     // of the buffer
  uint32_t under_way;  // messages that it has taken and end_use() has not ended
  uint8_t shape;       // the combination of mask and source under which it is hashed, or MatchUnit::kUnhashed
  State state;
  bool tagged, multi;

  KeyLink by_context;
  uint64_t context, address;
  uint64_t used;  // bytes of the buffer that messages have taken
  union {
    uint64_t min_left;  // multi
    uint64_t object;    // others
  };
  uint64_t flags;
  uint32_t extra, id;

  [[nodiscard]] Pattern pattern() const noexcept { return {tag, ignore, source, tagged}; }
  [[nodiscard]] uint64_t callers_object() const noexcept { return multi ? 0 : object; }
};
static_assert(sizeof(Posted) == 2 * kCacheLine && offsetof(Posted, by_context) == kCacheLine);

// A message that no receive has taken. listed: a receive can take it. claimed: FI_CLAIM has reserved it for a context.
// taken: it is the caller's, until release().
struct alignas(kCacheLine) Unexpected {
  enum class State : uint8_t { listed, claimed, taken };
  static constexpr size_t kLinkCount = 4;

  uint64_t tag, source, length, data, cookie;
  uint64_t claimed_by;      // claimed: the context
  uint32_t earlier, later;  // in order of arrival
  uint32_t id;
  uint16_t flags;
  State state;
  bool tagged;

  KeyLink by[kLinkCount];  // [0]: by tag and source, or claimed by context; further: by a mask's tag bits
};
static_assert(sizeof(Unexpected) == 2 * kCacheLine && offsetof(Unexpected, by) == kCacheLine);

// A message and the receive that takes it. `stored` of its bytes go to [offset, offset + stored) of the buffer, and
// `cut` do not fit. last: the receive takes no more messages.
struct Match {
  Posted* posted = nullptr;
  Unexpected* unexpected = nullptr;  // taken; null: the message has just arrived
  uint64_t offset = 0, stored = 0, cut = 0;
  bool last = false;
};

class MatchUnit {
 public:
  // Entries that may exist at a time, those that the caller has not released included.
  struct Limits {
    uint32_t posted_max = ~uint32_t{0} >> 1;
    uint32_t unexpected_max = ~uint32_t{0} >> 1;
  };
  static constexpr size_t kMaskedShapes = 12;
  static constexpr size_t kMaskIndexes = Unexpected::kLinkCount - 1;
  static constexpr uint8_t kUnhashed = 0xff;

  // seed: for the hashes. Peers choose tags, so a seed that they know lets them put many keys into one bucket.
  MatchUnit(const Limits& limits, uint64_t seed) noexcept;
  MatchUnit(const MatchUnit&) = delete;
  MatchUnit& operator=(const MatchUnit&) = delete;

  // ---- a message arrives ----
  // HOT. Finds the receive that takes the message. Touches two cache lines of that receive, the bucket of each shape in
  // use, and the receive's neighbours with equal keys. False: no receive matches; keep() the message, or refuse it.
  bool match(const Arrival& message, Match* out) noexcept;
  // HOT. The same in two steps: the receive that match() would give the message, which stays listed; null: none.
  Posted* find_posted(bool tagged, uint64_t tag, uint64_t source) noexcept;
  // HOT. A receive for one message is done with: out of the lists, and released. The entry's content stays until the
  // next post().
  void finish(Posted* posted) noexcept {
    assert(!posted->multi && posted->under_way == 0 && "no other message has the receive");
    unlist(posted, Posted::State::retired);
    posted_.give(posted);
  }
  // Keeps a message that match() has just refused. Null: there are unexpected_max, or no memory. promised: the receiver
  // has promised to take the message, so the limit does not count.
  Unexpected* keep(const Arrival& message, bool promised = false) noexcept;

  // ---- a receive is posted ----
  // Makes a receive, which the caller then passes to take_unexpected() until that returns false. Null: there are
  // posted_max, or no memory.
  Posted* post(const Receive& receive) noexcept;
  // Gives the receive the oldest unexpected message that matches. False: the receive is retired already, or there is no
  // such message, and the receive is listed from now on.
  bool take_unexpected(Posted* posted, Match* out) noexcept;

  // Gives a receive, which post() has just made, a message that is the caller's: take() or take_claimed().
  void give(Posted* posted, Unexpected* taken, Match* out) noexcept {
    assert(taken->state == Unexpected::State::taken && posted->state == Posted::State::fresh);
    out->unexpected = taken;
    use(posted, taken->length, out);
  }

  // ---- ends ----
  // One message of match() or take_unexpected() is done with. True: the receive takes no more messages and this was the
  // last under way, so the caller reports the end of the buffer and calls release().
  bool end_use(Posted* posted) noexcept {
    assert(posted->under_way != 0 && "a message of the receive is under way");
    --posted->under_way;
    return posted->under_way == 0 && posted->state > Posted::State::listed;
  }
  // Ends the oldest listed receive with this context, or returns null. If no message is under way (under_way == 0), the
  // caller releases the receive; else the last end_use() returns true.
  Posted* cancel(uint64_t context) noexcept;
  void cancel(Posted* posted) noexcept;
  void release(Posted* posted) noexcept {
    assert(posted->under_way == 0 && posted->state != Posted::State::listed && "no message can match the receive");
    posted_.give(posted);
  }
  void release(Unexpected* message) noexcept {
    assert(message->state == Unexpected::State::taken && "the message is the caller's");
    unexpected_.give(message);
  }

  // ---- peeking (FI_PEEK, FI_CLAIM, FI_DISCARD) ----
  // The oldest unexpected message that matches, or null. The message stays.
  Unexpected* peek(const Pattern& what) noexcept { return find(what); }
  // Takes a listed message out of the lists; the caller releases it. FI_PEEK with FI_DISCARD: peek(), take(),
  // release().
  void take(Unexpected* message) noexcept;
  // Reserves a listed message for take_claimed() with the same context; no receive finds it any more.
  // False: no memory, and nothing has changed.
  bool claim(Unexpected* message, uint64_t context) noexcept;
  // The oldest message claimed for the context, out of the lists; null: there is none. The caller releases it.
  Unexpected* take_claimed(uint64_t context) noexcept;

  // ---- looking ----
  // Listed messages in order of arrival, untagged ones first; claimed messages are not included.
  template <typename Visit>
  void each_unexpected(Visit&& visit) {
    for (const ArrivalList& list : arrivals_) {
      for (uint32_t id = list.first, later; id != kNoEntry; id = later) {
        later = unexpected_[id].later;  // visit() may take the message
        visit(unexpected_[id]);
      }
    }
  }
  // Listed receives in the order of posting. Throws std::bad_alloc.
  [[nodiscard]] std::vector<Posted*> listed();

  struct Statistics {
    size_t posted = 0;      // listed receives
    size_t unexpected = 0;  // listed messages
    size_t claimed = 0;
    size_t posted_used = 0, unexpected_used = 0;  // entries of the pools
    size_t unhashed = 0;    // of the listed receives, those that messages are compared with in turn
    uint64_t compared = 0;  // entries compared in turn, since the unit was made
    size_t indexes = 0;     // of unexpected messages by the tag bits of a mask
    uint64_t indexes_made = 0;
  };
  [[nodiscard]] Statistics statistics() const noexcept;
  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }
  // Entries beyond a lower limit stay.
  void set_limits(const Limits& limits) noexcept { limits_ = limits; }
  // Makes memory in advance; false: no memory.
  bool reserve(size_t posted, size_t unexpected) noexcept;
#if !defined(NDEBUG)
  void check() const;  // check.cpp
#endif

 private:
  // A combination of ignore mask and source given or any. The first four always exist.
  enum : uint8_t { kTaggedFrom = 0, kTaggedAny = 1, kUntaggedFrom = 2, kUntaggedAny = 3, kFixedShapes = 4 };
  static constexpr size_t kShapeCount = kFixedShapes + kMaskedShapes;
  struct Shape {
    uint64_t ignore = 0;
    bool any_source = false;
    uint8_t index = kUnhashed;  // in indexes_: of unexpected messages for this shape
    uint32_t posted = 0;        // listed receives of this shape
    uint64_t compared = 0;      // messages compared in turn for this shape; see worth_an_index()
  };
  // Unexpected messages, tagged or untagged, in order of arrival.
  struct ArrivalList {
    uint32_t first = kNoEntry, last = kNoEntry;
    size_t count = 0;
  };
  struct KeyOf {
    KeyLink& operator()(Posted& p) const noexcept { return p.by_key; }
    const KeyLink& operator()(const Posted& p) const noexcept { return p.by_key; }
  };
  struct ContextOf {
    KeyLink& operator()(Posted& p) const noexcept { return p.by_context; }
    const KeyLink& operator()(const Posted& p) const noexcept { return p.by_context; }
  };
  struct LinkNumber {
    uint8_t i = 0;
    KeyLink& operator()(Unexpected& u) const noexcept { return u.by[i]; }
    const KeyLink& operator()(const Unexpected& u) const noexcept { return u.by[i]; }
  };
  using UnexpectedIndex = KeyIndex<Unexpected, LinkNumber>;
  // Unexpected messages by the tag bits and source of one shape.
  struct ShapeIndex {
    explicit ShapeIndex(Pool<Unexpected>& pool, uint8_t link) noexcept : keys(pool, LinkNumber{link}) {}
    UnexpectedIndex keys;
    uint8_t shape = kUnhashed;
    bool used = false;        // since the list of messages was last empty
    uint64_t unused_for = 0;  // comparisons for other shapes since the last use
  };

  [[nodiscard]] uint32_t hash(uint64_t what, uint64_t tag, uint64_t source) const noexcept;
  [[nodiscard]] uint8_t shape_of(const Pattern& what) noexcept;
  [[gnu::noinline]] uint8_t masked_shape(const Pattern& what) noexcept;
  [[gnu::noinline]] Posted* find_unhashed(uint64_t tag, uint64_t source, Posted* best) noexcept;
  void use(Posted* posted, uint64_t length, Match* out) noexcept;
  void list(Posted* posted) noexcept;
  void unlist(Posted* posted, Posted::State state) noexcept;
  void list_context(Posted* posted) noexcept;
  [[gnu::noinline]] void make_contexts() noexcept;
  Unexpected* find(const Pattern& what) noexcept;
  [[gnu::noinline]] Unexpected* find_in_turn(const Pattern& what) noexcept;
  void append(ShapeIndex& index, Unexpected* message) noexcept;
  void make_index(uint8_t shape) noexcept;
  void drop(ShapeIndex& index) noexcept;
  void drop_unused() noexcept;

  Limits limits_;
  uint64_t seeds_[2];
  uint64_t sequence_ = 0;
  std::array<uint32_t, 2> active_{};  // untagged, tagged: shapes with listed receives, as bits
  std::array<Shape, kShapeCount> shapes_{};
  uint32_t unhashed_first_ = kNoEntry, unhashed_last_ = kNoEntry;
  size_t listed_ = 0, unhashed_ = 0, claimed_ = 0;
  // Most programs never cancel, and the index by context would cost each message two cache misses.
  bool contexts_made_ = false;
  bool contexts_used_ = false;             // since the list of receives was last empty
  uint8_t next_shape_ = kFixedShapes;      // where the search for a shape to replace begins
  std::array<ArrivalList, 2> arrivals_{};  // untagged, tagged
  uint64_t compared_ = 0, indexes_made_ = 0;
  uint32_t indexed_ = 0;  // shapes that have an index
  Pool<Posted> posted_;
  Pool<Unexpected> unexpected_;
  KeyIndex<Posted, KeyOf> by_key_;
  KeyIndex<Posted, ContextOf> by_context_;
  UnexpectedIndex exact_;   // by tag and source
  UnexpectedIndex claims_;  // by context
  std::array<ShapeIndex, kMaskIndexes> indexes_;
};

}  // namespace weft::nic
