// cpp/nic/match.cpp: the match unit: hashed lists of receives and messages, and the rare searches in turn.
#include "nic/match.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <new>
#include <utility>

namespace weft::nic {

namespace {

// Searches in turn that compare fewer messages than this cost about as much as looking into an index.
constexpr uint64_t kCheapSearch = 32;
// An index is made once searches in turn have made this many comparisons for each message in the list. The new index
// may replace an unused one. Adding a message to an index costs several times a comparison.
constexpr uint64_t kPassesOfAnIndex = 4;

constexpr uint64_t kContexts = 0x100, kClaims = 0x101;  // `what` of hash(): no number of a shape

__extension__ using Wide = unsigned __int128;

}  // namespace

MatchUnit::MatchUnit(const Limits& limits, uint64_t seed) noexcept
    : limits_(limits),
      // Odd halves of an expansion of the seed, so that no seed makes a factor of hash() small.
      seeds_{(seed ^ 0x9e37'79b9'7f4a'7c15) | 1,
             (std::rotl(seed, 32) * 0xd6e8'feb8'6659'fd93 ^ 0xa076'1d64'78bd'642f) | 1},
      by_key_(posted_),
      by_context_(posted_),
      exact_(unexpected_),
      claims_(unexpected_),
      indexes_{ShapeIndex(unexpected_, 1), ShapeIndex(unexpected_, 2), ShapeIndex(unexpected_, 3)} {
  shapes_[kTaggedAny].any_source = shapes_[kUntaggedAny].any_source = true;
}

// A product of 128 bits, folded: every bit of both factors reaches every bit of the result.
uint32_t MatchUnit::hash(uint64_t what, uint64_t tag, uint64_t source) const noexcept {
  const Wide first = static_cast<Wide>(tag ^ seeds_[0]) * ((std::rotl(source, 20) + what) ^ seeds_[1]);
  const uint64_t folded = static_cast<uint64_t>(first) ^ static_cast<uint64_t>(first >> 64);
  return static_cast<uint32_t>(folded ^ folded >> 32);
}

uint8_t MatchUnit::shape_of(const Pattern& what) noexcept {
  const bool any = what.source == kAnySource;
  if (!what.tagged) return any ? kUntaggedAny : kUntaggedFrom;
  if (what.ignore == 0) [[likely]]
    return any ? kTaggedAny : kTaggedFrom;
  return masked_shape(what);
}

// The shape of a tagged pattern with a mask. A new shape takes the place of one without receives and without index;
// kUnhashed: all places are in use.
uint8_t MatchUnit::masked_shape(const Pattern& what) noexcept {
  const bool any = what.source == kAnySource;
  for (uint8_t i = kFixedShapes; i < kShapeCount; ++i) {
    if (shapes_[i].ignore == what.ignore && shapes_[i].any_source == any) return i;
  }
  for (size_t tried = 0; tried < kMaskedShapes; ++tried) {
    const uint8_t i = next_shape_;
    next_shape_ = static_cast<uint8_t>(i + 1 == kShapeCount ? kFixedShapes : i + 1);
    if (shapes_[i].posted != 0 || shapes_[i].index != kUnhashed) continue;
    shapes_[i] = {};
    shapes_[i].ignore = what.ignore;
    shapes_[i].any_source = any;
    return i;
  }
  return kUnhashed;
}

// ---- receives ------------------------------------------------------------------------------------------------------

// HOT. Most programs have receives of one shape at a time.
Posted* MatchUnit::find_posted(bool tagged, uint64_t message_tag, uint64_t message_source) noexcept {
  const uint64_t tag = tagged ? message_tag : 0;
  Posted* best = nullptr;
  for (uint32_t left = active_[tagged]; left != 0; left &= left - 1) {
    const auto i = static_cast<uint8_t>(std::countr_zero(left));
    const Shape& shape = shapes_[i];
    const uint64_t want = tag & ~shape.ignore, source = shape.any_source ? kAnySource : message_source;
    const uint32_t id = by_key_.first(hash(i, want, source), [&](const Posted& p) {
      return p.shape == i && p.source == source && (p.tag & ~shape.ignore) == want;
    });
    if (id == kNoEntry) continue;
    Posted& found = posted_[id];
    if (best == nullptr || found.sequence < best->sequence) best = &found;
  }
  if (unhashed_ != 0 && tagged) [[unlikely]]
    best = find_unhashed(tag, message_source, best);
  return best;
}

// The oldest receive that is not hashed, if it is older than `best`.
Posted* MatchUnit::find_unhashed(uint64_t tag, uint64_t source, Posted* best) noexcept {
  for (uint32_t id = unhashed_first_; id != kNoEntry; id = posted_[id].by_key.next) {
    Posted& p = posted_[id];
    if (best != nullptr && p.sequence > best->sequence) break;
    ++compared_;
    if (((p.tag ^ tag) & ~p.ignore) == 0 && (p.source == kAnySource || p.source == source)) return &p;
  }
  return best;
}

bool MatchUnit::match(const Arrival& message, Match* out) noexcept {
  Posted* const found = find_posted(message.tagged, message.tag, message.source);
  if (found == nullptr) return false;
  out->unexpected = nullptr;
  use(found, message.length, out);
  return true;
}

// Gives the receive a message of this length.
void MatchUnit::use(Posted* posted, uint64_t length, Match* out) noexcept {
  assert(posted->used <= posted->length && posted->state < Posted::State::retired && "the receive takes messages");
  const uint64_t room = posted->length - posted->used;
  out->posted = posted;
  out->offset = posted->used;
  out->stored = std::min(length, room);
  out->cut = length - out->stored;
  // A buffer without room is retired even if min_left is 0: further messages would be cut off. So is a buffer that cut
  // this message.
  out->last = !posted->multi || room - out->stored < std::max<uint64_t>(posted->min_left, 1);
  posted->used += out->stored;
  ++posted->under_way;
  if (out->last) {
    if (posted->state == Posted::State::listed) [[likely]] {
      unlist(posted, Posted::State::retired);
    } else {
      posted->state = Posted::State::retired;
    }
  }
}

Posted* MatchUnit::post(const Receive& receive) noexcept {
  if (posted_.used() >= limits_.posted_max) return nullptr;
  Posted* const p = posted_.take();
  if (p == nullptr) return nullptr;
  if (!by_key_.reserve(posted_.used()) || (contexts_made_ && !by_context_.reserve(posted_.used()))) {
    posted_.give(p);
    return nullptr;
  }
  const Pattern& what = receive.what;
  p->tagged = what.tagged;
  p->tag = what.tagged ? what.tag : 0;
  p->ignore = what.tagged ? what.ignore : 0;
  p->source = what.source;
  p->sequence = sequence_++;
  p->length = receive.length;
  p->under_way = 0;
  p->state = Posted::State::fresh;
  p->multi = receive.multi;
  p->context = receive.context;
  p->address = receive.address;
  p->used = 0;
  if (receive.multi) {
    p->min_left = receive.min_left;
  } else {
    p->object = receive.object;
  }
  p->flags = receive.flags;
  p->extra = receive.extra;
  return p;
}

bool MatchUnit::take_unexpected(Posted* posted, Match* out) noexcept {
  if (posted->state != Posted::State::fresh) return false;
  if (arrivals_[posted->tagged].count != 0) {
    if (Unexpected* const u = find(posted->pattern()); u != nullptr) {
      take(u);
      out->unexpected = u;
      use(posted, u->length, out);
      return true;
    }
  }
  list(posted);
  return false;
}

void MatchUnit::list(Posted* posted) noexcept {
  assert(posted->state == Posted::State::fresh && "a receive is listed once");
  const uint8_t i = shape_of(posted->pattern());
  posted->shape = i;
  posted->state = Posted::State::listed;
  ++listed_;
  if (i != kUnhashed) [[likely]] {
    Shape& shape = shapes_[i];
    if (shape.posted++ == 0) active_[posted->tagged] |= 1u << i;
    const uint64_t want = posted->tag & ~posted->ignore;
    by_key_.append(posted->id, hash(i, want, posted->source), [&](const Posted& p) {
      return p.shape == i && p.source == posted->source && (p.tag & ~shape.ignore) == want;
    });
  } else {
    ++unhashed_;
    posted->by_key.next = kNoEntry;
    posted->by_key.prev = unhashed_last_;
    (unhashed_last_ == kNoEntry ? unhashed_first_ : posted_[unhashed_last_].by_key.next) = posted->id;
    unhashed_last_ = posted->id;
  }
  if (contexts_made_) [[unlikely]]
    list_context(posted);
}

void MatchUnit::list_context(Posted* posted) noexcept {
  by_context_.append(posted->id, hash(kContexts, posted->context, 0),
                     [&](const Posted& p) { return p.context == posted->context; });
}

// Indexes the listed receives by context. Without memory for it cancel() compares them in turn.
void MatchUnit::make_contexts() noexcept try {
  const std::vector<Posted*> all = listed();
  if (!by_context_.reserve(posted_.used())) return;
  for (Posted* p : all) list_context(p);
  compared_ += all.size();
  contexts_made_ = true;
} catch (const std::bad_alloc&) {
}

void MatchUnit::unlist(Posted* posted, Posted::State state) noexcept {
  assert(posted->state == Posted::State::listed);
  posted->state = state;
  --listed_;
  if (posted->shape != kUnhashed) [[likely]] {
    by_key_.remove(posted->id);
    if (--shapes_[posted->shape].posted == 0) active_[posted->tagged] &= ~(1u << posted->shape);
  } else {
    --unhashed_;
    const KeyLink& at = posted->by_key;
    (at.prev == kNoEntry ? unhashed_first_ : posted_[at.prev].by_key.next) = at.next;
    (at.next == kNoEntry ? unhashed_last_ : posted_[at.next].by_key.prev) = at.prev;
  }
  if (contexts_made_) [[unlikely]] {
    by_context_.remove(posted->id);
    if (listed_ == 0 && !std::exchange(contexts_used_, false)) contexts_made_ = false;
  }
}

Posted* MatchUnit::cancel(uint64_t context) noexcept {
  if (listed_ == 0) return nullptr;
  contexts_used_ = true;
  if (!contexts_made_) make_contexts();
  Posted* found = nullptr;
  if (contexts_made_) {
    const uint32_t id =
        by_context_.first(hash(kContexts, context, 0), [&](const Posted& p) { return p.context == context; });
    if (id != kNoEntry) found = &posted_[id];
  } else {
    for (uint32_t id = 0; id < posted_.capacity(); ++id) {
      Posted& p = posted_[id];
      ++compared_;
      if (p.state != Posted::State::listed || p.context != context) continue;
      if (found == nullptr || p.sequence < found->sequence) found = &p;
    }
  }
  if (found != nullptr) cancel(found);
  return found;
}

void MatchUnit::cancel(Posted* posted) noexcept {
  unlist(posted, Posted::State::canceled);
}

std::vector<Posted*> MatchUnit::listed() {
  std::vector<Posted*> out;
  out.reserve(listed_);
  for (uint32_t id = 0; id < posted_.capacity(); ++id) {
    if (posted_[id].state == Posted::State::listed) out.push_back(&posted_[id]);
  }
  std::sort(out.begin(), out.end(), [](const Posted* a, const Posted* b) { return a->sequence < b->sequence; });
  return out;
}

// ---- unexpected messages -------------------------------------------------------------------------------------------

Unexpected* MatchUnit::keep(const Arrival& message, bool promised) noexcept {
  if (unexpected_.used() >= limits_.unexpected_max && !promised) return nullptr;
  Unexpected* const u = unexpected_.take();
  if (u == nullptr) return nullptr;
  if (!exact_.reserve(unexpected_.used())) {
    unexpected_.give(u);
    return nullptr;
  }
  u->tag = message.tagged ? message.tag : 0;
  u->source = message.source;
  u->length = message.length;
  u->data = message.data;
  u->cookie = message.cookie;
  u->flags = message.flags;
  u->tagged = message.tagged;
  u->state = Unexpected::State::listed;

  ArrivalList& list = arrivals_[u->tagged];
  ++list.count;
  u->later = kNoEntry;
  u->earlier = list.last;
  (list.last == kNoEntry ? list.first : unexpected_[list.last].later) = u->id;
  list.last = u->id;
  exact_.append(u->id, hash(u->tagged ? kTaggedFrom : kUntaggedFrom, u->tag, u->source), [&](const Unexpected& other) {
    return other.tag == u->tag && other.source == u->source && other.tagged == u->tagged;
  });
  if (indexed_ != 0 && u->tagged) [[unlikely]] {
    for (ShapeIndex& index : indexes_) {
      if (index.shape == kUnhashed) continue;
      if (index.keys.reserve(list.count)) {
        append(index, u);
      } else {
        drop(index);
      }
    }
  }
  return u;
}

Unexpected* MatchUnit::find(const Pattern& what) noexcept {
  const ArrivalList& list = arrivals_[what.tagged];
  if (list.count == 0) return nullptr;
  const bool any = what.source == kAnySource;
  if (!what.tagged || what.ignore == 0) {
    const uint64_t tag = what.tagged ? what.tag : 0;
    if (!any) [[likely]] {
      const uint32_t id = exact_.first(
          hash(what.tagged ? kTaggedFrom : kUntaggedFrom, tag, what.source),
          [&](const Unexpected& u) { return u.tag == tag && u.source == what.source && u.tagged == what.tagged; });
      return id == kNoEntry ? nullptr : &unexpected_[id];
    }
    if (!what.tagged) return &unexpected_[list.first];
  } else if (any && what.ignore == ~uint64_t{0}) {
    return &unexpected_[list.first];
  }
  return find_in_turn(what);
}

// Finds by the index of the pattern's shape, or by comparing messages in order of arrival.
Unexpected* MatchUnit::find_in_turn(const Pattern& what) noexcept {
  const uint8_t s = shape_of(what);
  const bool any = what.source == kAnySource;
  const uint64_t want = what.tag & ~what.ignore;
  const auto fits = [&](const Unexpected& u) {
    return (u.tag & ~what.ignore) == want && (any || u.source == what.source);
  };
  if (s != kUnhashed && shapes_[s].index != kUnhashed) {
    ShapeIndex& index = indexes_[shapes_[s].index];
    index.used = true;
    index.unused_for = 0;
    const uint32_t id = index.keys.first(hash(s, want, what.source), fits);
    return id == kNoEntry ? nullptr : &unexpected_[id];
  }
  const ArrivalList& list = arrivals_[1];
  uint64_t steps = 0;
  uint32_t id = list.first;
  for (; id != kNoEntry; id = unexpected_[id].later) {
    ++steps;
    if (fits(unexpected_[id])) break;
  }
  compared_ += steps;
  if (steps > kCheapSearch && s != kUnhashed) {
    for (ShapeIndex& index : indexes_) index.unused_for += steps;
    shapes_[s].compared += steps;
    if (shapes_[s].compared >= kPassesOfAnIndex * list.count) make_index(s);
  }
  return id == kNoEntry ? nullptr : &unexpected_[id];
}

// Indexes the tagged messages for a shape, in the place of an index that has not been used for long. Without such a
// place, or without memory, searches stay as they are.
void MatchUnit::make_index(uint8_t shape) noexcept {
  const ArrivalList& list = arrivals_[1];
  shapes_[shape].compared = 0;
  ShapeIndex* index =
      &*std::max_element(indexes_.begin(), indexes_.end(), [](const ShapeIndex& a, const ShapeIndex& b) {
        if ((a.shape == kUnhashed) != (b.shape == kUnhashed)) return b.shape == kUnhashed;
        return a.unused_for < b.unused_for;
      });
  if (index->shape != kUnhashed && index->unused_for < kPassesOfAnIndex * list.count) return;
  if (!index->keys.reserve(list.count)) return;
  drop(*index);
  index->shape = shape;
  index->used = true;
  index->unused_for = 0;
  shapes_[shape].index = static_cast<uint8_t>(index - indexes_.data());
  ++indexed_;
  ++indexes_made_;
  for (uint32_t id = list.first; id != kNoEntry; id = unexpected_[id].later) append(*index, &unexpected_[id]);
}

void MatchUnit::append(ShapeIndex& index, Unexpected* message) noexcept {
  const Shape& shape = shapes_[index.shape];
  const uint64_t want = message->tag & ~shape.ignore;
  const uint64_t source = shape.any_source ? kAnySource : message->source;
  index.keys.append(message->id, hash(index.shape, want, source), [&](const Unexpected& u) {
    return (u.tag & ~shape.ignore) == want && (shape.any_source || u.source == source);
  });
}

void MatchUnit::drop(ShapeIndex& index) noexcept {
  if (index.shape == kUnhashed) return;
  index.keys.clear();
  shapes_[index.shape].index = kUnhashed;
  index.shape = kUnhashed;
  --indexed_;
}

// Called when the last tagged message has left: an index that served no search meanwhile would only slow down keep().
void MatchUnit::drop_unused() noexcept {
  for (ShapeIndex& index : indexes_) {
    if (index.shape != kUnhashed && !std::exchange(index.used, false)) drop(index);
  }
}

void MatchUnit::take(Unexpected* message) noexcept {
  assert(message->state == Unexpected::State::listed);
  message->state = Unexpected::State::taken;
  exact_.remove(message->id);
  ArrivalList& list = arrivals_[message->tagged];
  --list.count;
  (message->earlier == kNoEntry ? list.first : unexpected_[message->earlier].later) = message->later;
  (message->later == kNoEntry ? list.last : unexpected_[message->later].earlier) = message->earlier;
  if (indexed_ != 0 && message->tagged) [[unlikely]] {
    for (ShapeIndex& index : indexes_) {
      if (index.shape != kUnhashed) index.keys.remove(message->id);
    }
    if (list.count == 0) drop_unused();
  }
}

bool MatchUnit::claim(Unexpected* message, uint64_t context) noexcept {
  if (!claims_.reserve(claimed_ + 1)) return false;
  take(message);
  message->state = Unexpected::State::claimed;
  message->claimed_by = context;
  ++claimed_;
  claims_.append(message->id, hash(kClaims, context, 0), [&](const Unexpected& u) { return u.claimed_by == context; });
  return true;
}

Unexpected* MatchUnit::take_claimed(uint64_t context) noexcept {
  if (claimed_ == 0) return nullptr;
  const uint32_t id =
      claims_.first(hash(kClaims, context, 0), [&](const Unexpected& u) { return u.claimed_by == context; });
  if (id == kNoEntry) return nullptr;
  assert(unexpected_[id].state == Unexpected::State::claimed);
  claims_.remove(id);
  --claimed_;
  unexpected_[id].state = Unexpected::State::taken;
  return &unexpected_[id];
}

// ---- looking -------------------------------------------------------------------------------------------------------

MatchUnit::Statistics MatchUnit::statistics() const noexcept {
  Statistics s;
  s.posted = listed_;
  s.unexpected = arrivals_[0].count + arrivals_[1].count;
  s.claimed = claimed_;
  s.posted_used = posted_.used();
  s.unexpected_used = unexpected_.used();
  s.unhashed = unhashed_;
  s.compared = compared_;
  s.indexes = indexed_;
  s.indexes_made = indexes_made_;
  return s;
}

bool MatchUnit::reserve(size_t posted, size_t unexpected) noexcept {
  return posted_.reserve(posted) && by_key_.reserve(posted) && unexpected_.reserve(unexpected) &&
         exact_.reserve(unexpected);
}

}  // namespace weft::nic
