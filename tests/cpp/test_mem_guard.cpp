// tests/cpp/test_mem_guard.cpp: a failing page ends a guarded copy and nothing else. Every other fault goes to the
// handler that it went to before, whether that handler was installed before or after ours.
#include "mem/guard.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "fabric.hpp"
#include "page.hpp"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace weft;
using namespace weft::test;

/// Four pages, of which the last two can fail in one of several ways.
class Pages {
 public:
  enum Way { unmapped, closed, read_only, cut_off };
  explicit Pages(Way way) {
    if (way == cut_off) fd_ = UniqueFd(::memfd_create("pages", MFD_CLOEXEC));
    if (way == cut_off) BOOST_REQUIRE(::ftruncate(fd_.get(), static_cast<off_t>(4 * kPage)) == 0);
    void* p = ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE,
                     way == cut_off ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd_.get(), 0);
    BOOST_REQUIRE(p != MAP_FAILED);
    at = static_cast<std::byte*>(p);
    std::memset(at, 1, 4 * kPage);
    std::byte* const half = at + 2 * kPage;
    if (way == unmapped) ::munmap(half, 2 * kPage);
    if (way == closed) ::mprotect(half, 2 * kPage, PROT_NONE);
    if (way == read_only) ::mprotect(half, 2 * kPage, PROT_READ);
    if (way == cut_off) BOOST_REQUIRE(::ftruncate(fd_.get(), static_cast<off_t>(2 * kPage)) == 0);
  }
  ~Pages() { ::munmap(at, 4 * kPage); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* at;

 private:
  UniqueFd fd_;
};

/// The signal that ends a child which runs `body`; 0: the child exited normally.
int signal_of(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  BOOST_REQUIRE(pid >= 0);
  if (pid == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) ::signal(signal, SIG_DFL);  // not the test framework's
    mem::keep_fault_handler();
    body();
    ::_exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(pid, &status, 0) == pid);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

void install(int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction* before = nullptr) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(signal, &action, before);
}

[[gnu::noinline]] void touch(volatile std::byte* at) {
  *at = std::byte{1};
}

const std::byte* mine_of(const uint64_t* word) {
  return reinterpret_cast<const std::byte*>(word);
}

struct Kept {  // the test framework installs handlers of its own for every case
  Kept() { mem::keep_fault_handler(); }
};

BOOST_FIXTURE_TEST_SUITE(mem_guard, Kept)

BOOST_AUTO_TEST_CASE(test_guarded_copy_ends_at_a_page_that_fails) {
  std::vector<std::byte> mine(4 * kPage, std::byte{7});
  for (const auto way : {Pages::unmapped, Pages::closed, Pages::read_only, Pages::cut_off}) {
    const Pages pages(way);
    for (const size_t n : {size_t{1}, size_t{4}, size_t{8}, size_t{100}, 2 * kPage}) {
      BOOST_TEST(mem::copy_guarded(pages.at, mine.data(), n));
      BOOST_TEST(!mem::copy_guarded(pages.at + 2 * kPage, mine.data(), n));
      BOOST_TEST(!mem::copy_guarded(pages.at + kPage, mine.data(), kPage + n));
      BOOST_TEST(mem::copy_guarded(mine.data(), pages.at + 2 * kPage, n) == (way == Pages::read_only));
      BOOST_TEST(mem::readable(pages.at, 2 * kPage));
      BOOST_TEST(mem::readable(pages.at + kPage, kPage + n) == (way == Pages::read_only));
    }
  }
  const Pages pages(Pages::closed);
  BOOST_TEST(mem::copy_guarded(pages.at + 2 * kPage, mine.data(), 0));
  BOOST_TEST(!mem::copy_guarded(reinterpret_cast<std::byte*>(uint64_t{1} << 60), mine.data(), 8));  // no fault address
  BOOST_TEST(!mem::copy_guarded(mine.data(), nullptr, 8));
}

BOOST_AUTO_TEST_CASE(test_hot_copy_of_any_length_copies_each_byte_once) {
  std::vector<std::byte> from(200'000), to(200'000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (size_t n = 0; n <= 140'000; n += n > 4200 ? 7919 : n < 1100 || n >= 4090 ? 1 : 37) {
    const size_t shift = n % 33;
    std::ranges::fill(to, std::byte{0xa5});
    BOOST_REQUIRE(mem::copy_guarded_hot(to.data() + shift, from.data() + 3 * shift, n));
    BOOST_REQUIRE(std::memcmp(to.data() + shift, from.data() + 3 * shift, n) == 0);
    const auto untouched = [](std::byte b) { return b == std::byte{0xa5}; };
    BOOST_REQUIRE(std::all_of(to.begin(), to.begin() + static_cast<ptrdiff_t>(shift), untouched));
    BOOST_REQUIRE(std::all_of(to.begin() + static_cast<ptrdiff_t>(shift + n), to.end(), untouched));
  }
}

BOOST_AUTO_TEST_CASE(test_hot_copy_ends_at_a_page_that_fails_at_any_byte) {
  std::vector<std::byte> mine(4 * kPage, std::byte{7});
  for (const auto way : {Pages::unmapped, Pages::closed, Pages::read_only, Pages::cut_off}) {
    const Pages pages(way);
    std::byte* const edge = pages.at + 2 * kPage;
    for (size_t n = 1; n <= 4097; n = n < 70 ? n + 1 : n + (n < 1024 ? 73 : 439)) {
      BOOST_REQUIRE(mem::copy_guarded_hot(edge - n, mine.data(), n));
      for (size_t inside = 0; inside < n; inside = inside < 70 ? inside + 1 : inside + 61) {
        BOOST_REQUIRE(!mem::copy_guarded_hot(edge - inside, mine.data(), n));
        BOOST_REQUIRE(mem::copy_guarded_hot(mine.data(), edge - inside, n) == (way == Pages::read_only));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(test_hot_add_fails_with_its_operand_before_it_adds) {
  const Pages pages(Pages::closed);
  auto* const gone = pages.at + 2 * kPage;
  uint64_t target = 40, two = 2, before = 0;
  bool possible = false;
  BOOST_TEST(mem::copy_guarded(reinterpret_cast<std::byte*>(&before), mine_of(&two), 8));  // the thread is prepared
  if (mem::add_guarded_hot(&target, &two, &before, &possible)) {
    BOOST_TEST(before == 40u);
    BOOST_TEST(target == 42u);
    BOOST_TEST(mem::add_guarded_hot(&target, &two, nullptr, &possible));
    BOOST_TEST(target == 44u);
    BOOST_TEST(!mem::add_guarded_hot(&target, gone, nullptr, &possible));
    BOOST_TEST(!mem::add_guarded_hot(&target, gone, &before, &possible));
    BOOST_TEST(target == 44u);
    BOOST_TEST(!mem::add_guarded_hot(&target, &two, gone, &possible));
    BOOST_TEST(target == 46u);  // the operation was done, and its result is lost
  }
  BOOST_TEST(possible == (WEFT_GUARD_FIXUPS != 0));
}

#if !defined(WEFT_TEST_NO_FORK)  // ThreadSanitizer keeps a mask and handlers of its own
BOOST_AUTO_TEST_CASE(test_guarded_copy_works_in_a_thread_that_blocks_all_signals) {
  const Pages pages(Pages::closed);
  std::thread([&] {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    const std::byte word[8] = {};
    BOOST_TEST(!mem::copy_guarded(pages.at + 2 * kPage, word, 8));
  }).join();
}

BOOST_AUTO_TEST_CASE(test_guarded_fault_leaves_the_threads_state_as_it_was) {
  const Pages pages(Pages::closed);
  const std::byte word[8] = {};
  BOOST_TEST(mem::copy_guarded(pages.at, word, 8));
  sigset_t before{}, after{};
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  stack_t stack_before{}, stack_after{};
  ::sigaltstack(nullptr, &stack_before);
#if defined(__x86_64__)
  const unsigned modes = _mm_getcsr();
  _mm_setcsr(modes | 0x8040);  // denormals are zero
#endif
  BOOST_TEST(!mem::copy_guarded(pages.at + 2 * kPage, word, 8));
#if defined(__x86_64__)
  BOOST_TEST((_mm_getcsr() & 0x8040) == 0x8040U);
  _mm_setcsr(modes);
#endif
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  ::sigaltstack(nullptr, &stack_after);
  BOOST_TEST(std::memcmp(&before, &after, sizeof(before)) == 0);
  BOOST_TEST(stack_before.ss_flags == stack_after.ss_flags);
  BOOST_TEST(stack_before.ss_sp == stack_after.ss_sp);
}

BOOST_AUTO_TEST_CASE(test_fault_outside_a_guard_ends_the_process_by_its_signal) {
  const Pages closed(Pages::closed), cut(Pages::cut_off);
  BOOST_TEST(signal_of([&] { touch(closed.at + 2 * kPage); }) == SIGSEGV);
  BOOST_TEST(signal_of([&] { touch(cut.at + 2 * kPage); }) == SIGBUS);
  BOOST_TEST(signal_of([&] {  // during a guarded access, but outside of its memory
               const mem::MemoryRange range{cut.at, kPage};
               (void)mem::guarded({&range, 1}, [&] { touch(closed.at + 2 * kPage); });
             }) == SIGSEGV);
  BOOST_TEST(signal_of([] { ::raise(SIGBUS); }) == SIGBUS);
  BOOST_TEST(signal_of([] {
               ::kill(::getpid(), SIGSEGV);
               ::pause();
             }) == SIGSEGV);
  BOOST_TEST(signal_of([&] {  // also after a guard has handled a fault
               const std::byte word[8] = {};
               if (mem::copy_guarded(closed.at + 2 * kPage, word, 8)) ::_exit(1);
               touch(closed.at + 2 * kPage);
             }) == SIGSEGV);
}

BOOST_AUTO_TEST_CASE(test_guard_ignored_signal_still_kills_at_a_fault) {
  const Pages closed(Pages::closed);
  const auto ignoring = [] {
    ::signal(SIGSEGV, SIG_IGN);
    mem::keep_fault_handler();
  };
  BOOST_TEST(signal_of([&] {
               ignoring();
               ::raise(SIGSEGV);
             }) == 0);
  BOOST_TEST(signal_of([&] {
               ignoring();
               touch(closed.at + 2 * kPage);
             }) == SIGSEGV);
}

// What the handlers of the following cases have recorded, in a child.
sigjmp_buf g_back;
std::atomic<int> g_calls{0};
std::atomic<const void*> g_address{nullptr};
struct sigaction g_replaced;
const std::byte* g_other = nullptr;

BOOST_AUTO_TEST_CASE(test_guard_passes_other_faults_on_with_their_address) {
  const Pages closed(Pages::closed);
  const std::byte word[8] = {};
  for (const bool after_ours : {false, true}) {
    BOOST_TEST(signal_of([&] {
                 if (!after_ours) ::signal(SIGSEGV, SIG_DFL);
                 install(SIGSEGV, [](int, siginfo_t* info, void*) {
                   ++g_calls;
                   g_address = info->si_addr;
                   siglongjmp(g_back, 1);
                 });
                 mem::keep_fault_handler();
                 for (int i = 0; i < 100; ++i) {  // repeated: a handler may leave by a jump
                   if (sigsetjmp(g_back, 1) == 0) touch(closed.at + 2 * kPage + 5);
                   if (g_calls != i + 1 || g_address != closed.at + 2 * kPage + 5) ::_exit(1);
                   if (mem::copy_guarded(closed.at + 3 * kPage, word, 8)) ::_exit(2);
                   if (g_calls != i + 1) ::_exit(3);  // faults of guarded accesses do not reach the handler
                 }
               }) == 0);
  }
}

BOOST_AUTO_TEST_CASE(test_handler_that_repairs_the_page_lets_the_access_go_on) {
  BOOST_TEST(signal_of([&] {
               const Pages closed(Pages::closed);
               install(SIGSEGV, [](int, siginfo_t* info, void*) {
                 ++g_calls;
                 const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr) & ~(kPage - 1);
                 ::mprotect(reinterpret_cast<void*>(at), kPage, PROT_READ | PROT_WRITE);
               });
               mem::keep_fault_handler();
               touch(closed.at + 2 * kPage);
               if (g_calls != 1 || closed.at[2 * kPage] != std::byte{1}) ::_exit(1);
             }) == 0);
}

/// Like Python's faulthandler: the handler restores its predecessor, prints, and raises the signal again.
void report_and_raise(int signal, siginfo_t*, void*) {
  if (++g_calls > 1) ::_exit(100);
  ::sigaction(signal, &g_replaced, nullptr);
  ::raise(signal);
}

BOOST_AUTO_TEST_CASE(test_guard_handler_that_reraises_runs_once) {
  const Pages closed(Pages::closed);
  for (const bool kept : {false, true}) {
    BOOST_TEST(signal_of([&] {
                 install(SIGSEGV, report_and_raise, &g_replaced);
                 if (kept) mem::keep_fault_handler();
                 touch(closed.at + 2 * kPage);
               }) == SIGSEGV);
  }
  BOOST_TEST(signal_of([&] {  // and the handler was installed before ours
               ::signal(SIGSEGV, SIG_DFL);
               install(SIGSEGV, report_and_raise, &g_replaced);
               mem::keep_fault_handler();
               touch(closed.at + 2 * kPage);
             }) == SIGSEGV);
}

BOOST_AUTO_TEST_CASE(test_hot_copy_ends_at_a_page_that_fails) {
  std::vector<std::byte> mine(100, std::byte{7});
  for (const auto way : {Pages::unmapped, Pages::closed, Pages::read_only, Pages::cut_off}) {
    const Pages pages(way);
    for (const size_t n : {size_t{1}, size_t{4}, size_t{8}, size_t{100}}) {
      BOOST_TEST(mem::copy_guarded_hot(pages.at, mine.data(), n));
      BOOST_TEST((pages.at[n - 1] == std::byte{7}));
      BOOST_TEST(!mem::copy_guarded_hot(pages.at + 2 * kPage, mine.data(), n));
      BOOST_TEST(mem::copy_guarded_hot(mine.data(), pages.at + 2 * kPage, n) == (way == Pages::read_only));
      std::memset(mine.data(), 7, mine.size());
    }
  }
}

BOOST_AUTO_TEST_CASE(test_guarded_copy_survives_a_handler_installed_after_ours) {
  const Pages closed(Pages::closed);
  const std::vector<std::byte> mine(2 * kPage);
  for (const size_t n : {size_t{8}, size_t{1000}, 2 * kPage}) {
    for (const bool kept : {false, true}) {
      BOOST_TEST(signal_of([&] {
                   install(SIGSEGV, report_and_raise, &g_replaced);
                   if (kept) mem::keep_fault_handler();
                   if (mem::copy_guarded(closed.at + 2 * kPage, mine.data(), n)) ::_exit(1);
                   if (g_calls != (kept ? 0 : 1)) ::_exit(2);
                   if (mem::copy_guarded(closed.at + 2 * kPage, mine.data(), n)) ::_exit(3);
                 }) == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_guarded_copy_survives_a_reset_of_the_handler) {
  const Pages closed(Pages::closed);
  const std::byte word[8] = {};
  BOOST_TEST(signal_of([&] {
               ::signal(SIGSEGV, SIG_DFL);
               mem::keep_fault_handler();
               if (mem::copy_guarded(closed.at + 2 * kPage, word, 8)) ::_exit(1);
               touch(closed.at + 2 * kPage);
             }) == SIGSEGV);
}

BOOST_AUTO_TEST_CASE(test_guarded_copy_may_fail_within_a_handler_of_another_fault) {
  const Pages closed(Pages::closed);
  g_other = closed.at + 3 * kPage;
  BOOST_TEST(signal_of([&] {
               install(SIGSEGV, [](int, siginfo_t*, void*) {
                 std::byte word[8];
                 if (mem::copy_guarded(word, g_other, 8)) ::_exit(1);
                 siglongjmp(g_back, 1);
               });
               mem::keep_fault_handler();
               if (sigsetjmp(g_back, 1) == 0) touch(closed.at + 2 * kPage);
             }) == 0);
}

/// Two libraries that chain to each other's handlers must not call each other without end.
BOOST_AUTO_TEST_CASE(test_handlers_that_chain_in_a_ring_end_at_the_default) {
  const Pages closed(Pages::closed);
  BOOST_TEST(signal_of([&] {
               install(
                   SIGSEGV,
                   [](int signal, siginfo_t* info, void* context) {
                     if (++g_calls > 10) ::_exit(100);
                     g_replaced.sa_sigaction(signal, info, context);
                   },
                   &g_replaced);
               mem::keep_fault_handler();
               touch(closed.at + 2 * kPage);
             }) == SIGSEGV);
}
#endif

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
