// cpp/nic/queue.cpp: see queue.hpp.
#include "nic/queue.hpp"

#include <algorithm>
#include <new>

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
  push(entry);
  return Taken::late;
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

size_t CompletionQueue::read(CqEntry* out, size_t max, bool* error_waits) {
  size_t n = 0;
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
  open_if_read();
  return n;
}

bool CompletionQueue::read_error(CqEntry* entry, CqError* error) {
  const CqEntry* e = head();
  if (e == nullptr || e->error == 0) return false;
  *entry = *e;
  if (e->error == kNoText) {
    *error = {
        static_cast<int>(e->buf), static_cast<int>(e->tag), static_cast<Status>(e->reserved), e->data, {}, 0, {}, {}};
    entry->buf = entry->tag = entry->data = 0;
    entry->reserved = 0;
  } else {
    *error = std::move(*errors_[e->error - 1]);
    errors_free_.push_back(e->error - 1);
  }
  pop();
  open_if_read();
  return true;
}

}  // namespace weft::nic
