// cpp/base/slab.cpp: see slab.hpp.
#include "base/slab.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <cassert>

// Under AddressSanitizer each object is an allocation of its own, so that uses after its end are found.
#if defined(__SANITIZE_ADDRESS__)
#define WEFT_SLAB_PLAIN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEFT_SLAB_PLAIN 1
#endif
#endif
#ifndef WEFT_SLAB_PLAIN
#define WEFT_SLAB_PLAIN 0
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace weft {

namespace {

RankedSpin<lock_rank::kSlabs> g_all_lock;
Slab* g_all GUARDED_BY(g_all_lock) = nullptr;

}  // namespace

// A fork waits for threads in take() and give(), so that the child finds every slab whole and unlocked.
struct SlabsAtFork {
  static void before() UNCHECKED {
    g_all_lock.lock_at_fork();
    for (Slab* slab = g_all; slab != nullptr; slab = slab->next_) slab->lock_.lock_at_fork();
  }
  static void after() UNCHECKED {
    for (Slab* slab = g_all; slab != nullptr; slab = slab->next_) slab->lock_.unlock_after_fork();
    g_all_lock.unlock_after_fork();
  }
  static void enter(Slab* slab) {
    const Guard lock(g_all_lock);
    slab->next_ = g_all;
    g_all = slab;
  }
  static void leave(Slab* slab) {
    const Guard lock(g_all_lock);
    Slab** at = &g_all;
    while (*at != slab) at = &(*at)->next_;
    *at = slab->next_;
  }
};

namespace {
// Registered when the library is loaded, before any NIC registers its handlers: prepare handlers run from the last to
// the first, so a fork takes the locks of NICs, whose holders use slabs, before the locks of the slabs.
[[maybe_unused]] const int g_watched = ::pthread_atfork(SlabsAtFork::before, SlabsAtFork::after, SlabsAtFork::after);
}  // namespace

Slab::Slab(size_t slot_bytes) noexcept
    : slot_bytes_((slot_bytes + 7) / 8 * 8), slots_((kBlockBytes - kHeadBytes) / slot_bytes_) {
  SlabsAtFork::enter(this);
}

Slab::~Slab() {
  SlabsAtFork::leave(this);
  if (spare_ != nullptr) free_block(spare_);
  while (open_ != nullptr) {
    Block* block = open_;
    unlist(block);
    free_block(block);
  }
}

void Slab::list(Block* block) noexcept {
  lock_.assert_held();
  block->previous = nullptr;
  block->next = open_;
  if (open_ != nullptr) open_->previous = block;
  open_ = block;
}

void Slab::unlist(Block* block) noexcept {
  (block->previous != nullptr ? block->previous->next : open_) = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
}

Slab::Block* Slab::new_block() {
  lock_.assert_held();
  void* room =
      ::mmap(nullptr, 2 * kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(room);
  const size_t before = (kBlockBytes - reinterpret_cast<uintptr_t>(begin) % kBlockBytes) % kBlockBytes;
  if (before != 0) ::munmap(begin, before);
  ::munmap(begin + before + kBlockBytes, kBlockBytes - before);
  auto* const block = new (begin + before) Block;
  // The pages of the first block come one by one: most programs have few objects.
  if (blocks_++ == 0) block->there = kBlockBytes;
  return block;
}

// One call for the next pages costs less than a fault for each. A kernel without the call takes the faults.
void Slab::populate(Block* block) noexcept {
  constexpr uint32_t kStep = 128 << 10;
  (void)::madvise(reinterpret_cast<std::byte*>(block) + block->there, kStep, MADV_POPULATE_WRITE);
  block->there += kStep;
}

void Slab::free_block(Block* block) noexcept {
  ::munmap(block, kBlockBytes);
}

void* Slab::take() {
  if constexpr (WEFT_SLAB_PLAIN) return ::operator new(slot_bytes_);
  const Guard lock(lock_);
  Block* block = open_;
  if (block == nullptr) [[unlikely]] {
    block = spare_ != nullptr ? spare_ : new_block();
    spare_ = nullptr;
    list(block);
  }
  void* slot = block->free;
  if (slot != nullptr) {
    block->free = block->free->next;
  } else {
    const size_t at = kHeadBytes + block->used++ * slot_bytes_;
    if (at + slot_bytes_ > block->there) [[unlikely]]
      populate(block);
    slot = reinterpret_cast<std::byte*>(block) + at;
  }
  assert(block->taken < slots_ && "a listed block has a free slot");
  if (++block->taken == slots_) [[unlikely]]
    unlist(block);
  return slot;
}

void Slab::give(void* slot) noexcept {
  if constexpr (WEFT_SLAB_PLAIN) {
    ::operator delete(slot);
    return;
  }
  const Guard lock(lock_);
  auto* block = reinterpret_cast<Block*>(reinterpret_cast<uintptr_t>(slot) & ~(kBlockBytes - 1));
  assert(block->taken != 0 && "a slot is given once");
  auto* freed = static_cast<Slot*>(slot);
  freed->next = block->free;
  block->free = freed;
  if (block->taken-- == slots_) [[unlikely]] {
    Block* const first = open_;
    list(block);
    if (first != nullptr && first->taken == 0) retire(first);
  }
  // A block without taken slots stays in the list only if no other block is there to serve take().
  if (block->taken == 0 && (open_ != block || block->next != nullptr)) [[unlikely]]
    retire(block);
}

// One such block is kept, against repeated mapping.
void Slab::retire(Block* block) noexcept {
  lock_.assert_held();
  unlist(block);
  if (spare_ == nullptr) {
    spare_ = block;
    return;
  }
  --blocks_;
  free_block(block);
}

#if !defined(NDEBUG)
void Slab::check() {
  const Guard lock(lock_);
  size_t listed = 0;
  const Block* before = nullptr;
  for (const Block* block = open_; block != nullptr; before = block, block = block->next) {
    ++listed;
    assert(block->previous == before && "a block knows its neighbours");
    assert(block->taken < slots_ && block->used <= slots_ && "a listed block has a free slot");
    size_t given = 0;
    for (const Slot* slot = block->free; slot != nullptr; slot = slot->next) {
      assert(given < block->used && "a slot is free once");
      ++given;
    }
    assert(given == block->used - block->taken && "a slot that was used is taken, or free");
  }
  assert((spare_ == nullptr || spare_->taken == 0) && "no slot of the spare block is taken");
  assert(listed + (spare_ != nullptr ? 1 : 0) <= blocks_ && "blocks are counted");
}

void Slab::check_all() {
  const Guard lock(g_all_lock);
  for (Slab* slab = g_all; slab != nullptr; slab = slab->next_) slab->check();
}
#endif

}  // namespace weft
