// cpp/nic/queue.cpp: see queue.hpp.
#include "nic/queue.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <new>

#include "nic/av.hpp"

namespace weft::nic {

const CqEntry* CompletionQueue::head() const noexcept {
  if (count_ != 0) return &ring_[head_];
  return overflow_.empty() ? nullptr : &overflow_.front();
}

void CompletionQueue::pop() noexcept {
  if (count_ != 0) {
    head_ = (head_ + 1) & mask_;
    --count_;
  } else {
    overflow_.pop_front();
    --count_overflow_;
  }
}

void CompletionQueue::push_late(const CqEntry& entry) noexcept {
  try {
    if (overrun || count_overflow_ >= kOverflowMax) {
      overrun = true;
      return;
    }
    overflow_.push_back(entry);
    ++count_overflow_;
  } catch (const std::bad_alloc&) {
    overrun = true;
  }
}

CompletionQueue::Taken CompletionQueue::push_remote(const CqEntry& entry, Receiver* receiver) noexcept {
  if (overrun) return Taken::taken;
  if (!full()) [[likely]] {
    push(entry);
    return Taken::taken;
  }
  if (may_overrun) {
    overrun = true;
    event.notify();
    return Taken::taken;
  }
  if (count_overflow_ >= kOverflowMax) return Taken::refused;
  if (std::find(shut_.begin(), shut_.end(), receiver) == shut_.end()) shut_.push_back(receiver);
  has_more_to_do_ = true;
  push(entry);
  return Taken::late;
}

void CompletionQueue::after_read(uint32_t n) noexcept {
  if (ack_batch_ > 1) {
    unacked_ += n;
    reserved_ += n;
    if (unacked_ >= ack_batch_) {
      const uint32_t batches = unacked_ / ack_batch_;
      acks_ += batches;
      unacked_ -= batches * ack_batch_;
      reserved_ -= batches * ack_batch_;
    }
  }
  if (!shut_.empty() && count_overflow_ == 0 && count_ <= capacity_ / 2) open();
  has_more_to_do_ = ack_batch_ > 1 || !shut_.empty();
}

void CompletionQueue::open() noexcept {
  for (Receiver* receiver : shut_) receiver->on_room();
  shut_.clear();
}

void CompletionQueue::push_error(CqEntry entry, CqError error) noexcept {
  try {
    uint32_t number;
    if (errors_free_.empty()) {
      number = static_cast<uint32_t>(errors_.size());
      if (errors_free_.capacity() <= number) errors_free_.reserve(2 * size_t{number} + 8);
      errors_.push_back(std::make_unique<CqError>(std::move(error)));
    } else {
      number = errors_free_.back();
      errors_free_.pop_back();
      *errors_[number] = std::move(error);
    }
    entry.error = number + 1;
  } catch (const std::bad_alloc&) {
    entry.error = kNoText;
    entry.buf = static_cast<uint64_t>(error.err);
    entry.tag = static_cast<uint64_t>(error.prov_errno);
    entry.data = error.olen;
    entry.reserved = static_cast<uint32_t>(error.status);
  }
  push(entry);
}

void CompletionQueue::push_received_late(const RxEntry& entry) noexcept {
  received_lock_.assert_held();
  try {
    received_late_.push_back(entry);
    received_late_count_.store(static_cast<uint32_t>(received_late_.size()), std::memory_order_release);
  } catch (const std::bad_alloc&) {
    received_lost_.store(true, std::memory_order_relaxed);
  }
}

// Moves late entries to the ring, which the reader has emptied. False: there are none, or the ring is not empty.
bool CompletionQueue::move_late() noexcept {
  if (received_late_count_.load(std::memory_order_acquire) == 0) return false;
  const Guard guard(received_lock_);
  uint32_t tail = received_tail_.load(std::memory_order_relaxed);
  if (tail != received_head_.load(std::memory_order_relaxed)) return false;
  constexpr size_t kSlotsMin = 64;
  try {
    const size_t slots = std::bit_ceil(std::max(kSlotsMin, 2 * received_late_.size()));
    if (slots > received_.size()) received_ = std::vector<RxEntry>(slots);
  } catch (const std::bad_alloc&) {  // in more than one turn then
  }
  if (received_.empty()) {
    received_late_.clear();
    received_lost_.store(true, std::memory_order_relaxed);
  }
  for (size_t n = 0; n < received_.size() && !received_late_.empty(); ++n, ++tail) {
    received_[tail & (received_.size() - 1)] = received_late_.front();
    received_late_.pop_front();
  }
  received_tail_.store(tail, std::memory_order_release);
  received_late_count_.store(static_cast<uint32_t>(received_late_.size()), std::memory_order_release);
  return !received_.empty();
}

bool CompletionQueue::note_starved(Receiver* receiver) noexcept {
  const Guard guard(received_lock_);
  if (std::ranges::find(starved_, receiver) == starved_.end()) starved_.push_back(receiver);  // add_receiver() reserved
  // SYNC POINT: tell, then count. A reader that goes to sleep takes entries first, then checks whether it was told
  // anything.
  starving_.store(true, std::memory_order_relaxed);
  received_events_.fetch_add(1, std::memory_order_seq_cst);
  if (received() >= capacity_) return true;
  std::erase(starved_, receiver);
  starving_.store(!starved_.empty(), std::memory_order_relaxed);
  return false;
}

// Requires the domain's lock, as take_received() and move_late() do.
void CompletionQueue::collect_now() noexcept {
  const uint32_t events = received_events_.load(std::memory_order_acquire);
  do {
    uint32_t head = received_head_.load(std::memory_order_relaxed);
    const uint32_t tail = received_tail_.load(std::memory_order_acquire);
    // Entries that do not fit stay here, because their number is not bounded elsewhere and an entry would have to be
    // dropped.
    while (head != tail && (count_ + count_overflow_ < capacity_ || count_ + count_overflow_ == 0)) {
      push_collected(received_[head & (received_.size() - 1)]);
      received_head_.store(++head, std::memory_order_release);
    }
  } while (move_late());
  if (received_lost_.load(std::memory_order_relaxed)) [[unlikely]]
    overrun = true;
  if (!starving_.load(std::memory_order_relaxed)) {
    if (received() == 0) received_seen_ = events;
    return;
  }
  if (received() > capacity_ / 2) return;
  // One at a time and without the lock: a receiver takes its own lock, under which it calls push_received().
  for (;;) {
    Receiver* receiver = nullptr;
    {
      const Guard guard(received_lock_);
      if (!starved_.empty()) {
        receiver = starved_.back();
        starved_.pop_back();
      }
      starving_.store(!starved_.empty(), std::memory_order_relaxed);
    }
    if (receiver == nullptr) return;
    receiver->on_receive_room();
  }
}

// Sets the sender's fi_addr. False: it must be known, and is not.
bool CompletionQueue::find_source(const RxEntry& received, CqEntry* entry) noexcept {
  if (received.sources == nullptr) return true;
  const uint64_t found = received.sources->source(received.from, received.index);
  entry->source = received.sources->shown(found);
  return found != ~uint64_t{0} || !received.source_error;
}

// HOT. Takes successes from the entries of receives, without a way through ring_, which is empty. Lines: the heads, the
// entry. No lock but the domain's.
size_t CompletionQueue::take_received(CqEntry* out, size_t max) noexcept {
  uint32_t head = received_head_.load(std::memory_order_relaxed);
  const uint32_t tail = received_tail_.load(std::memory_order_acquire);
  size_t n = 0;
  for (; n < max && head != tail; ++n, ++head) {
    const RxEntry& next = received_[head & (received_.size() - 1)];
    if (next.status != Status::ok) [[unlikely]]
      break;
    out[n] = next.entry;
    if (!find_source(next, &out[n])) [[unlikely]]
      break;
  }
  // SYNC POINT: our reads of the entries end before a producer uses their places again.
  received_head_.store(head, std::memory_order_release);
  return n;
}

void CompletionQueue::push_collected(const RxEntry& received) noexcept {
  CqEntry entry = received.entry;
  Status status = received.status;
  StatusCode code = received.code;
  if (!find_source(received, &entry) && status == Status::ok) {
    status = Status::no_source;
    code = received.no_source;
  }
  if (status == Status::ok) [[likely]] {
    push(entry);
    return;
  }
  CqError error;
  error.err = code.err;
  error.prov_errno = code.prov;
  error.status = status;
  error.olen = received.cut;
  error.peer = received.from;
  try {
    error.text = received.describe(status);
  } catch (const std::bad_alloc&) {  // without its text
  }
  push_error(entry, std::move(error));
}

void CompletionQueue::keep_context(uint64_t context) noexcept {
  if (context == 0) return;
  const Guard guard(received_lock_);
  try {
    contexts_.push_back(context);
  } catch (const std::bad_alloc&) {  // the object stays until the process ends
  }
}

std::vector<uint64_t> CompletionQueue::take_contexts() {
  const Guard guard(received_lock_);
  return std::exchange(contexts_, {});
}

std::string RxEntry::describe(Status failed) const {
  const auto number = [](uint64_t n) { return std::to_string(n); };
  const bool tagged = (entry.flags & flag::kTagged) != 0;
  char tag[40] = "";
  if (tagged) std::snprintf(tag, sizeof(tag), " with tag 0x%llx", static_cast<unsigned long long>(entry.tag));
  switch (failed) {
    case Status::truncated:
      return "receive" + std::string(tag) + ": the message has " + number(entry.len + cut) +
             " B, and the receive had room for " + number(entry.len) + " B: the first " + number(entry.len) +
             " B are stored, the others are lost; post a longer buffer, or peek for the length first";
    case Status::canceled:
      return "receive" + std::string(tag) + ": canceled by cancel() before a message matched it";
    case Status::no_message:
      return "peek" + std::string(tag) +
             ": no message that has arrived matches; one may be under way: progress, and peek again";
    case Status::no_source:
      return "receive" + std::string(tag) +
             ": the message has arrived, and its sender is not in the address vector: insert the sender's address, "
             "which this entry names";
    case Status::fault:
      return "receive" + std::string(tag) +
             ": no memory behind the receive's buffer, or behind the sender's (unmapped, or without the access right): "
             "keep a buffer mapped until its completion is read";
    case Status::no_entry:
      return "receive" + std::string(tag) +
             ": no list entry of the service became free (FI_CXI_RNR_APPEND_RETRY_TIMEOUT_US); the provider on "
             "hardware would end the process here. Post fewer receives, or use a service with more list entries";
    case Status::no_memory:
      return "receive" + std::string(tag) +
             ": out of memory while the message was pulled from its sender: the buffer's content is undefined; free "
             "memory, and ask the sender to send again";
    default:
      break;
  }
  return "receive" + std::string(tag) +
         ": the sender ended before all bytes of the message were pulled from its buffer: the buffer's content is "
         "undefined; post the receive again, and let the sender send again";
}

void CompletionQueue::forget_sources(const AddressVector* sources) noexcept {
  const Guard guard(received_lock_);
  const auto look = [&](RxEntry& e) {
    if (e.sources != sources) return;
    if (!find_source(e, &e.entry) && e.status == Status::ok) {
      e.status = Status::no_source;
      e.code = e.no_source;
    }
    e.sources = nullptr;
  };
  const uint32_t tail = received_tail_.load(std::memory_order_relaxed);
  for (uint32_t at = received_head_.load(std::memory_order_relaxed); at != tail; ++at) {
    look(received_[at & (received_.size() - 1)]);
  }
  std::ranges::for_each(received_late_, look);
}

// Entries of receives, in front of which no other waits; others are collected.
size_t CompletionQueue::read_received(CqEntry* out, size_t max) noexcept {
  const uint32_t events = received_events_.load(std::memory_order_acquire);
  const size_t n = count_ == 0 && count_overflow_ == 0 ? take_received(out, max) : 0;
  // A later report has another number, so the reader comes again.
  if (received() == 0 && !starving_.load(std::memory_order_relaxed) && !received_lost_.load(std::memory_order_relaxed))
      [[likely]] {
    received_seen_ = events;
    return n;
  }
  collect_now();
  return n;
}

size_t CompletionQueue::read(CqEntry* out, size_t max, bool* error_waits) {
  size_t n = 0;
  if (received_events_.load(std::memory_order_acquire) != received_seen_) [[unlikely]]
    n = read_received(out, max);
  while (n < max && count_ != 0 && ring_[head_].error == 0) {
    out[n++] = ring_[head_];
    head_ = (head_ + 1) & mask_;
    --count_;
  }
  const CqEntry* e;
  while ((e = head()) != nullptr && e->error == 0 && n < max) {
    out[n++] = *e;
    pop();
  }
  *error_waits = e != nullptr && e->error != 0;
  note_read(static_cast<uint32_t>(n));
  return n;
}

bool CompletionQueue::read_error(CqEntry* entry, CqError* error) {
  collect();
  const CqEntry* e = head();
  if (e == nullptr || e->error == 0) return false;
  *entry = *e;
  if (e->error == kNoText) {
    *error = {static_cast<int>(e->buf),
              static_cast<int>(e->tag),
              static_cast<Status>(e->reserved),
              e->data,
              false,
              {},
              0,
              {},
              {}};
    entry->buf = entry->tag = entry->data = 0;
    entry->reserved = 0;
  } else {
    *error = std::move(*errors_[e->error - 1]);
    errors_free_.push_back(e->error - 1);
  }
  pop();
  note_read(1);
  return true;
}

}  // namespace weft::nic
