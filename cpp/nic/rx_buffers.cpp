// cpp/nic/rx_buffers.cpp: mapping, posting and unmapping buffers for unexpected messages.
#include "nic/rx_buffers.hpp"

#include <sys/mman.h>

#include <cassert>
#include <new>

#include "mem/device.hpp"

namespace weft::nic {

void RxBuffers::close() noexcept {
  for (uint32_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].memory != nullptr) unmap(i);
  }
  posted_.clear();
  current_ = kNone;
}

// Makes another buffer the current one; the old one is retired until its messages have been taken.
bool RxBuffers::next(bool promised) noexcept {
  post_ahead(promised);
  if (posted_.empty()) return false;
  // The buffer that was posted last: its memory is the most likely to be in the processor's cache.
  current_ = posted_.back();
  posted_.pop_back();
  return true;
}

void RxBuffers::post_ahead(bool promised) noexcept {
  while (posted_.size() < config_.posted_min || posted_.empty()) {
    const uint32_t made = map(promised && posted_.empty());
    if (made == kNone) break;
    posted_.push_back(made);  // map() has reserved room
  }
}

void RxBuffers::open() noexcept {
  if (config_.devices != nullptr && config_.posted_min != 0) post_ahead(false);
}

uint32_t RxBuffers::map(bool promised) noexcept try {
  if (mapped_ >= config_.count_max && !promised) return kNone;
  if (unused_.empty()) {
    const auto number = static_cast<uint32_t>(buffers_.size());
    unused_.reserve(number + 1);
    posted_.reserve(number + 1);
    buffers_.emplace_back();
    unused_.push_back(number);
  }
  // Pages without messages occupy no memory.
  void* const memory =
      mmap(nullptr, config_.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kNone;
  const uint32_t i = unused_.back();
  unused_.pop_back();
  buffers_[i] = {static_cast<std::byte*>(memory), 0, 0, kind_, config_.bytes};
  if (config_.devices != nullptr && config_.devices->register_host(memory, config_.bytes))
    buffers_[i].registered = config_.devices;
  ++mapped_;
  if (mapped_ > mapped_most_) mapped_most_ = mapped_;
  return i;
} catch (const std::bad_alloc&) {
  return kNone;
}

void RxBuffers::unmap(uint32_t buffer) noexcept {
  assert(buffers_[buffer].memory != nullptr && mapped_ != 0);
  if (buffers_[buffer].registered != nullptr) buffers_[buffer].registered->unregister_host(buffers_[buffer].memory);
  munmap(buffers_[buffer].memory, buffers_[buffer].bytes);
  buffers_[buffer] = {};
  unused_.push_back(buffer);
  --mapped_;
}

// A retired buffer has lost its last message.
void RxBuffers::post(uint32_t buffer) noexcept {
  assert(buffers_[buffer].messages == 0 && buffer != current_ && "the buffer is retired and has no message");
  const bool surplus = config_.cached_max != 0 && mapped_ > config_.cached_max;
  if (buffers_[buffer].kind != kind_ || (surplus && posted_.size() + 1 >= config_.posted_min)) {
    unmap(buffer);
  } else {
    posted_.push_back(buffer);
  }
}

void RxBuffers::change(const Config& config) noexcept {
  for (const uint32_t buffer : posted_) unmap(buffer);
  posted_.clear();
  if (current_ != kNone && buffers_[current_].messages == 0) unmap(current_);
  current_ = kNone;
  config_ = config;
  ++kind_;
  open();
}

RxBuffers::Statistics RxBuffers::statistics() const noexcept {
  Statistics s;
  s.buffers = mapped_;
  s.posted = static_cast<uint32_t>(posted_.size()) + (current_ != kNone ? 1 : 0);
  for (const Buffer& b : buffers_) {
    s.messages += b.messages;
    if (b.registered != nullptr) ++s.registered;
  }
  s.buffers_most = mapped_most_;
  return s;
}

}  // namespace weft::nic
