// cpp/mem/guard.cpp: see guard.hpp.
#include "mem/guard.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace weft::mem {

namespace detail {

thread_local constinit GuardThread t_guard [[gnu::tls_model("initial-exec")]] = {};

}  // namespace detail

namespace {

using detail::GuardFrame;
using detail::GuardThread;
using detail::t_guard;

constexpr int kSignals[] = {SIGSEGV, SIGBUS};

// A handler that ours is installed in front of. Immutable once published and never freed, because a handler may be
// reading it. One record for each distinct handler that the application ever installed over ours.
struct Earlier {
  struct sigaction action;
  const Earlier* before;  // the handler that was installed before it; null: none
};
std::atomic<const Earlier*> g_earlier[2]{};
std::atomic<bool> g_installing{false};
const uintptr_t g_page_mask = ~(static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)) - 1);

int index_of(int signal) noexcept {
  return signal == SIGSEGV ? 0 : 1;
}

// ---- the handler: everything here is async-signal-safe ---------------------------------------------------------

bool covers(const GuardFrame& frame, uintptr_t address) noexcept {
  for (size_t i = 0; i < frame.count; ++i) {
    const auto first = reinterpret_cast<uintptr_t>(frame.ranges[i].first);
    // Compare pages: for a memory error the kernel reports only the page.
    if (frame.ranges[i].length != 0 && address >= (first & g_page_mask) &&
        address <= ((first + frame.ranges[i].length - 1) | ~g_page_mask)) {
      return true;
    }
  }
  return false;
}

// True if a range has a non-canonical address (its upper bits are not copies of one bit): the processor then reports no
// fault address.
bool has_no_address(const GuardFrame& frame) noexcept {
#if defined(__x86_64__)
  for (size_t i = 0; i < frame.count; ++i) {
    const auto last = static_cast<int64_t>(reinterpret_cast<uintptr_t>(frame.ranges[i].first) + frame.ranges[i].length);
    if (frame.ranges[i].length != 0 && last >> 47 != 0) return true;
  }
#endif
  return false;
}

// True if the fault belongs to the thread's guarded access. If a handler in front of ours has raised the signal again
// (faulthandler does so after printing), the address is lost, but the sender is this thread.
bool is_guarded(const GuardFrame& frame, const siginfo_t& info) noexcept {
  if (info.si_code == SI_KERNEL) return has_no_address(frame);
  if (info.si_code > 0) return covers(frame, reinterpret_cast<uintptr_t>(info.si_addr));
  return info.si_code == SI_TKILL && info.si_pid == ::getpid();
}

[[noreturn, gnu::noinline]] void leave_guard() noexcept {
  __builtin_longjmp(t_guard.frame->jump, 1);
}

// The thread continues in leave_guard() after the handler has returned. Returning lets the kernel restore the signal
// mask, the floating-point modes and the alternate stack; a jump out of the handler would not.
void resume_outside(void* context) noexcept {
#if defined(__x86_64__)
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  constexpr greg_t kRedZone = 128, kDirectionFlag = 0x400;
  registers[REG_RSP] = ((registers[REG_RSP] - kRedZone) & ~greg_t{15}) - 8;  // alignment as after a call instruction
  registers[REG_EFL] &= ~kDirectionFlag;
  registers[REG_RIP] = reinterpret_cast<greg_t>(&leave_guard);
#elif defined(__aarch64__)
  static_cast<ucontext_t*>(context)->uc_mcontext.pc = reinterpret_cast<uintptr_t>(&leave_guard);
#else
  (void)context;
  leave_guard();
#endif
}

void take_default(int signal, const siginfo_t& info) noexcept {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  (void)::sigaction(signal, &action, nullptr);
  if (info.si_code > 0) return;  // the thread repeats the access, and the core dump shows the access
  siginfo_t again = info;
  (void)::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::syscall(SYS_gettid), signal, &again);
}

void pass_on(int signal, siginfo_t* info, void* context) noexcept {
  const Earlier* to = g_earlier[index_of(signal)].load(std::memory_order_acquire);
  GuardThread& thread = t_guard;
  const GuardThread saved = thread;
  const void* stack = __builtin_frame_address(0);
  // A handler that we called may call its predecessor, or restore that handler and raise the signal; the predecessor
  // may be ours. Then call the next older handler. The caller's stack frame still lies above ours, which distinguishes
  // this from a new fault after a handler that left by longjmp.
  const bool raised = info->si_code == SI_TKILL && info->si_pid == ::getpid();
  const bool nested = thread.stack != nullptr && stack < thread.stack && (raised || thread.passing == info);
  const unsigned depth = nested ? thread.passed : 0;
  for (unsigned i = 0; i < depth && to != nullptr && to->before != nullptr; ++i) to = to->before;
  if (to == nullptr || to->action.sa_handler == SIG_DFL) return take_default(signal, *info);
  if (to->action.sa_handler == SIG_IGN) {
    if (info->si_code > 0) take_default(signal, *info);  // the kernel does not ignore a fault
    return;
  }
  thread.passed = depth + 1;
  thread.passing = info;
  thread.stack = stack;
  sigset_t mask = to->action.sa_mask;
  if ((to->action.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, signal);
  ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);  // the kernel restores the mask when we return
  if ((to->action.sa_flags & SA_SIGINFO) != 0) {
    to->action.sa_sigaction(signal, info, context);
  } else {
    to->action.sa_handler(signal);
  }
  thread.passed = saved.passed;
  thread.passing = saved.passing;
  thread.stack = saved.stack;
}

#if WEFT_GUARD_FIXUPS

extern "C" {
struct WeftFixup {
  int32_t at, to;  // relative to the address of the field
};
// The bounds of this library's table, defined by the linker.
extern const WeftFixup __start_weft_fixups[] __attribute__((weak, visibility("hidden")));
extern const WeftFixup __stop_weft_fixups[] __attribute__((weak, visibility("hidden")));
}

// A fault of an instruction that has an entry in the table: the thread continues at the entry's address.
bool resume_by_table(const siginfo_t& info, void* context) noexcept {
  if (info.si_code <= 0) return false;
  auto& at = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  for (const WeftFixup* f = __start_weft_fixups; f != __stop_weft_fixups; ++f) {
    if (reinterpret_cast<greg_t>(&f->at) + f->at != at) continue;
    at = reinterpret_cast<greg_t>(&f->to) + f->to;
    return true;
  }
  return false;
}

#else

bool resume_by_table(const siginfo_t&, void*) noexcept {
  return false;
}

#endif

void on_fault(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const GuardFrame* frame = t_guard.frame;
  if (resume_by_table(*info, context)) {
    // The copy returns false.
  } else if (frame != nullptr && is_guarded(*frame, *info)) {
    resume_outside(context);
  } else {
    pass_on(signal, info, context);
  }
  errno = error;
}

// ---- installing it ---------------------------------------------------------------------------------------------

bool same(const struct sigaction& a, const struct sigaction& b) noexcept {
  return a.sa_sigaction == b.sa_sigaction && a.sa_flags == b.sa_flags &&
         std::memcmp(&a.sa_mask, &b.sa_mask, _NSIG / 8) == 0;
}

// Makes `action` the handler to which ours passes faults. A handler that is already in the list takes its old place,
// and the newer ones are dropped.
bool remember(std::atomic<const Earlier*>& earlier, const struct sigaction& action) noexcept {
  for (const Earlier* e = earlier.load(std::memory_order_relaxed); e != nullptr; e = e->before) {
    if (same(e->action, action)) {
      earlier.store(e, std::memory_order_release);
      return true;
    }
  }
  const Earlier* made = new (std::nothrow) Earlier{action, earlier.load(std::memory_order_relaxed)};
  if (made == nullptr) return false;
  earlier.store(made, std::memory_order_release);
  return true;
}

}  // namespace

void keep_fault_handler() noexcept {
  if (g_installing.exchange(true, std::memory_order_acquire)) return;  // another thread is installing
  for (const int signal : kSignals) {
    struct sigaction now{};
    if (::sigaction(signal, nullptr, &now) != 0) continue;
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_fault) continue;
    if (!remember(g_earlier[index_of(signal)], now)) continue;
    struct sigaction ours{};
    ours.sa_sigaction = &on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    struct sigaction replaced{};
    if (::sigaction(signal, &ours, &replaced) == 0 && replaced.sa_sigaction != &on_fault && !same(replaced, now)) {
      (void)remember(g_earlier[index_of(signal)], replaced);  // it was installed between the two calls
    }
  }
  g_installing.store(false, std::memory_order_release);
}

void fault_handler_after_fork() noexcept {
  g_installing.store(false, std::memory_order_relaxed);
}

void detail::prepare_thread() noexcept {
  keep_fault_handler();
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kSignals) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  t_guard.ready = true;
}

// ---- copies ----------------------------------------------------------------------------------------------------

namespace {

void copy_plain(std::byte* to, const std::byte* from, size_t length) noexcept {
#if defined(WEFT_GUARD_TSAN) && defined(__x86_64__)
  // ThreadSanitizer's memcpy pushes a record of the call, which a fault would leave behind. Peers write memory while it
  // is read, by design, so it does not see the reads.
  if (length != 8 && length != 4) {
    __asm__ __volatile__("rep movsb" : "+D"(to), "+S"(from), "+c"(length) : : "memory");
    return;
  }
  uint64_t word = 0;
  if (length == 8) {
    __asm__ __volatile__("movq (%1), %0" : "=r"(word) : "r"(from) : "memory");
  } else {
    __asm__ __volatile__("movl (%1), %k0" : "=r"(word) : "r"(from) : "memory");
  }
  from = reinterpret_cast<const std::byte*>(&word);
#endif
  copy_bytes(to, from, length);
}

}  // namespace

#if defined(WEFT_GUARD_TSAN)
void touch(void* at, size_t length, bool write) noexcept {
  if (length == 0) return;
  for (auto* p : {static_cast<std::byte*>(at), static_cast<std::byte*>(at) + (length - 1)}) {
    std::byte value;
    if (write) {
      __asm__ __volatile__("lock addb $0, (%0)" : : "r"(p) : "memory", "cc");
    } else {
      __asm__ __volatile__("movb (%1), %0" : "=q"(value) : "r"(p) : "memory");
    }
  }
}
#endif

#if WEFT_GUARD_FIXUPS

namespace {

const bool g_has_avx = __builtin_cpu_supports("avx2") != 0;

WEFT_COPY(16, "movups", "xmm0")

// Leaves the upper halves of the registers in use: call end_avx() after the last copy.
[[gnu::always_inline]] inline bool copy_128(std::byte* to, const std::byte* from) noexcept {
  asm goto(
      "1: vmovups (%1), %%ymm0\n"
      "2: vmovups 32(%1), %%ymm1\n"
      "3: vmovups 64(%1), %%ymm2\n"
      "4: vmovups 96(%1), %%ymm3\n"
      "5: vmovups %%ymm0, (%0)\n"
      "6: vmovups %%ymm1, 32(%0)\n"
      "7: vmovups %%ymm2, 64(%0)\n"
      "8: vmovups %%ymm3, 96(%0)\n"  //
      WEFT_FIXUPS_BEGIN WEFT_FIXUP(1) WEFT_FIXUP(2) WEFT_FIXUP(3) WEFT_FIXUP(4) WEFT_FIXUP(5) WEFT_FIXUP(6)
          WEFT_FIXUP(7) WEFT_FIXUP(8) WEFT_FIXUPS_END
      :
      : "r"(to), "r"(from)
      : "xmm0", "xmm1", "xmm2", "xmm3", "memory"
      : failed);
  return true;
failed:
  return false;
}

bool end_avx(bool done) noexcept {
  asm volatile("vzeroupper" : : : "xmm0", "xmm1", "xmm2", "xmm3");
  return done;
}

}  // namespace

bool detail::copy_short(std::byte* to, const std::byte* from, size_t length) noexcept {
  // The last step of each kind ends at the last byte, and so overlaps the previous step.
  if (length < 8) return copy_4(to, from) && copy_4(to + length - 4, from + length - 4);
  if (length < 16) return copy_8(to, from) && copy_8(to + length - 8, from + length - 8);
  if (length >= 128 && g_has_avx) [[likely]] {
    const size_t last = length - 128;
    for (size_t at = 0; at < last; at += 128) {
      if (!copy_128(to + at, from + at)) return end_avx(false);
    }
    return end_avx(copy_128(to + last, from + last));
  }
  for (size_t at = 0; at < length - 16; at += 16) {
    if (!copy_16(to + at, from + at)) return false;
  }
  return copy_16(to + length - 16, from + length - 16);
}

#endif

bool copy_guarded(std::byte* to, const std::byte* from, size_t length) noexcept {
  if (length == 0) return true;
  if (to == nullptr || from == nullptr) return false;  // no page is mapped at null, and memcpy must not get null
  const MemoryRange ranges[] = {{to, length}, {from, length}};
#if WEFT_GUARD_FIXUPS
  // memcpy of the C library takes "rep movsb" for these sizes, which is a third to a half slower where the two sides
  // are not aligned alike, and no faster where they are.
  if (length >= detail::kLoopMin && length <= detail::kLoopMax && g_has_avx) {
    bool done = false;
    return guarded(ranges, [=, &done] { done = detail::copy_short(to, from, length); }) && done;
  }
#endif
  return guarded(ranges, [=] { copy_plain(to, from, length); });
}

bool readable(const std::byte* first, size_t length) noexcept {
  if (length == 0) return true;
  const MemoryRange range{first, length};
  return guarded({&range, 1}, [=] {
    const size_t page = ~g_page_mask + 1;
    const auto* const last = first + (length - 1);
    for (const std::byte* at = first; at < last; at += page) (void)*static_cast<const volatile std::byte*>(at);
    (void)*static_cast<const volatile std::byte*>(last);
  });
}

}  // namespace weft::mem
