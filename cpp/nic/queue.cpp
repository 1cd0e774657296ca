// cpp/nic/queue.cpp: see queue.hpp.
#include "nic/queue.hpp"

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

void CompletionQueue::push_error(CqEntry entry, CqError error) {
  uint32_t number;
  if (errors_free_.empty()) {
    number = static_cast<uint32_t>(errors_.size());
    errors_.push_back(std::make_unique<CqError>(std::move(error)));
  } else {
    number = errors_free_.back();
    errors_free_.pop_back();
    *errors_[number] = std::move(error);
  }
  entry.error = number + 1;
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
  return n;
}

bool CompletionQueue::read_error(CqEntry* entry, CqError* error) {
  const CqEntry* e = head();
  if (e == nullptr || e->error == 0) return false;
  *entry = *e;
  *error = std::move(*errors_[e->error - 1]);
  errors_free_.push_back(e->error - 1);
  pop();
  return true;
}

}  // namespace weft::nic
