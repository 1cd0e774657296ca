// cpp/mem/life.cpp: see life.hpp.
#include "mem/life.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace weft::mem {

namespace {

static_assert(kLifeOver == FUTEX_OWNER_DIED);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) noexcept {
  while (word.load(std::memory_order_acquire) == value) {
    (void)::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
}

void set(std::atomic<uint32_t>& word) noexcept {
  word.store(1, std::memory_order_release);
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace

struct LifeMark::Keeper {
  std::atomic<uint32_t>* word = nullptr;
  std::atomic<uint32_t> started{0}, stop{0};
  robust_list node{};
  robust_list_head head{};
  pthread_t thread{};

  static void* run(void* keeper) {
    static_cast<Keeper*>(keeper)->keep();
    return nullptr;
  }
  void keep() noexcept {
    (void)::prctl(PR_SET_NAME, "weft-life");
    node.next = &head.list;
    head.list.next = &head.list;
    head.futex_offset = reinterpret_cast<std::byte*>(word) - reinterpret_cast<std::byte*>(&node);
    head.list_op_pending = &node;  // the kernel reads this too, in case we die before the node is in the list
    // Replaces the C library's list, which holds mutexes; this thread has none. The kernel marks the word only if the
    // word contains the thread's id.
    if (::syscall(SYS_set_robust_list, &head, sizeof(head)) == 0) {
      word->store(static_cast<uint32_t>(::syscall(SYS_gettid)), std::memory_order_release);
      head.list.next = &node;
      std::atomic_signal_fence(std::memory_order_seq_cst);
      head.list_op_pending = nullptr;
    }
    set(started);
    sleep_while(stop, 0);
  }
};

LifeMark::LifeMark(std::atomic<uint32_t>& word) : keeper_(std::make_unique<Keeper>()) {
  keeper_->word = &word;
  sigset_t all, old;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &old);  // the new thread takes no signals of the application
  const bool made = ::pthread_create(&keeper_->thread, nullptr, &Keeper::run, keeper_.get()) == 0;
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (!made) {
    keeper_.reset();
    return;
  }
  sleep_while(keeper_->started, 0);
}

LifeMark::~LifeMark() {
  if (!keeper_) return;
  set(keeper_->stop);
  ::pthread_join(keeper_->thread, nullptr);
}

}  // namespace weft::mem
