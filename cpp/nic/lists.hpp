// cpp/nic/lists.hpp: pools of numbered entries, and lists of entries by key in which equal keys keep their order.
// Not thread-safe: the owner's lock guards both. No exception leaves a function here: out of memory is a return value.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace weft::nic {

constexpr uint32_t kNoEntry = ~uint32_t{0};

// Entries with a number, `Entry::id`. Entries never move and are reused last in, first out; memory is kept until
// clear().
template <typename Entry>
class Pool {
 public:
  // HOT. An entry with the content of its last use; null: no memory.
  Entry* take() noexcept {
    if (free_.empty() && !grow()) [[unlikely]]
      return nullptr;
    Entry* const entry = &(*this)[free_.back()];
    free_.pop_back();
    ++used_;
    return entry;
  }
  void give(Entry* entry) noexcept {
    assert(&(*this)[entry->id] == entry);
    free_.push_back(entry->id);  // grow() has reserved room for all entries
    --used_;
  }
  Entry& operator[](uint32_t id) noexcept { return chunks_[id / kChunk][id % kChunk]; }
  const Entry& operator[](uint32_t id) const noexcept { return chunks_[id / kChunk][id % kChunk]; }
  [[nodiscard]] size_t capacity() const noexcept { return chunks_.size() * kChunk; }  // numbers are below this
  [[nodiscard]] size_t used() const noexcept { return used_; }
#if !defined(NDEBUG)
  void check() const {
    std::vector<bool> seen(capacity());
    for (const uint32_t id : free_) {
      assert(id < capacity() && !seen[id] && "a free entry is in the list once");
      assert((*this)[id].id == id && "an entry is at its number");
      seen[id] = true;
    }
    assert(free_.capacity() >= capacity() && "give() allocates nothing");
    assert(used_ + free_.size() == capacity() && "an entry is free or in use");
  }
#endif
  // Makes memory for so many entries; false: no memory.
  bool reserve(size_t count) noexcept {
    while (capacity() < count) {
      if (!grow()) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kChunk = 256;

  [[gnu::noinline]] bool grow() noexcept try {
    const size_t now = capacity();
    if (now + kChunk >= kNoEntry) return false;
    if (free_.capacity() < now + kChunk) free_.reserve(2 * (now + kChunk));
    chunks_.push_back(std::make_unique<Entry[]>(kChunk));
    for (size_t i = kChunk; i > 0; --i) {
      chunks_.back()[i - 1].id = static_cast<uint32_t>(now + i - 1);
      free_.push_back(static_cast<uint32_t>(now + i - 1));
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  std::vector<std::unique_ptr<Entry[]>> chunks_;
  std::vector<uint32_t> free_;
  size_t used_ = 0;
};

// An entry's links in one KeyIndex. Entries of equal keys form a ring, oldest first: the `prev` of the first is the
// last. The firsts of a bucket form a chain.
struct KeyLink {
  uint32_t next = kNoEntry, prev = kNoEntry;
  uint32_t chain = kNoEntry;  // of a first: the next first in its bucket; of the others: kNotFirst
  uint32_t hash = 0;
  static constexpr uint32_t kNotFirst = kNoEntry - 1;
};
static_assert(sizeof(KeyLink) == 16);

// Lists of a pool's entries by key. The cost does not depend on the number of entries, also if many have one key: a
// bucket's chain contains one entry for each key. LinkOf: a functor that gives an entry's KeyLink of this index.
template <typename Entry, typename LinkOf>
class KeyIndex {
 public:
  explicit KeyIndex(Pool<Entry>& pool, LinkOf link_of = {}) noexcept : pool_(&pool), link_of_(link_of) {}

  // Makes buckets for so many entries; false: no memory, nothing has changed. Required before append(). Two buckets an
  // entry: of every entry in a chain a search reads a cache line.
  bool reserve(size_t entries) noexcept { return 2 * entries <= buckets_.size() || grow(2 * entries); }

  // HOT. The oldest entry with this key, or kNoEntry. same(entry): the entry has the key. Requires reserve().
  template <typename Same>
  [[nodiscard]] uint32_t first(uint32_t hash, Same&& same) const noexcept {
    for (uint32_t id = buckets_[hash & mask_]; id != kNoEntry;) {
      const Entry& entry = (*pool_)[id];
      const KeyLink& link = link_of_(entry);
      if (link.hash == hash && same(entry)) return id;
      id = link.chain;
    }
    return kNoEntry;
  }

  // HOT. Adds an entry behind those with its key.
  template <typename Same>
  void append(uint32_t id, uint32_t hash, Same&& same) noexcept {
    KeyLink& link = link_of_((*pool_)[id]);
    link.hash = hash;
    assert(!buckets_.empty() && "reserve() comes first");
    const uint32_t head = first(hash, same);
    if (head == kNoEntry) {
      uint32_t& bucket = buckets_[hash & mask_];
      link.next = link.prev = id;
      link.chain = bucket;
      bucket = id;
      return;
    }
    KeyLink& front = link_of_((*pool_)[head]);
    link.chain = KeyLink::kNotFirst;
    link.next = head;
    link.prev = front.prev;
    link_of_((*pool_)[front.prev]).next = id;
    front.prev = id;
  }

  // HOT.
  void remove(uint32_t id) noexcept {
    assert(!buckets_.empty() && id < pool_->capacity() && "the entry is in the lists");
    const KeyLink& link = link_of_((*pool_)[id]);
    if (link.chain != KeyLink::kNotFirst) {
      uint32_t* at = &buckets_[link.hash & mask_];
      while (*at != id) {
        assert(*at != kNoEntry && "an entry is in the chain of its bucket");
        at = &link_of_((*pool_)[*at]).chain;
      }
      if (link.next == id) {
        *at = link.chain;
        return;
      }
      *at = link.next;
      link_of_((*pool_)[link.next]).chain = link.chain;
    }
    link_of_((*pool_)[link.prev]).next = link.next;
    link_of_((*pool_)[link.next]).prev = link.prev;
  }

  // Forgets all entries without touching them.
  void clear() noexcept { buckets_.assign(buckets_.size(), kNoEntry); }

 private:
  [[gnu::noinline]] bool grow(size_t buckets) noexcept try {
    std::vector<uint32_t> more(std::bit_ceil(buckets < kBucketsMin ? kBucketsMin : buckets), kNoEntry);
    const auto mask = static_cast<uint32_t>(more.size() - 1);
    for (uint32_t id : buckets_) {
      while (id != kNoEntry) {
        KeyLink& link = link_of_((*pool_)[id]);
        const uint32_t next = link.chain;
        link.chain = std::exchange(more[link.hash & mask], id);
        id = next;
      }
    }
    buckets_ = std::move(more);
    mask_ = mask;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  static constexpr size_t kBucketsMin = 64;
  Pool<Entry>* pool_;
  [[no_unique_address]] LinkOf link_of_;
  uint32_t mask_ = 0;
  std::vector<uint32_t> buckets_;
};

}  // namespace weft::nic
