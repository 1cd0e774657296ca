// cpp/mem/life.hpp: a word of shared memory by which peers see that the program which made it has ended: its process
// died, or runs another program since exec().
//
// How: a thread that only sleeps owns the word as a robust futex. When the thread ends the kernel marks the word;
// exec() ends every other thread before the new program has memory, so a peer that finds no mark has not yet to do with
// that program. Descriptors that live on (in a child, or because they are inheritable) do not matter, and looking costs
// a load. A forked child has no such thread: the word speaks of the parent alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace weft::mem {

constexpr uint32_t kLifeOver = 0x40000000;  // FUTEX_OWNER_DIED. No mark and no owner: the system gives no such word
inline bool life_over(const std::atomic<uint32_t>& word) noexcept {
  return (word.load(std::memory_order_acquire) & kLifeOver) != 0;
}

class LifeMark {
 public:
  // `word` stays mapped, shared and writable until this object is gone; then it is marked.
  // Where the system refuses, the word stays 0.
  explicit LifeMark(std::atomic<uint32_t>& word);
  ~LifeMark();
  LifeMark(const LifeMark&) = delete;
  LifeMark& operator=(const LifeMark&) = delete;

 private:
  struct Keeper;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace weft::mem
