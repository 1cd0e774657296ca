// cpp/nic/engine.cpp: what the NIC does while its application does not call: frames, connections, waiting operations.
#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

constexpr size_t kFrameBudget = 256;      // a round
constexpr uint32_t kBusyRounds = 16;      // that find frames, until connections are looked at in spite of them
constexpr int64_t kSnoozeNs = 1'000'000;  // while an application thread polls, the engine looks in once a while

}  // namespace

size_t Nic::progress(bool events) {
  const std::unique_lock lock(progress_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return 0;
  return progress_locked(events);
}

// Exceptions that peers cause are caught where they arise; what arrives here is a lack of memory, and is tried again.
size_t Nic::progress_locked(bool events) noexcept try {
  size_t n = 0;
  for (link::Link* link : parts_.links) {
    // A polling thread knows from the hints which links have frames; polling an empty link costs 60 ns.
    if (events || link->maybe_ready()) n += link->poll(*this, kFrameBudget);
  }
  // While frames arrive they come before connections, which take system calls to look at.
  if (events && (n == 0 || ++busy_rounds_ % kBusyRounds == 0)) {
    size_t happened = 0;
    for (link::Link* link : parts_.links) happened += link->poll_events(*this);
    if (n != 0 || !has_engine()) mem::keep_fault_handler();  // an engine that is not so busy does it when it wakes
    if (happened != 0) {
      if (segments().resting()) segments().look_at_holds();  // a peer may have rung because it ended a hold
      // SYNC POINT: poll_events() may have consumed the doorbell. Poll the rings again, so that the frame it announced
      // is not left waiting, and wake any sleeper, so that it arms the doorbell again.
      size_t frames = 0;
      for (link::Link* link : parts_.links) frames += link->poll(*this, kFrameBudget);
      if (frames >= kFrameBudget || sleepers_.load(std::memory_order_seq_cst) != 0) parts_.waiter->wake();
      n += happened + frames;
    }
  }
  if (!owed_.empty()) n += retry_deferred();
  if (waiting_ops_.load(std::memory_order_relaxed) != 0) n += pump_all();
  return n;
} catch (const std::exception&) {
  return 0;
}

size_t Nic::pump_all() {
  size_t n = 0;
  const std::lock_guard objects(objects_mutex_);
  for (Domain* domain : domains_) {
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    for (Flow *flow = domain->waiting_, *next = nullptr; flow != nullptr; flow = next) {
      next = flow->next_waiting;  // pump() takes no other flow off the list
      n += domain->pump(*flow);
    }
  }
  return n;
}

void Nic::start_engine() {
  stopping_.store(false);
  // Signals are the application's: none may be delivered to this thread, where no handler's effect would be seen.
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
  uint64_t seen_polls = app_polls_.load(std::memory_order_relaxed);
  while (!stopping_.load(std::memory_order_acquire)) {
    size_t n = 0;
    {
      // A polling application thread may hold it; then there is nothing to do here.
      const std::unique_lock lock(progress_mutex_, std::try_to_lock);
      if (lock.owns_lock()) n = progress_locked(true);
    }
    if (n != 0) continue;
    const uint64_t polls = app_polls_.load(std::memory_order_relaxed);
    if (polls != seen_polls && !engine_armed_.load(std::memory_order_relaxed)) {
      // The application polls: leave the links to it. The doorbell stays unarmed, which saves peers a system call a
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
    // SYNC POINT: first the word, then the look; need_engine() looks at the word after it has counted what waits.
    engine_rests_.store(true, std::memory_order_seq_cst);
    bool timers = must_look_again();
    for (link::Link* link : parts_.links) {
      idle = link->prepare_sleep() && idle;
      timers = timers || link->has_timers();
    }
    if (idle) {
      engine_wakes_.fetch_add(1, std::memory_order_relaxed);
      parts_.waiter->wait(timers ? kSnoozeNs : -1);
      mem::keep_fault_handler();  // the application may have installed handlers meanwhile
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    engine_rests_.store(false, std::memory_order_relaxed);
  }
}

void Nic::need_engine() noexcept {
  if (!engine_rests_.load(std::memory_order_seq_cst)) [[likely]]
    return;
  if (engine_rests_.exchange(false, std::memory_order_seq_cst)) parts_.waiter->wake();
}

void Nic::prepare_app_sleep() {
  if (!has_engine()) return;
  // The engine may be in its short sleep because we polled; arm the links, so that the next frame wakes it at once.
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
  if (idle) parts_.waiter->wait(timers && (timeout_ns < 0 || timeout_ns > kSnoozeNs) ? kSnoozeNs : timeout_ns);
  mem::keep_fault_handler();
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  progress();
}

}  // namespace weft::nic
