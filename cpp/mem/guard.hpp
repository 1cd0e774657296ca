// cpp/mem/guard.hpp: copies and atomics on memory whose pages may fail: unmapped, protected, behind the end of a file
// that was cut off, on a disk or in a memory group that is full. A failed page ends the access, not the process.
//
// How: a handler of SIGSEGV and SIGBUS, and a record of the thread that says which ranges it is accessing. A fault of
// the kernel's in one of those ranges resumes the thread behind the access; any other goes to the handler that was
// installed before ours, or to the default action, with the same information.
// Cost of a guarded access without a fault: some stores and a call (3 ns), no system call. A word of 4 or 8 bytes costs
// nothing: where its two instructions may go on is written in a table that the handler reads.
// A thread that blocks either signal is killed by the kernel at a fault, so the first guarded access of a thread
// unblocks both for it.
//
// Nothing with a destructor may live in the function that a guard runs, and it must not leave otherwise than by
// returning: a fault ends it in the middle.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

// Sanitizers do not see what assembly accesses.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define WEFT_GUARD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define WEFT_GUARD_SANITIZED 1
#endif
#endif
#if defined(__x86_64__) && defined(__linux__) && !defined(WEFT_GUARD_SANITIZED)
#define WEFT_GUARD_FIXUPS 1
#else
#define WEFT_GUARD_FIXUPS 0
#endif

#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
#define WEFT_GUARD_TSAN 1
#elif defined(__has_feature) && defined(__x86_64__)
#if __has_feature(thread_sanitizer)
#define WEFT_GUARD_TSAN 1
#endif
#endif

namespace weft::mem {

struct MemoryRange {
  const void* first = nullptr;
  size_t length = 0;
};

// Makes our handler the first to be asked, if it is not: another may have been installed after it (Python's
// faulthandler is). It then comes after ours. Two system calls where nothing changed. Called when a NIC or a domain is
// made, and when a thread that serves peers wakes.
void keep_fault_handler() noexcept;
// In the child after fork(): another thread may have been in keep_fault_handler().
void fault_handler_after_fork() noexcept;

namespace detail {

struct GuardFrame {
  void* jump[5];  // of __builtin_setjmp
  const MemoryRange* ranges;
  size_t count;
  GuardFrame* outer;
};

struct GuardThread {
  GuardFrame* frame;    // of the guarded access that is under way; null: none
  bool ready;           // both signals are unblocked in this thread
  unsigned passed;      // handlers that are running for the present fault, newest first: see guard.cpp
  const void* passing;  // the fault's siginfo_t, and where the stack was
  const void* stack;
};

// initial-exec: the handler reads it, and a dynamic thread-local variable may be allocated at its first use.
extern thread_local constinit GuardThread t_guard [[gnu::tls_model("initial-exec")]];

void prepare_thread() noexcept;

}  // namespace detail

// HOT. Runs access(); false: a page of `ranges` failed, and access() ended there.
template <typename Access>
[[gnu::noinline]] bool guarded(std::span<const MemoryRange> ranges, const Access& access) noexcept {
  if (!detail::t_guard.ready) [[unlikely]]
    detail::prepare_thread();
  detail::GuardFrame frame;
  frame.ranges = ranges.data();
  frame.count = ranges.size();
  frame.outer = detail::t_guard.frame;
  if (__builtin_setjmp(frame.jump) != 0) {
    detail::t_guard.frame = detail::t_guard.frame->outer;
    return false;
  }
  detail::t_guard.frame = &frame;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the record is there before the first access
  access();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  detail::t_guard.frame = frame.outer;
  return true;
}

// Small copies as single stores: a poller of an 8-byte flag sees it whole, and the call to memcpy is saved.
inline void copy_bytes(std::byte* to, const std::byte* from, size_t length) noexcept {
  if (length == 8) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    __atomic_store(reinterpret_cast<uint64_t*>(to), &word, __ATOMIC_RELAXED);
  } else if (length == 4) {
    uint32_t word;
    std::memcpy(&word, from, 4);
    __atomic_store(reinterpret_cast<uint32_t*>(to), &word, __ATOMIC_RELAXED);
  } else {
    std::memcpy(to, from, length);
  }
}

// The same where pages of either side may fail; false: one did, and a part may have been copied.
[[nodiscard]] bool copy_guarded(std::byte* to, const std::byte* from, size_t length) noexcept;

namespace detail {

#if WEFT_GUARD_FIXUPS
// The n-th of the entries that follow an access: where the instruction is, and where the thread goes on if it faults.
// "?": the entries are of the same group as the function, and go with it where the linker keeps one of several.
#define WEFT_FIXUPS_BEGIN ".pushsection weft_fixups, \"a?\"\n"
#define WEFT_FIXUP(n) ".long " #n "b - ., %l[failed] - .\n"
#define WEFT_FIXUPS_END ".popsection"

[[gnu::always_inline]] inline bool copy_8(std::byte* to, const std::byte* from) noexcept {
  asm goto(
      "1: movq (%1), %%rax\n"
      "2: movq %%rax, (%0)\n"  //
      WEFT_FIXUPS_BEGIN WEFT_FIXUP(1) WEFT_FIXUP(2) WEFT_FIXUPS_END
      :
      : "r"(to), "r"(from)
      : "rax", "memory"
      : failed);
  return true;
failed:
  return false;
}
[[gnu::always_inline]] inline bool copy_4(std::byte* to, const std::byte* from) noexcept {
  asm goto(
      "1: movl (%1), %%eax\n"
      "2: movl %%eax, (%0)\n"  //
      WEFT_FIXUPS_BEGIN WEFT_FIXUP(1) WEFT_FIXUP(2) WEFT_FIXUPS_END
      :
      : "r"(to), "r"(from)
      : "rax", "memory"
      : failed);
  return true;
failed:
  return false;
}

constexpr size_t kShortMin = 4, kShortMax = 1024;
// kShortMin to kShortMax bytes without a record of the ranges, which takes longer than copying 256 bytes.
[[nodiscard]] bool copy_short(std::byte* to, const std::byte* from, size_t length) noexcept;

// *result = what *target was, then *target += *operand, in one step. The target's pages do not fail.
[[gnu::always_inline]] inline bool fetch_add_8(void* target, const void* operand, void* result) noexcept {
  asm goto(
      "1: movq (%1), %%rax\n"
      "lock xaddq %%rax, (%0)\n"
      "2: movq %%rax, (%2)\n"  //
      WEFT_FIXUPS_BEGIN WEFT_FIXUP(1) WEFT_FIXUP(2) WEFT_FIXUPS_END
      :
      : "r"(target), "r"(operand), "r"(result)
      : "rax", "memory", "cc"
      : failed);
  return true;
failed:
  return false;
}
[[gnu::always_inline]] inline bool add_8(void* target, const void* operand) noexcept {
  asm goto(
      "1: movq (%1), %%rax\n"
      "lock addq %%rax, (%0)\n"  //
      WEFT_FIXUPS_BEGIN WEFT_FIXUP(1) WEFT_FIXUPS_END
      :
      : "r"(target), "r"(operand)
      : "rax", "memory", "cc"
      : failed);
  return true;
failed:
  return false;
}
#endif

}  // namespace detail

// HOT. The same for the initiator's own copies, words for nothing. Unlike copy_guarded() a copy of up to 1,024 bytes
// does not survive another handler that comes before ours and raises the signal again: what a peer asks for is copied
// by copy_guarded().
[[nodiscard, gnu::always_inline]] inline bool copy_guarded_hot(std::byte* to, const std::byte* from,
                                                               size_t length) noexcept {
#if WEFT_GUARD_FIXUPS
  if (detail::t_guard.ready) [[likely]] {
    if (length == 8) return detail::copy_8(to, from);
    if (length == 4) return detail::copy_4(to, from);
    if (length - detail::kShortMin <= detail::kShortMax - detail::kShortMin)
      return detail::copy_short(to, from, length);
  }
#endif
  return copy_guarded(to, from, length);
}

// HOT. Adds the 8 bytes at `operand` to the word at `target` in one step; `result` takes the word before, if not null.
// The target's pages must not fail. False: a page of operand (then nothing was added) or of result failed.
// Nothing was done when *possible is false.
[[nodiscard, gnu::always_inline]] inline bool add_guarded_hot(void* target, const void* operand, void* result,
                                                              bool* possible) noexcept {
#if WEFT_GUARD_FIXUPS
  *possible = detail::t_guard.ready;
  if (!*possible) [[unlikely]]
    return false;
  return result != nullptr ? detail::fetch_add_8(target, operand, result) : detail::add_8(target, operand);
#else
  (void)target, (void)operand, (void)result;
  *possible = false;
  return false;
#endif
}

#if defined(WEFT_GUARD_TSAN)
// For use in an access before its atomic operations: ThreadSanitizer holds a mutex of its own during each, and a fault
// would leave that mutex locked. Faults here instead if the first or the last byte's page fails.
void touch(void* at, size_t length, bool write) noexcept;
#endif

// Whether every page of the range can be read now.
[[nodiscard]] bool readable(const std::byte* first, size_t length) noexcept;

}  // namespace weft::mem
