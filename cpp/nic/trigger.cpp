// cpp/nic/trigger.cpp: see trigger.hpp.
#include "nic/trigger.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "nic/client_memory.hpp"
#include "nic/fast.inl"
#include "nic/nic.hpp"

namespace weft::nic {

// ---- counter.hpp ----------------------------------------------------------------------------------------------------

bool Counter::join(const std::shared_ptr<TriggerUnit>& unit) noexcept {
  if (!unit_) unit_ = unit;
  return unit_ == unit;
}

void Counter::trigger(uint64_t reached) noexcept {
  if (unit_) unit_->on_counter(*this, reached);  // without work a full counter may come here too
}

// ---- queueing -------------------------------------------------------------------------------------------------------

TriggerUnit::Queued TriggerUnit::queue(std::unique_ptr<Work>* work, bool write_back, bool may_wait) {
  const std::shared_ptr<Counter> counter = (*work)->trigger;
  const uint64_t threshold = (*work)->threshold;
  Works made;  // the work, and its write-back
  made.emplace(0, nullptr);
  if (write_back) {
    auto second = std::make_unique<Work>();
    second->kind = Work::Kind::write_back;
    second->threshold = std::max(threshold, threshold + 1);
    second->trigger = counter;
    second->owner = (*work)->owner;
    made.emplace(1, std::move(second));
  }
  const auto count = static_cast<uint32_t>(made.size());
  bool in_line;
  {
    const Guard guard(lock_);
    in_line = !waiting_.empty();
  }
  const bool has = !in_line && entries_.take(count);
  if (!has && !may_wait) return Queued::full;
  size_t ready = 0;
  try {
    const Guard guard(lock_);
    if (closed_ || !counter->join(domain_->shared_triggers())) {
      if (has) entries_.give(count);
      return Queued::closed;
    }
    if (has) armed_.try_emplace(counter.get());  // the only step that may throw
    made.begin()->second = std::move(*work);
    while (!made.empty()) {
      Works::node_type node = made.extract(made.begin());
      node.mapped()->has_entry = has;
      if (has) {
        ready += arm(std::move(node));
      } else {
        node.key() = next_number_++;
        waiting_.insert(waiting_.end(), std::move(node));
        ++ready;  // tell() counts it: progress() has to look for entries
      }
    }
  } catch (const std::bad_alloc&) {
    if (has) entries_.give(count);
    throw;
  }
  tell(ready);
  return has ? Queued::armed : Queued::waits;
}

size_t TriggerUnit::arm(Works::node_type node) {
  lock_.assert_held();
  Counter& counter = *node.mapped()->trigger;
  node.key() = node.mapped()->threshold;
  armed_[&counter].insert(std::move(node));
  return collect(counter, 0);
}

size_t TriggerUnit::collect(Counter& counter, uint64_t reached) noexcept {
  lock_.assert_held();
  const auto at = armed_.find(&counter);
  if (at == armed_.end()) {
    counter.arm(Counter::kNoTrigger);
    return 0;
  }
  Works& all = at->second;
  size_t n = 0;
  for (;;) {
    while (!all.empty() && all.begin()->first <= reached) {
      Works::node_type node = all.extract(all.begin());
      node.key() = next_number_++;
      ready_.insert(ready_.end(), std::move(node));
      ++n;
    }
    const uint64_t next = all.empty() ? Counter::kNoTrigger : all.begin()->first;
    // SYNC POINT: armed before the value is read again: the thread that adds, or this one, sees that work is due.
    counter.arm(next);
    if (all.empty()) break;
    reached = counter.value();
    if (reached < next) return n;
  }
  armed_.erase(at);
  return n;
}

void TriggerUnit::on_counter(Counter& counter, uint64_t reached) noexcept {
  size_t n;
  {
    const Guard guard(lock_);
    n = collect(counter, reached);
  }
  tell(n);
}

void TriggerUnit::tell(size_t more) noexcept {
  if (more == 0) return;
  Nic& nic = *domain_->nic();
  to_do_.fetch_add(more, std::memory_order_seq_cst);
  nic.add_works(more);
  // SYNC POINT: news before runs_ is read; run() clears runs_ before it reads the news.
  news_.fetch_add(1, std::memory_order_seq_cst);
  if (!runs_.load(std::memory_order_seq_cst)) nic.need_engine();
}

void TriggerUnit::note_done(size_t n) noexcept {
  if (n == 0) return;
  Nic& nic = *domain_->nic();
  to_do_.fetch_sub(n, std::memory_order_seq_cst);
  nic.drop_works(n);
}

void TriggerUnit::give_entry(Work& work) noexcept {
  if (std::exchange(work.has_entry, false)) entries_.give(1);
}

// ---- starting -------------------------------------------------------------------------------------------------------

size_t TriggerUnit::run() noexcept {
  size_t total = 0;
  while (has_work()) {
    uint64_t seen = 0;
    size_t n = 0;
    {
      const std::unique_lock running(run_lock_, std::try_to_lock);
      if (!running.owns_lock()) return total;  // the thread that runs looks again
      runs_.store(true, std::memory_order_seq_cst);
      seen = news_.load(std::memory_order_seq_cst);
      n = arm_waiting() + pass();
      runs_.store(false, std::memory_order_seq_cst);
    }
    total += n;
    if (n == 0 && news_.load(std::memory_order_seq_cst) == seen) break;  // the rest waits for queues, or for entries
  }
  return total;
}

size_t TriggerUnit::arm_waiting() noexcept {
  run_lock_.assert_held();
  size_t armed = 0;
  for (;;) {
    {
      const Guard guard(lock_);
      if (waiting_.empty()) return armed;
    }
    if (!entries_.take(1)) return armed;
    size_t ready = 0;
    bool taken = false;
    try {
      const Guard guard(lock_);
      if (!waiting_.empty()) {
        armed_.try_emplace(waiting_.begin()->second->trigger.get());  // the only step that may throw
        Works::node_type node = waiting_.extract(waiting_.begin());
        node.mapped()->has_entry = taken = true;
        ready = arm(std::move(node));
      }
    } catch (const std::bad_alloc&) {  // the next round tries again
    }
    if (!taken) {
      entries_.give(1);
      return armed;
    }
    ++armed;
    tell(ready);
    note_done(1);
  }
}

// Tries to start each work that is ready now.
size_t TriggerUnit::pass() noexcept {
  run_lock_.assert_held();
  Works now, later;
  {
    const Guard guard(lock_);
    now.swap(ready_);
  }
  ++pass_;
  size_t done = 0;
  while (!now.empty()) {
    Works::node_type node = now.extract(now.begin());
    Work& work = *node.mapped();
    switch (start(work)) {
      case Work::Outcome::later:
        later.insert(later.end(), std::move(node));
        continue;
      case Work::Outcome::dropped:
        domain_->release_received(work.cookies, work.context);
        break;
      case Work::Outcome::started:
        break;
    }
    give_entry(work);
    ++done;
  }
  {
    const Guard guard(lock_);
    ready_.merge(later);
    started_ += done;
  }
  note_done(done);
  return done;
}

Work::Outcome TriggerUnit::start(Work& work) noexcept try {
  run_lock_.assert_held();
  switch (work.kind) {
    case Work::Kind::set:
      work.counter->set(std::min(work.value, work.counter->limits().value_max));
      break;
    case Work::Kind::add:
      work.counter->add(work.value);
      break;
    case Work::Kind::write_back:
      if (work.trigger->memory() != nullptr) work.trigger->memory()->write_back_at(0);
      break;
    case Work::Kind::receive: {
      ReceiveArgs args;
      args.source = work.source;
      args.local = work.local;
      args.tag = work.tag;
      args.ignore = work.ignore;
      args.flags = work.flags;
      args.context = work.context;
      args.tagged = work.tagged;
      args.device = work.device;
      args.cookies = work.cookies;
      args.deferred = true;
      args.counter = work.counter;
      const Refusal r = work.ep->post_receive(args).refusal;
      if (r == Refusal::rx_full || r == Refusal::rx_changing || r == Refusal::rx_no_entry) return Work::Outcome::later;
      return r == Refusal::none ? Work::Outcome::started : Work::Outcome::dropped;
    }
    case Work::Kind::transfer:
    case Work::Kind::atomic:
    case Work::Kind::send: {
      const DomainLock guard(domain_);
      if (work.ep->full_in_pass == pass_) return Work::Outcome::later;
      const Work::Outcome outcome = work.ep->start(work);
      if (outcome == Work::Outcome::later) work.ep->full_in_pass = pass_;
      return outcome;
    }
  }
  domain_->release_received(work.cookies, work.context);
  return Work::Outcome::started;
} catch (const std::bad_alloc&) {
  return Work::Outcome::later;
}

Refusal TxPort::check_deferred(uint64_t dest, std::shared_ptr<Flow>* flow) {
  const DomainLock guard(domain_);
  if (state_ != State::enabled) return state_ == State::closed ? Refusal::closed : Refusal::not_enabled;
  if (!tx_cq_) return Refusal::no_cq;
  Flow* const found = flow_of(dest_of(dest));
  if (found == nullptr) return config_.connected ? Refusal::not_connected : Refusal::bad_address;
  *flow = found->shared_from_this();
  return Refusal::none;
}

// The work's operation. Its failure, like its end, is reported by finish().
Work::Outcome TxPort::start(Work& work) {
  domain_->assert_held();
  if (state_ != State::enabled) return Work::Outcome::dropped;
  const bool wants = (work.flags & flag::kCompletion) != 0;
  if (outstanding_ >= config_.tx_size || (wants ? !tx_cq_->has_room() : tx_cq_->full())) return Work::Outcome::later;
  if (work.kind == Work::Kind::send && messages_.lacks_id(work.tagged, work.total)) return Work::Outcome::later;
  if (Reorder* const reorder = model_.reorder())
    reorder->release_all();  // no operation is kept while deferred work starts
  const OpKind kind = work.kind == Work::Kind::send     ? OpKind::send
                      : work.kind == Work::Kind::atomic ? OpKind::atomic
                                                        : work.access;
  Op* op = make_op(kind, *work.flow, wants, work.flags, work.context, work.data, work.total, false);
  if (trace_ != nullptr) [[unlikely]]
    trace_->trace().triggered(trace_->endpoint(), static_cast<uint8_t>(kind), work.threshold, op->id);
  op->counter = work.counter;
  op->cookies = std::move(work.cookies);
  bool ready = false;
  try {
    wire::RmaRange names[kIovMax];
    const std::span<const wire::RmaRange> remote = named(work.remote, names);
    if (kind == OpKind::send) {
      SendArgs args;
      args.local = work.local;
      args.tag = work.tag;
      args.flags = work.flags;
      args.tagged = work.tagged;
      args.device = work.device;
      ready = messages_.take_args(op, args);
    } else if (kind == OpKind::atomic) {
      AtomicArgs args;
      args.family = work.family;
      args.op = work.op;
      args.datatype = work.datatype;
      args.operand = work.local;
      args.compare = work.compare;
      args.result = work.result;
      args.remote = remote;
      args.operand_device = work.device;
      args.compare_device = work.compare_device;
      args.result_device = work.result_device;
      HostCopies host;
      op->status = host.make(domain_->nic()->devices(), &args, work.total);
      const std::span<const iovec> results = work.result;
      ready = op->status == Status::ok && take_args(op, args, host.room.empty() ? std::span<const iovec>{} : results);
    } else {
      RmaArgs args;
      args.kind = kind;
      args.local = work.local;
      args.remote = remote;
      args.device = work.device;
      ready = take_args(op, args);
    }
    if (ready && kind != OpKind::send) op->status = barred(*work.flow->route);
  } catch (const std::bad_alloc&) {
    op->status = Status::no_memory;
  }
  if (op->status != Status::ok) ready = false;
  if (!ready) {
    if (kind != OpKind::send && op->access().remote.empty()) op->access().remote.set(wire::RmaRange{});
    finish(op);
    return Work::Outcome::started;
  }
  queue_op(op);
  return Work::Outcome::started;
}

size_t Nic::run_triggers() noexcept {
  progress_mutex_.assert_held();
  size_t n = 0;
  for (const std::atomic<Domain*>& slot : domains_) {
    Domain* const domain = slot.load(std::memory_order_acquire);  // lives until the progress lock is released
    if (domain != nullptr && domain->shared_triggers()->has_work()) n += domain->shared_triggers()->run();
  }
  return n;
}

// ---- dropping -------------------------------------------------------------------------------------------------------

template <typename Matches>
size_t TriggerUnit::drop_if(Matches&& matches) noexcept {
  // Work under way is in no list while another thread runs.
  const Guard running(run_lock_);
  Works dropped;
  size_t to_do = 0;
  {
    const Guard guard(lock_);
    const auto take = [&](Works& from) {
      size_t n = 0;
      for (auto at = from.begin(); at != from.end();) {
        const auto next = std::next(at);
        if (matches(*at->second)) {
          dropped.insert(dropped.end(), from.extract(at));
          ++n;
        }
        at = next;
      }
      return n;
    };
    for (auto at = armed_.begin(); at != armed_.end();) {
      Counter& counter = *at->first;
      const bool some = take(at->second) != 0;
      if (some) counter.arm(at->second.empty() ? Counter::kNoTrigger : at->second.begin()->first);
      at = at->second.empty() ? armed_.erase(at) : std::next(at);
    }
    to_do = take(waiting_);
    to_do += take(ready_);
  }
  for (auto& [key, work] : dropped) {
    give_entry(*work);
    domain_->release_received(work->cookies, work->context);
  }
  note_done(to_do);
  return dropped.size();
}

size_t TriggerUnit::flush() noexcept {
  return drop_if([](const Work&) { return true; });
}

bool TriggerUnit::cancel(uint64_t owner) noexcept {
  return drop_if([=](const Work& work) { return work.owner == owner; }) != 0;
}

void TriggerUnit::forget(const Counter* counter) noexcept {
  (void)drop_if([=](const Work& work) { return work.trigger.get() == counter; });
}

void TriggerUnit::forget(const Endpoint* ep) noexcept {
  (void)drop_if([=](const Work& work) { return work.ep.get() == ep; });
}

void TriggerUnit::close() noexcept {
  {
    const Guard guard(lock_);
    if (std::exchange(closed_, true)) return;
  }
  (void)flush();
}

TriggerUnit::Statistics TriggerUnit::statistics() noexcept {
  const Guard guard(lock_);
  Statistics s;
  for (const auto& [counter, works] : armed_) s.armed += works.size();
  s.waiting = waiting_.size();
  s.ready = ready_.size();
  s.started = started_;
  return s;
}

}  // namespace weft::nic
