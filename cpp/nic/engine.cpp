// cpp/nic/engine.cpp: progress (frames, connections, waiting operations), and the thread that makes it.
#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "nic/nic.hpp"
#include "nic/parking.hpp"

namespace weft::nic {

namespace {

constexpr size_t kFrameBudget = 256;      // frames per round
constexpr uint32_t kBusyRounds = 16;      // rounds with frames after which connections are polled too
constexpr int64_t kSnoozeNs = 1'000'000;  // sleep of the engine between rounds while an application thread polls
constexpr int64_t kSettleNs =
    20'000'000;  // age at which a NIC takes part in the fences of others: 4 to 10 ms in the kernel

// The shorter of two sleeps; a negative one has no end.
int64_t shorter(int64_t a, int64_t b) noexcept {
  return a < 0 ? b : b < 0 ? a : std::min(a, b);
}

}  // namespace

size_t Nic::progress(bool events) {
  const std::unique_lock lock(progress_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return 0;
  return progress_locked(events || events_due_.load(std::memory_order_relaxed));
}

// Exceptions that peers cause are caught earlier. Only bad_alloc arrives here, and the next round tries again.
size_t Nic::progress_locked(bool events) noexcept try {
  progress_mutex_.assert_held();
  size_t n = 0;
  for (link::Link* link : parts_.links) {
    // A polling thread uses the links' hints, because polling an empty link costs 60 ns.
    if (events || link->maybe_ready()) n += link->poll(*this, kFrameBudget);
  }
  // Serve frames before connections, which cost system calls to poll.
  if (events && (n == 0 || ++busy_rounds_ % kBusyRounds == 0)) {
    size_t happened = 0;
    events_due_.store(false, std::memory_order_relaxed);
    for (link::Link* link : parts_.links) happened += link->poll_events(*this);
    if (parts_.viewers != nullptr) n += parts_.viewers->answer(*this);
    if (n != 0 || !has_engine()) mem::keep_fault_handler();  // an engine that sleeps does this when it wakes
    if (happened != 0) {
      if (segments().resting()) segments().look_at_holds();  // a peer rings when it ends a hold
      // SYNC POINT: poll_events() may have consumed the doorbell. Poll the rings again, so that the frame it announced
      // is not left waiting, and wake any sleeper, so that it arms the doorbell again.
      size_t frames = 0;
      for (link::Link* link : parts_.links) frames += link->poll(*this, kFrameBudget);
      if (frames >= kFrameBudget || sleepers_.load(std::memory_order_seq_cst) != 0) parts_.waiter->wake();
      n += happened + frames;
    }
  }
  if (!owed_.empty()) n += retry_deferred();
  if (notices_.count() != 0) [[unlikely]]
    n += send_notices();
  if (pulls_wait_.load(std::memory_order_relaxed)) [[unlikely]]
    n += run_pulls();
  if (waiting_ops_.load(std::memory_order_relaxed) != 0) n += pump_all();
  if (works_.load(std::memory_order_relaxed) != 0) [[unlikely]]
    n += run_triggers();
  if (watched_count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
    n += look_at_pages();
  if (parking_->count() != 0) [[unlikely]]
    n += parking_->look_again();
  return n;
} catch (const std::exception&) {
  return 0;
}

size_t Nic::pump_all() {
  progress_mutex_.assert_held();
  size_t n = 0;
  for (const std::atomic<Domain*>& slot : domains_) {
    Domain* const domain = slot.load(std::memory_order_acquire);
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    if (!domain->reordering().empty()) [[unlikely]]
      n += domain->release_due(parts_.clock->now_ns());
    for (Flow *flow = domain->first_waiting(), *next = nullptr; flow != nullptr; flow = next) {
      next = flow->next_waiting;  // pump() removes no other flow from the list
      n += domain->pump(*flow);
    }
  }
  return n;
}

void Nic::start_engine() {
  stopping_.store(false);
  // Block all signals: they belong to the application's threads, not to this one.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  engine_ = std::thread([this] { engine_loop(); });
  has_engine_.store(true, std::memory_order_relaxed);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void Nic::stop_engine() noexcept {
  if (!engine_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  parts_.waiter->wake();
  engine_.join();
  has_engine_.store(false, std::memory_order_relaxed);
}

void Nic::engine_loop() {
  (void)::pthread_setname_np(::pthread_self(), "weft-nic");
  const uint64_t begun = world().now_ns();
  bool takes_part = false;
  uint64_t seen_polls = app_polls_.load(std::memory_order_relaxed);
  while (!stopping_.load(std::memory_order_acquire)) {
    // Started later, because joining this thread would delay the exit of a short program. Until then waiters poll.
    if (!takes_part && world().now_ns() - begun >= uint64_t{kSettleNs}) [[unlikely]] {
      world().take_part();
      takes_part = true;
    }
    size_t n = 0;
    {
      // If a polling application thread holds the lock, that thread makes the progress: also on connections, because
      // while operations wait for a connection, a thread that polls has the lock nearly always.
      const std::unique_lock lock(progress_mutex_, std::try_to_lock);
      if (lock.owns_lock()) {
        n = progress_locked(true);
      } else {
        events_due_.store(true, std::memory_order_relaxed);
      }
    }
    if (n != 0) continue;
    const uint64_t polls = app_polls_.load(std::memory_order_relaxed);
    if (polls != seen_polls && !engine_armed_.load(std::memory_order_relaxed)) {
      // The application polls: leave the links to it. The doorbell stays unarmed, which saves peers a system call per
      // frame.
      seen_polls = polls;
      for (link::Link* link : parts_.links) link->leave_to_polls();
      parts_.waiter->wait(kSnoozeNs);
      mem::keep_fault_handler();
      continue;
    }
    engine_armed_.store(false, std::memory_order_relaxed);
    seen_polls = polls;
    bool idle = true;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);  // before the doorbell is armed; see progress_locked()
    // SYNC POINT: set the flag, then check for work; need_engine() counts its work, then reads the flag.
    engine_rests_.store(true, std::memory_order_seq_cst);
    bool timers = must_look_again();
    for (link::Link* link : parts_.links) {
      idle = link->prepare_sleep() && idle;
      timers = timers || link->has_timers();
    }
    if (idle) {
      if (takes_part) engine_wakes_.fetch_add(1, std::memory_order_relaxed);
      parts_.waiter->wait(shorter(timers ? kSnoozeNs : takes_part ? -1 : kSettleNs, parking_->next_look_in()));
      mem::keep_fault_handler();  // the application may have installed handlers since
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    engine_rests_.store(false, std::memory_order_relaxed);
  }
}

bool Nic::must_look_again() const noexcept {
  return deferred_count_.load(std::memory_order_seq_cst) != 0 || waiting_ops_.load(std::memory_order_seq_cst) != 0 ||
         watched_count_.load(std::memory_order_seq_cst) != 0 || !notices_.empty() ||
         pulls_wait_.load(std::memory_order_seq_cst) || parking_->must_look_again();
}

void Nic::need_engine() noexcept {
  if (!engine_rests_.load(std::memory_order_seq_cst)) [[likely]]
    return;
  if (engine_rests_.exchange(false, std::memory_order_seq_cst)) parts_.waiter->wake();
}

void Nic::prepare_app_sleep() {
  if (!has_engine()) return;
  // The engine may be in its short sleep, because we polled. Arm the links, so that the next frame wakes it at once.
  engine_armed_.store(true, std::memory_order_relaxed);
  bool idle = true;
  for (link::Link* link : parts_.links) idle = link->prepare_sleep() && idle;
  if (!idle || waiting_ops_.load(std::memory_order_relaxed) != 0) parts_.waiter->wake();
}

void Nic::wait_as_engine(int64_t timeout_ns) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bool idle = true, timers = must_look_again();
  for (link::Link* link : parts_.links) {
    idle = link->prepare_sleep() && idle;
    timers = timers || link->has_timers();
  }
  if (idle) parts_.waiter->wait(shorter(timeout_ns, timers ? kSnoozeNs : parking_->next_look_in()));
  mem::keep_fault_handler();
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  progress();
}

}  // namespace weft::nic
