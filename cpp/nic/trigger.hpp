// cpp/nic/trigger.hpp: the trigger unit of a domain: deferred work, which the NIC starts when a counter's value reaches
// a threshold.
//
//   queue() -> waits for a trigger entry -> armed at its counter -> ready -> started on its endpoint
//
// A chain (work counts in a counter that triggers further work, and so on) runs here, in one loop and without calls of
// the application. Work that an endpoint's full queue refuses stays ready, in order, and is tried again in each round
// of progress. Work has copies of its arguments, but not of its data buffers.
//
// Callers: any thread. Counters change under many locks, so on_counter() takes one leaf lock and only moves due work to
// the ready list. run() starts the ready work under run_lock_, which base/lock_rank.hpp places above the objects' mutex
// of the NIC and the domain's lock: its caller holds neither. One thread runs at a time, and the others leave their
// work to it. The thread that has changed a counter runs after it has released its locks (PostLock, Nic::progress()).
//
// Model: as on hardware, work occupies an entry of the service's until it starts. Hardware deadlocks if there are too
// few entries; here work without an entry waits in order until there is one.
// Source: fi_trigger(3); fi_cxi(7) "Triggered Operation".
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/lock.hpp"
#include "nic/atomics.hpp"
#include "nic/counter.hpp"
#include "nic/op.hpp"
#include "nic/rules.hpp"
#include "nic/rx_mode.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class Domain;
class Endpoint;

// One piece of deferred work.
struct Work {
  // Of an attempt to start. dropped: the endpoint is closed. later: a queue is full.
  enum class Outcome : uint8_t { started, later, dropped };
  // set, add: change `counter`. write_back: writes the triggering counter to its client's memory.
  enum class Kind : uint8_t { transfer, atomic, send, receive, set, add, write_back };
  Kind kind = Kind::transfer;
  uint64_t threshold = 0;
  std::shared_ptr<Counter> trigger;
  std::shared_ptr<Counter> counter;  // counts the operation instead of the endpoint's; of set and add: the counter
  uint64_t value = 0;                // of set and add
  std::shared_ptr<Endpoint> ep;
  std::shared_ptr<Flow> flow;  // to the target
  OpKind access = OpKind::write;
  AtomicFamily family{};
  AtomicOp op{};
  Datatype datatype{};
  bool tagged = false;
  uint8_t device = 0, compare_device = 0, result_device = 0;  // bit i: that buffer is device memory
  uint64_t source = ~uint64_t{0}, tag = 0, ignore = 0;
  uint64_t flags = 0, context = 0, data = 0, total = 0;
  ShortList<iovec> local, compare, result;
  ShortList<wire::RmaRange> remote;
  std::vector<std::byte> held;    // copy of the data (FI_INJECT)
  std::vector<uint64_t> cookies;  // objects of the caller, returned when the operation is done
  uint64_t owner = 0;             // the caller's name of the work, for cancel()
  bool has_entry = false;
};

class TriggerUnit final {
 public:
  explicit TriggerUnit(Domain* domain) noexcept : domain_(domain) {}
  TriggerUnit(const TriggerUnit&) = delete;
  TriggerUnit& operator=(const TriggerUnit&) = delete;

  // The entries of the service. Without them there is no limit. Call before the first queue().
  void set_entries(const ListEntries& entries) noexcept { entries_ = entries; }

  // Queues work; `write_back` adds the write-back of the triggering counter at its next value, which needs an entry
  // too. waits: no entry is free, so the work waits for one. full: the same with may_wait false, and nothing is queued.
  // closed: the domain is, or the triggering counter belongs to another domain. Throws std::bad_alloc.
  // Takes *work unless the result is full or closed. The caller calls run() next.
  enum class Queued : uint8_t { armed, waits, full, closed };
  Queued queue(std::unique_ptr<Work>* work, bool write_back, bool may_wait);

  // The counter's value was changed to `reached`. noexcept, and no lock but a leaf.
  void on_counter(Counter& counter, uint64_t reached) noexcept;

  [[nodiscard]] bool has_work() const noexcept { return to_do_.load(std::memory_order_seq_cst) != 0; }
  // Starts ready work, and arms work for which there are entries now. Returns the number of steps.
  size_t run() noexcept;

  // Drops all work that has not started, without completions or counts. Returns its number.
  size_t flush() noexcept;
  bool cancel(uint64_t owner) noexcept;          // drops one piece of work; false: it has started, or there is none
  void forget(const Counter* counter) noexcept;  // drops the work that the counter would trigger
  void forget(const Endpoint* ep) noexcept;      // drops the work of the endpoint
  void close() noexcept;                         // flushes, and refuses further work

  struct Statistics {
    size_t armed = 0;    // wait for their counters
    size_t waiting = 0;  // wait for an entry
    size_t ready = 0;    // wait for room in the queues of their endpoints
    uint64_t started = 0;
  };
  [[nodiscard]] Statistics statistics() noexcept;

 private:
  // Work moves between lists as a node of these maps, so that nothing is allocated when a counter changes. The key of
  // armed work is its threshold; otherwise it is a number in the order of queueing.
  using Works = std::multimap<uint64_t, std::unique_ptr<Work>>;

  void give_entry(Work& work) noexcept;
  // These two require lock_. Both return the number of works that have become ready: pass it to tell().
  size_t arm(Works::node_type node);
  size_t collect(Counter& counter, uint64_t reached) noexcept;
  void tell(size_t more) noexcept;  // without lock_
  void note_done(size_t n) noexcept;
  size_t arm_waiting() noexcept;
  size_t pass() noexcept;
  Work::Outcome start(Work& work) noexcept;
  template <typename Matches>
  size_t drop_if(Matches&& matches) noexcept;

  Domain* domain_;  // valid while there is work
  ListEntries entries_;
  std::atomic<size_t> to_do_{0};   // size of waiting_ and ready_
  std::atomic<uint64_t> news_{0};  // grows when work becomes ready, so that the thread that runs looks again
  RankedSpin<lock_rank::kTriggerRun> run_lock_;  // held by the thread that runs
  std::atomic<bool> runs_{false};

  RankedSpin<lock_rank::kTrigger> lock_;
  bool closed_ GUARDED_BY(lock_) = false;
  std::map<Counter*, Works> armed_ GUARDED_BY(lock_);
  Works waiting_ GUARDED_BY(lock_), ready_ GUARDED_BY(lock_);
  uint64_t next_number_ GUARDED_BY(lock_) = 0, pass_ GUARDED_BY(run_lock_) = 0, started_ GUARDED_BY(lock_) = 0;
};

}  // namespace weft::nic
