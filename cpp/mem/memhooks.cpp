// cpp/mem/memhooks.cpp: sees changes of mappings through jumps at the start of libc's functions.
//
// How. The dynamic symbol table of the loaded libc gives the addresses of munmap and the others; a jump replaces their
// first bytes. The jump is in the function itself and not in a procedure linkage table, so every call is seen: through
// a PLT, through dlsym (ctypes), or from inside libc (free() that unmaps or trims, a thread's stack). glibc's own
// malloc hooks are not used.
//
// Safe while other threads run, because no thread can be between two bytes that change:
//   - a function whose first instruction has 5 bytes or more gets `jmp rel32` over that one instruction;
//   - a function with a shorter first instruction gets `jmp rel8`, which fits, to a `jmp rel32` in the padding before
//     the function. A function with an unknown beginning is refused, and the monitor is not available.
// Both are written as one aligned 16-byte exchange between two mprotect calls. The second call interrupts every core
// that runs one of our threads, and a core fetches instructions again after an interrupt. (membarrier's SYNC_CORE is
// meant for this, but its registration takes 10 ms in a process of several threads.)
//
// Other libraries with hooks. If a function already begins with a jump, our jump replaces it, and our hook then calls
// the target of the old jump. At the end we restore the original bytes only if ours are still there. If another library
// has put a jump over ours, its hook still calls ours, which then does nothing but call the function.
//
// A hook may run in the middle of malloc, under any lock and on any thread. So a hook allocates nothing, takes no lock,
// never waits, and is reentrant.
//
// Not seen: system calls that do not go through these functions (inline assembly, syscall(2), the dynamic linker's own
// in dlclose), process_madvise, remap_file_pages; and mprotect, which changes access rights but no mapping.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/lock.hpp"
#include "mem/monitor.hpp"

namespace weft::mem {

namespace {

// The thread sanitizer registers a thread before instrumented code runs on it, and unregisters it before libc unmaps
// the thread's stack. A hook would run instrumented code outside this time.
#if defined(__SANITIZE_THREAD__)
#define WEFT_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_THREAD_SANITIZER 1
#endif
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(WEFT_THREAD_SANITIZER)
#define WEFT_MEMHOOKS 1
#else
#define WEFT_MEMHOOKS 0
#endif

#if WEFT_MEMHOOKS

// ---- changes under way -------------------------------------------------------------------------------------------

constexpr size_t kLogMax = 64;     // caches and segment sets of a process
constexpr size_t kFlightMax = 64;  // threads that change mappings at the same time
constexpr int kMadvDontneedLocked = 24;

struct alignas(kCacheLine) Flight {
  std::atomic<bool> busy{false};
  std::atomic<uint64_t> begin{0}, end{0};
};

// All state is static, because a hook may still be running after the last monitor is destroyed.
std::array<std::atomic<ChangeLog*>, kLogMax> g_logs{};
std::array<Flight, kFlightMax> g_flights;
std::atomic<uint32_t> g_more_flights{0};  // changes under way that found no free flight
std::atomic<uint32_t> g_readers{0};       // hooks that are reading g_logs

// A change, from before it begins until after it has taken effect.
class Underway {
 public:
  explicit Underway(const Change& change) noexcept {
    // The stack address spreads threads over the flights, without a look-up of the thread.
    const size_t start = reinterpret_cast<uintptr_t>(this) >> 12;
    for (size_t i = 0; i < kFlightMax; ++i) {
      Flight& flight = g_flights[(start + i) % kFlightMax];
      if (flight.busy.load(std::memory_order_relaxed) || flight.busy.exchange(true, std::memory_order_acquire))
        continue;
      flight.begin.store(change.begin, std::memory_order_relaxed);
      flight.end.store(change.end, std::memory_order_relaxed);
      flight_ = &flight;
      break;
    }
    if (flight_ == nullptr) g_more_flights.fetch_add(1, std::memory_order_relaxed);
    // SYNC POINT: pairs with the fence in ChangeLog::watch(): either we see that the range is watched, or the cache
    // that begins to watch it sees our flight.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    g_readers.fetch_add(1, std::memory_order_seq_cst);
    for (auto& slot : g_logs) {
      ChangeLog* log = slot.load(std::memory_order_acquire);
      if (log != nullptr && log->concerns(change.begin, change.end)) log->push(change);
    }
    g_readers.fetch_sub(1, std::memory_order_release);
  }
  Underway(const Underway&) = delete;
  Underway& operator=(const Underway&) = delete;
  ~Underway() {
    if (flight_ != nullptr) {
      flight_->busy.store(false, std::memory_order_release);
    } else {
      g_more_flights.fetch_sub(1, std::memory_order_release);
    }
  }

 private:
  Flight* flight_ = nullptr;
};

// ---- the hooks ---------------------------------------------------------------------------------------------------

enum Function : size_t { kMunmap, kMmap, kMremap, kMadvise, kBrk, kShmat, kShmdt, kFunctionCount };

struct Hook {
  const char* name;
  void* replacement;
  std::atomic<void*> original{nullptr};  // the function that does the work
  uint8_t* entry = nullptr;              // its first instruction after an endbr64
  std::array<uint8_t, 8> found{};        // the original bytes at entry
  std::array<uint8_t, 8> put{};
  size_t put_bytes = 0;
  uint8_t* padding = nullptr;  // our jump in the padding before the function, or null
};
extern std::array<Hook, kFunctionCount> g_hooks;

template <typename F>
F original(Function function) noexcept {
  return reinterpret_cast<F>(g_hooks[function].original.load(std::memory_order_acquire));
}

uint64_t number(const void* p) noexcept {
  return reinterpret_cast<uint64_t>(p);
}

Change change_of(const void* at, size_t length, bool unmapped = true) noexcept {
  const uint64_t begin = number(at);
  return {begin, begin + length < begin ? ~uint64_t{0} : begin + length, unmapped};
}

int on_munmap(void* at, size_t length) {
  const Underway underway(change_of(at, length));
  return original<int (*)(void*, size_t)>(kMunmap)(at, length);
}

void* on_mmap(void* at, size_t length, int protection, int flags, int fd, off_t offset) {
  const auto mmap_now = original<void* (*)(void*, size_t, int, int, int, off_t)>(kMmap);
  if ((flags & MAP_FIXED) == 0) return mmap_now(at, length, protection, flags, fd, offset);
  const Underway underway(change_of(at, length));
  return mmap_now(at, length, protection, flags, fd, offset);
}

void* on_mremap(void* at, size_t old_length, size_t new_length, int flags, void* to) {
  const Underway from(change_of(at, old_length));
  const auto mremap_now = original<void* (*)(void*, size_t, size_t, int, void*)>(kMremap);
  if ((flags & MREMAP_FIXED) == 0) return mremap_now(at, old_length, new_length, flags, to);
  const Underway over(change_of(to, new_length));
  return mremap_now(at, old_length, new_length, flags, to);
}

int on_madvise(void* at, size_t length, int advice) {
  const auto madvise_now = original<int (*)(void*, size_t, int)>(kMadvise);
  if (advice != MADV_DONTNEED && advice != MADV_REMOVE && advice != MADV_FREE && advice != kMadvDontneedLocked) {
    return madvise_now(at, length, advice);
  }
  const Underway underway(change_of(at, length, false));
  return madvise_now(at, length, advice);
}

int on_brk(void* to) {
  const auto brk_now = original<int (*)(void*)>(kBrk);
  if (to == nullptr) return brk_now(to);  // libc's first call, before it knows the break
  void* now = ::sbrk(0);
  if (number(to) >= number(now)) return brk_now(to);
  const Underway underway(change_of(to, number(now) - number(to)));
  return brk_now(to);
}

// Only the kernel knows the length of a shared memory segment, so the hook reports all addresses above `at` as changed.
void* on_shmat(int id, const void* at, int flags) {
  const auto shmat_now = original<void* (*)(int, const void*, int)>(kShmat);
  if ((flags & SHM_REMAP) == 0) return shmat_now(id, at, flags);
  const Underway underway(Change{number(at), ~uint64_t{0}, true});
  return shmat_now(id, at, flags);
}

int on_shmdt(const void* at) {
  const Underway underway(Change{number(at), ~uint64_t{0}, true});
  return original<int (*)(const void*)>(kShmdt)(at);
}

template <typename F>
void* address_of(F* function) noexcept {
  return reinterpret_cast<void*>(function);
}

std::array<Hook, kFunctionCount> g_hooks{{
    {"munmap", address_of(on_munmap)},
    {"mmap", address_of(on_mmap)},
    {"mremap", address_of(on_mremap)},
    {"madvise", address_of(on_madvise)},
    {"brk", address_of(on_brk)},
    {"shmat", address_of(on_shmat)},
    {"shmdt", address_of(on_shmdt)},
}};

// ---- machine code ------------------------------------------------------------------------------------------------

constexpr size_t kNearJump = 5;   // e9 rel32
constexpr size_t kShortJump = 2;  // eb rel8
constexpr size_t kStubBytes = 64;
constexpr uint8_t kEndbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};

// Length of the instruction if it means the same at any address; 0 for other and unknown instructions.
size_t movable_instruction(const uint8_t* p) noexcept {
  size_t prefix = 0;
  uint8_t rex = 0;
  if ((p[0] & 0xf0) == 0x40) {
    rex = p[0];
    prefix = 1;
  }
  const uint8_t op = p[prefix];
  const uint8_t modrm = p[prefix + 1];
  const bool registers = modrm >= 0xc0;
  if (op >= 0xb8 && op <= 0xbf) return prefix + ((rex & 8) != 0 ? 9 : 5);                      // mov $imm, %reg
  if (op >= 0x50 && op <= 0x57) return prefix + 1;                                             // push %reg
  if ((op == 0x89 || op == 0x8b || op == 0x31 || op == 0x33) && registers) return prefix + 2;  // mov, xor %reg, %reg
  if (op == 0x83 && registers) return prefix + 3;                                              // sub $imm8, %reg ...
  if (op == 0x81 && registers) return prefix + 6;                                              // sub $imm32, %reg ...
  if (op == 0xf7 && (modrm & 0xf8) == 0xc0) return prefix + 6;                                 // test $imm32, %reg
  return 0;
}

// True if the five bytes before a function are padding that is never executed.
bool padded(const uint8_t* entry) noexcept {
  static constexpr std::array<std::array<uint8_t, 11>, 10> kNops{{
      // length, bytes: the multi-byte no-operations that assemblers use for alignment, longest first
      {10, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0},
      {9, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0},
      {8, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0},
      {7, 0x0f, 0x1f, 0x80, 0, 0, 0, 0},
      {6, 0x66, 0x0f, 0x1f, 0x44, 0, 0},
      {5, 0x0f, 0x1f, 0x44, 0, 0},
      {4, 0x0f, 0x1f, 0x40, 0},
      {3, 0x0f, 0x1f, 0},
      {2, 0x66, 0x90},
      {1, 0x90},
  }};
  size_t covered = 0;
  while (covered < kNearJump) {
    size_t step = 0;
    for (const auto& nop : kNops) {
      if (std::memcmp(entry - covered - nop[0], nop.data() + 1, nop[0]) == 0) {
        step = nop[0];
        break;
      }
    }
    if (step == 0 && entry[-1 - static_cast<ptrdiff_t>(covered)] == 0xcc) step = 1;
    if (step == 0) return false;
    covered += step;
  }
  return true;
}

void put_far_jump(uint8_t* at, uint64_t to) noexcept {
  static constexpr uint8_t kOpcode[] = {0xff, 0x25, 0, 0, 0, 0};
  std::memcpy(at, kOpcode, sizeof(kOpcode));
  std::memcpy(at + sizeof(kOpcode), &to, sizeof(to));
}

std::string hex(const uint8_t* p, size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    if (i != 0) text += ' ';
    text += kDigits[p[i] >> 4];
    text += kDigits[p[i] & 15];
  }
  return text;
}

// Replaces `count` bytes at `at`, all in one 16-byte line, in one atomic step, if they equal `expected`.
bool exchange_text(uint8_t* at, const uint8_t* expected, const uint8_t* bytes, size_t count, std::string* why) {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto* line = reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(at) & ~uintptr_t{15});
  void* text = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(line) & ~(page - 1));
  if (::mprotect(text, page, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
    *why = std::string("the system forbids changes of libc's code (") + std::strerror(errno) + ")";
    return false;
  }
  bool done = false;
  const auto offset = static_cast<size_t>(at - line);
  for (int attempt = 0; attempt < 100 && !done; ++attempt) {
    uint64_t before[2], after[2];
    std::memcpy(before, line, sizeof(before));
    std::memcpy(after, before, sizeof(after));
    if (std::memcmp(reinterpret_cast<uint8_t*>(after) + offset, expected, count) != 0) break;
    std::memcpy(reinterpret_cast<uint8_t*>(after) + offset, bytes, count);
    // In assembly: the thread sanitizer would instrument a builtin, and it has no shadow memory for code.
    asm volatile("lock cmpxchg16b (%[line])"
                 : "=@ccz"(done), "+a"(before[0]), "+d"(before[1])
                 : [line] "r"(line), "b"(after[0]), "c"(after[1])
                 : "memory");
  }
  (void)::mprotect(text, page, PROT_READ | PROT_EXEC);
  if (!done) *why = "another library changed it at the same time";
  return done;
}

// ---- installing and removing the jumps ---------------------------------------------------------------------------

RankedMutex<lock_rank::kMemhooks> g_mutex;       // guards subscriptions and code; no hook takes it
size_t g_subscriptions GUARDED_BY(g_mutex) = 0;  // ranges of all logs
bool g_installed GUARDED_BY(g_mutex) = false;
uint8_t* g_stubs GUARDED_BY(g_mutex) =
    nullptr;  // near libc: jumps to the hooks, and the functions' first instructions; never freed

struct Plan {
  uint8_t* entry = nullptr;
  size_t first_bytes = 0;             // length of the instruction that the jump replaces
  const uint8_t* jumps_to = nullptr;  // the target, if the first instruction is a jump of another library
  bool short_jump = false;
};

// Plans the jump for a function; false with *why if the function cannot be hooked.
bool plan(const Hook& hook, void* libc, Plan* out, std::string* why) {
  auto* at = static_cast<uint8_t*>(libc != nullptr ? ::dlsym(libc, hook.name) : nullptr);
  if (at == nullptr) {
    *why = std::string("no ") + hook.name + " in libc.so.6";
    return false;
  }
  if (hook.entry != nullptr && hook.padding != nullptr) {  // hooked before: our jump is still in the padding
    *out = {hook.entry, movable_instruction(hook.entry), nullptr, true};
    if (out->first_bytes >= kShortJump) return true;
  }
  if (std::memcmp(at, kEndbr64, sizeof(kEndbr64)) == 0) at += sizeof(kEndbr64);
  *out = {at, 0, nullptr, false};
  const auto in_a_line = [](const uint8_t* p, size_t count) {
    return (reinterpret_cast<uintptr_t>(p) & 15) + count <= 16;
  };
  if (at[0] == 0xe9 && in_a_line(at, kNearJump)) {
    int32_t distance;
    std::memcpy(&distance, at + 1, sizeof(distance));
    out->first_bytes = kNearJump;
    out->jumps_to = at + kNearJump + distance;
    return true;
  }
  out->first_bytes = movable_instruction(at);
  if (out->first_bytes >= kNearJump && in_a_line(at, kNearJump)) return true;
  auto* function = static_cast<uint8_t*>(::dlsym(libc, hook.name));
  if (out->first_bytes >= kShortJump && (reinterpret_cast<uintptr_t>(function) & 15) == 0 && padded(function)) {
    out->short_jump = true;
    return true;
  }
  *why = std::string("libc's ") + hook.name + " begins with " + hex(at, 12) + ", which this monitor does not know";
  return false;
}

bool plan_all(std::array<Plan, kFunctionCount>* plans, std::string* why) {
  void* libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  bool good = true;
  for (size_t i = 0; i < kFunctionCount && good; ++i) good = plan(g_hooks[i], libc, &(*plans)[i], why);
  if (libc != nullptr) ::dlclose(libc);
  return good;
}

// Allocates the stubs in reach of a near jump from libc.
bool make_stubs(const uint8_t* near, std::string* why) REQUIRES(g_mutex) {
  if (g_stubs != nullptr) return true;
  constexpr size_t kBytes = kFunctionCount * 2 * kStubBytes;
  // Below libc lie the process's mappings, and a large one may fill the whole reach; above are the loader and, at least
  // 128 MiB farther, the stack.
  constexpr intptr_t kStep = intptr_t{1} << 24, kAbove = intptr_t{1} << 26;
  for (intptr_t i = 1; i < 64; ++i) {
    for (const intptr_t away : {-i * kStep, i * kStep}) {
      if (away > kAbove) continue;
      void* hint = reinterpret_cast<void*>((reinterpret_cast<intptr_t>(near) & ~intptr_t{0xfff}) + away);
      void* got = ::mmap(hint, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (got == MAP_FAILED) continue;
      const int64_t distance = static_cast<uint8_t*>(got) - near;
      if (distance > -(int64_t{1} << 30) && distance < (int64_t{1} << 30)) {
        g_stubs = static_cast<uint8_t*>(got);
        return true;
      }
      ::munmap(got, kBytes);
    }
  }
  *why = "no room for a page near libc";
  return false;
}

bool make_jump(uint8_t* out, const uint8_t* from, const uint8_t* to) noexcept {
  const int64_t distance = to - (from + kNearJump);
  if (distance != static_cast<int32_t>(distance)) return false;
  out[0] = 0xe9;
  const auto word = static_cast<int32_t>(distance);
  std::memcpy(out + 1, &word, sizeof(word));
  return true;
}

void uninstall() noexcept REQUIRES(g_mutex) {
  std::string ignored;
  for (Hook& hook : g_hooks) {
    if (hook.put_bytes == 0) continue;
    (void)exchange_text(hook.entry, hook.put.data(), hook.found.data(), hook.put_bytes, &ignored);
    hook.put_bytes = 0;
  }
  g_installed = false;
}

bool install(std::string* why) REQUIRES(g_mutex) {
  std::array<Plan, kFunctionCount> plans;
  if (!plan_all(&plans, why) || !make_stubs(plans[kMunmap].entry, why)) return false;
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  if (::mprotect(g_stubs, page, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
    *why = std::string("the system does not allow code to be made at run time (") + std::strerror(errno) + ")";
    return false;
  }
  for (size_t i = 0; i < kFunctionCount; ++i) {
    // A stub is written only once. If the function begins with other bytes at the next installation, its stub would
    // differ, and the check below refuses it.
    uint8_t* to_hook = g_stubs + i * 2 * kStubBytes;
    uint8_t* go_on = to_hook + kStubBytes;
    uint8_t made[kStubBytes] = {};
    if (plans[i].jumps_to != nullptr) {
      put_far_jump(made, number(plans[i].jumps_to));
    } else {
      std::memcpy(made, plans[i].entry, plans[i].first_bytes);
      put_far_jump(made + plans[i].first_bytes, number(plans[i].entry + plans[i].first_bytes));
    }
    if (g_hooks[i].original.load(std::memory_order_relaxed) == nullptr) {
      put_far_jump(to_hook, number(g_hooks[i].replacement));
      std::memcpy(go_on, made, sizeof(made));
    } else if (std::memcmp(go_on, made, sizeof(made)) != 0) {
      *why = std::string("libc's ") + g_hooks[i].name + " was changed by another library since the last time";
      (void)::mprotect(g_stubs, page, PROT_READ | PROT_EXEC);
      return false;
    }
  }
  (void)::mprotect(g_stubs, page, PROT_READ | PROT_EXEC);
  bool good = true;
  for (size_t i = 0; i < kFunctionCount && good; ++i) {
    Hook& hook = g_hooks[i];
    const Plan& p = plans[i];
    const uint8_t* stub = g_stubs + i * 2 * kStubBytes;
    hook.entry = p.entry;
    hook.original.store(const_cast<uint8_t*>(stub) + kStubBytes, std::memory_order_release);
    if (!p.short_jump) {
      hook.put_bytes = kNearJump;
      good = make_jump(hook.put.data(), p.entry, stub);
    } else {
      uint8_t* padding = hook.padding;
      if (padding == nullptr) {
        padding = reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(p.entry) & ~uintptr_t{15}) - kNearJump;
        std::array<uint8_t, kNearJump> was, jump;
        std::memcpy(was.data(), padding, was.size());
        good =
            make_jump(jump.data(), padding, stub) && exchange_text(padding, was.data(), jump.data(), jump.size(), why);
        if (!good) break;
        hook.padding = padding;
      }
      hook.put_bytes = kShortJump;
      hook.put = {0xeb, static_cast<uint8_t>(padding - (p.entry + kShortJump))};
    }
    std::memcpy(hook.found.data(), p.entry, hook.put_bytes);
    good = good && exchange_text(p.entry, hook.found.data(), hook.put.data(), hook.put_bytes, why);
    if (!good) hook.put_bytes = 0;
  }
  g_installed = true;
  if (!good) uninstall();
  return good;
}

// ---- fork --------------------------------------------------------------------------------------------------------

// The child inherits our jumps but has only the forking thread: other threads' calls do not continue in it, and the
// parent's monitors are not used there. Registered as the library is loaded: a fork takes this lock after the cache's,
// whose holders take this one.
void child_forgets() UNCHECKED {
  for (auto& log : g_logs) log.store(nullptr, std::memory_order_relaxed);
  for (Flight& flight : g_flights) flight.busy.store(false, std::memory_order_relaxed);
  g_more_flights.store(0, std::memory_order_relaxed);
  g_readers.store(0, std::memory_order_relaxed);
  g_subscriptions = 0;
  g_mutex.unlock_after_fork();
}
[[maybe_unused]] const int g_at_fork =
    ::pthread_atfork([] { g_mutex.lock_at_fork(); }, [] { g_mutex.unlock_after_fork(); }, child_forgets);

// ---- the monitor -------------------------------------------------------------------------------------------------

class MemhooksMonitor final : public Monitor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "memhooks"; }

  [[nodiscard]] bool available(std::string* why) override {
    const Guard guard(g_mutex);
    std::array<Plan, kFunctionCount> plans;
    return g_installed || plan_all(&plans, why) || advise(why);
  }

  bool subscribe(uint64_t, uint64_t, ChangeLog& log, std::string* why) override {
    const Guard guard(g_mutex);
    if (!g_installed && !install(why)) return advise(why);
    Attached* attached = find(&log);
    if (attached == nullptr) {
      const auto free = std::ranges::find(attached_, nullptr, &Attached::log);
      const auto slot =
          std::ranges::find_if(g_logs, [](auto& s) { return s.load(std::memory_order_relaxed) == nullptr; });
      if (free == attached_.end() || slot == g_logs.end()) {
        *why = "too many caches watch memory at the same time";
        return false;
      }
      *free = {&log, 0};
      attached = &*free;
      slot->store(&log, std::memory_order_seq_cst);
      // SYNC POINT: as in ChangeLog::watch(), called earlier: a hook that did not see the log is seen as a flight.
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    ++attached->ranges;
    ++g_subscriptions;
    return true;
  }

  void unsubscribe(uint64_t, uint64_t, ChangeLog& log) noexcept override {
    const Guard guard(g_mutex);
    Attached* attached = find(&log);
    if (attached == nullptr) return;  // in a forked child
    if (--attached->ranges == 0) {
      attached->log = nullptr;
      for (auto& slot : g_logs) {
        if (slot.load(std::memory_order_relaxed) == &log) slot.store(nullptr, std::memory_order_seq_cst);
      }
      Backoff backoff;
      while (g_readers.load(std::memory_order_seq_cst) != 0) backoff.pause();  // a hook that has just read the slot
    }
    if (g_subscriptions != 0 && --g_subscriptions == 0 && g_installed) uninstall();
  }

  [[nodiscard]] bool changing(uint64_t begin, uint64_t end) noexcept override {
    if (g_more_flights.load(std::memory_order_seq_cst) != 0) return true;
    return std::ranges::any_of(g_flights, [&](const Flight& f) {
      return f.busy.load(std::memory_order_acquire) && f.begin.load(std::memory_order_relaxed) < end &&
             begin < f.end.load(std::memory_order_relaxed);
    });
  }

  [[nodiscard]] bool active() noexcept override {
    const Guard guard(g_mutex);
    return g_installed;
  }

  void after_fork_in_child() noexcept override { attached_ = {}; }

 private:
  struct Attached {
    ChangeLog* log = nullptr;
    size_t ranges = 0;
  };
  static bool advise(std::string* why) {
    *why = "memhooks does not work here: " + *why + "; set FI_MR_CACHE_MONITOR to userfaultfd";
    return false;
  }
  Attached* find(const ChangeLog* log) noexcept {
    const auto it = std::ranges::find(attached_, log, &Attached::log);
    return it == attached_.end() ? nullptr : &*it;
  }
  std::array<Attached, kLogMax> attached_{};
};

#else

class MemhooksMonitor final : public Monitor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "memhooks"; }
  [[nodiscard]] bool available(std::string* why) override {
    *why =
        "memhooks is for x86-64 with glibc, and not for builds with a thread sanitizer; set FI_MR_CACHE_MONITOR to "
        "userfaultfd";
    return false;
  }
  bool subscribe(uint64_t, uint64_t, ChangeLog&, std::string* why) override { return available(why); }
  void unsubscribe(uint64_t, uint64_t, ChangeLog&) noexcept override {}
  [[nodiscard]] bool active() noexcept override { return false; }
};

#endif

}  // namespace

std::shared_ptr<Monitor> make_memhooks_monitor() {
  return std::make_shared<MemhooksMonitor>();
}

}  // namespace weft::mem
