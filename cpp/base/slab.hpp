// cpp/base/slab.hpp: memory for small objects of one size, of which a program may have millions.
// Callers: any thread. HOT: take() and give() take one short lock; a system call for every 128 KiB of new objects.
// Blocks are not huge pages: if the host takes free memory back from a virtual machine (free page reporting), the first
// touch of a huge page took 4 ms, five times as long per byte as pages of 4 KiB.
// Fork: a child can use the slab, because a fork waits until no thread holds the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/lock.hpp"

namespace weft {

class Slab {
 public:
  static constexpr size_t kBlockBytes = size_t{2} << 20;

  explicit Slab(size_t slot_bytes) noexcept;
  ~Slab();  // requires that no slot is taken
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // A slot, aligned to 8 bytes; throws std::bad_alloc.
  void* take();
  void give(void* slot) noexcept;

  [[nodiscard]] size_t blocks() noexcept {
    const Guard lock(lock_);
    return blocks_;
  }
  [[nodiscard]] size_t slots_per_block() const noexcept { return slots_; }
#if !defined(NDEBUG)
  void check();
  static void check_all();
#endif

 private:
  struct Slot {
    Slot* next;
  };
  // The first bytes of a block, which is aligned to its size: so a slot tells its block.
  struct Block {
    Slot* free = nullptr;
    uint32_t used = 0;                           // slots from here on were never taken
    uint32_t taken = 0;                          // slots that are taken
    uint32_t there = 0;                          // bytes whose pages are there
    Block *next = nullptr, *previous = nullptr;  // in the list of blocks with free slots
  };
  static constexpr size_t kHeadBytes = 64;
  static_assert(sizeof(Block) <= kHeadBytes);

  Block* new_block();
  static void free_block(Block* block) noexcept;
  static void populate(Block* block) noexcept;
  void list(Block* block) noexcept;
  void unlist(Block* block) noexcept;
  void retire(Block* block) noexcept;  // a block without taken slots leaves the list

  RankedSpin<lock_rank::kSlab> lock_;
  size_t slot_bytes_, slots_;
  Block* open_ GUARDED_BY(lock_) = nullptr;   // blocks with free slots; the first serves take()
  Block* spare_ GUARDED_BY(lock_) = nullptr;  // one block without taken slots, out of the list
  size_t blocks_ GUARDED_BY(lock_) = 0;
  Slab* next_ = nullptr;  // all slabs, for forks

  friend struct SlabsAtFork;
};

// The slab of all objects of one size. It is made before any thread runs, and is never destroyed: objects may outlive
// static objects.
template <size_t bytes>
Slab& g_slab_of = *new Slab(bytes);

// For std::allocate_shared: the object and its counts lie in one slot.
template <typename T>
struct SlabAllocator {
  using value_type = T;
  SlabAllocator() = default;
  template <typename Other>
  SlabAllocator(const SlabAllocator<Other>&) noexcept {}  // NOLINT: conversion between allocators is implicit
  T* allocate(size_t n) {
    static_assert(alignof(T) <= 8);
    return static_cast<T*>(n == 1 ? g_slab_of<sizeof(T)>.take() : ::operator new(n * sizeof(T)));
  }
  void deallocate(T* p, size_t n) noexcept {
    if (n == 1) {
      g_slab_of<sizeof(T)>.give(p);
    } else {
      ::operator delete(p);
    }
  }
  bool operator==(const SlabAllocator&) const = default;
};

}  // namespace weft
