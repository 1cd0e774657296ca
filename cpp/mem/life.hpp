// cpp/mem/life.hpp: the life mark: a word of shared memory that shows peers that the program which made it has ended:
// its process died, or runs another program after exec().
//
// How: a thread that only sleeps owns the word as a robust futex. When the thread ends, the kernel marks the word.
// exec() ends every other thread before it replaces the address space, so a peer that finds no mark still sees the old
// program's memory. Descriptors that live on (in a child, or inherited across exec()) make no difference, and a check
// costs one load. A forked child does not have the thread: the word describes only the parent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace weft::mem {

constexpr uint32_t kLifeOver = 0x40000000;  // FUTEX_OWNER_DIED; a word of 0: the system offers no robust futex
inline bool life_over(const std::atomic<uint32_t>& word) noexcept {
  return (word.load(std::memory_order_acquire) & kLifeOver) != 0;
}

class LifeMark {
 public:
  // The caller keeps `word` mapped, shared and writable during this object's life; the destructor marks the word.
  // The word stays 0 if the system refuses the robust list.
  explicit LifeMark(std::atomic<uint32_t>& word);
  ~LifeMark();
  LifeMark(const LifeMark&) = delete;
  LifeMark& operator=(const LifeMark&) = delete;

 private:
  struct Keeper;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace weft::mem
