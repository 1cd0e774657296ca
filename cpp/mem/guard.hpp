// cpp/mem/guard.hpp: copies and atomics on memory whose pages may fail: unmapped, protected, past the end of a
// truncated file, on a full disk or in a full memory cgroup. A failed page ends the access, not the process.
//
// How: a handler of SIGSEGV and SIGBUS, and a thread-local record of the ranges that the thread is accessing. If the
// kernel reports a fault in one of these ranges, the handler resumes the thread after the access. The handler passes
// any other fault to the handler installed before ours, or to the default action, with the same siginfo.
//
// Cost of a guarded access without a fault: some stores and a call (3 ns), no system call. A word of 4 or 8 bytes costs
// nothing: a table lists the resume addresses of its two instructions, and the handler reads the table.
//
// The kernel kills a thread that blocks the signal at a fault, so the first guarded access of a thread unblocks both
// signals. The function that a guard runs must not contain objects with destructors, and must end only by returning,
// because a fault ends it in the middle.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

// Sanitizers do not see memory accesses of inline assembly.
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

// Installs our handler in front of one that was installed after ours (Python's faulthandler is); ours then passes
// faults on to it. Two system calls if nothing changed. Called when a NIC or a domain is made, and when a thread that
// serves peers wakes.
void keep_fault_handler() noexcept;
// Call it in the child after fork(): another thread may have been in keep_fault_handler().
void fault_handler_after_fork() noexcept;

namespace detail {

struct GuardFrame {
  void* jump[5];  // of __builtin_setjmp
  const MemoryRange* ranges;
  size_t count;
  GuardFrame* outer;
};

struct GuardThread {
  GuardFrame* frame;    // the current guarded access, or null
  bool ready;           // both signals are unblocked in this thread
  unsigned passed;      // number of earlier handlers that are running for the current fault: see guard.cpp
  const void* passing;  // siginfo_t of that fault; `stack`: the stack pointer then
  const void* stack;
};

// initial-exec, because the handler reads it: the first use of a dynamic thread-local variable may allocate.
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
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the record is complete before the first access
  access();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  detail::t_guard.frame = frame.outer;
  return true;
}

// Copies 8 (or 4) bytes by a single store: a poller never sees half a flag, and the call to memcpy is saved.
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

// The same for memory whose pages may fail, on either side; false: a page failed, and a part may have been copied.
[[nodiscard]] bool copy_guarded(std::byte* to, const std::byte* from, size_t length) noexcept;

namespace detail {

#if WEFT_GUARD_FIXUPS
// Entry n of the table: address of the instruction, and address to resume at if the instruction faults.
// "?": puts the entries into the function's section group, so that the linker discards both together.
#define WEFT_FIXUPS_BEGIN ".pushsection weft_fixups, \"a?\"\n"
#define WEFT_FIXUP(n) ".long " #n "b - ., %l[failed] - .\n"
#define WEFT_FIXUPS_END ".popsection"

// copy_N(): N bytes through one register; false: a page failed.
#define WEFT_COPY(bytes, move, reg)                                                                       \
  [[gnu::always_inline]] inline bool copy_##bytes(std::byte* to, const std::byte* from) noexcept {        \
    asm goto("1: " move " (%1), %%" reg "\n2: " move " %%" reg ", (%0)\n" WEFT_FIXUPS_BEGIN WEFT_FIXUP(1) \
                 WEFT_FIXUP(2) WEFT_FIXUPS_END                                                            \
             :                                                                                            \
             : "r"(to), "r"(from)                                                                         \
             : reg, "memory"                                                                              \
             : failed);                                                                                   \
    return true;                                                                                          \
  failed:                                                                                                 \
    return false;                                                                                         \
  }
WEFT_COPY(8, "movq", "rax")
WEFT_COPY(4, "movl", "eax")

constexpr size_t kShortMin = 4, kShortMax = 4096;
constexpr size_t kLoopMin = 256, kLoopMax = 128 * 1024;  // beyond, the cache decides
// Copies kShortMin bytes or more in a loop. It needs no record of the ranges; making that record takes longer than
// copying 256 bytes.
[[nodiscard]] bool copy_short(std::byte* to, const std::byte* from, size_t length) noexcept;

// Atomic fetch-add of 8 bytes: *result = *target; *target += *operand. The target's pages must not fail.
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

// HOT. copy_guarded() for the initiator's own copies; a word costs no record. Unlike copy_guarded(), a copy of up to
// 4,096 bytes does not survive a handler installed in front of ours that raises the signal again. So requests of peers
// use copy_guarded().
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

// HOT. Atomically adds the 8 bytes at `operand` to the word at `target`; `result`, if not null, gets the old word.
// The target's pages must not fail. False: a page of operand (nothing was added then) or of result failed.
// *possible false: not supported in this build; nothing was done.
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
// Call it in a guarded access before atomic operations: ThreadSanitizer holds a mutex of its own during each, and a
// fault would leave that mutex locked. A failing page of the first or last byte faults here instead.
void touch(void* at, size_t length, bool write) noexcept;
#endif

// True if every page of the range can be read now.
[[nodiscard]] bool readable(const std::byte* first, size_t length) noexcept;

}  // namespace weft::mem
