// cpp/nic/client_memory.cpp: see client_memory.hpp.
#include "nic/client_memory.hpp"

#include <algorithm>

#include "base/status.hpp"
#include "mem/guard.hpp"
#include "nic/nic.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kNoReset = ~uint64_t{0};  // value of the reset words before a store

}  // namespace

// ---- counter.hpp ----------------------------------------------------------------------------------------------------

Counter::Counter(const CounterLimits& limits) noexcept : limits_(limits) {}

Counter::~Counter() = default;

void Counter::set_memory(std::unique_ptr<ClientMemory> memory) noexcept {
  memory_ = std::move(memory);
}

void Counter::tell_memory(bool write_back) noexcept {
  memory_->on_change(write_back);
}

// ---- the page -------------------------------------------------------------------------------------------------------

CounterPage::CounterPage() {
  const UniqueFd fd = make_memfd("weft-counter", kBytes);
  mapping_ = Mapping::shared(fd.get(), kBytes, true, "a counter's page");
  *cell(kResetValue) = kNoReset;
  *cell(kResetErrors) = kNoReset;
}

CounterPage::Stored CounterPage::look() noexcept {
  Stored found;
  // A client stores without a lock. The exchange loses no store made between the load and the exchange.
  const auto take = [this](size_t offset, uint64_t nothing) {
    uint64_t* at = cell(offset);
    if (__atomic_load_n(at, __ATOMIC_RELAXED) == nothing) return nothing;
    return __atomic_exchange_n(at, nothing, __ATOMIC_ACQUIRE);
  };
  found.value = take(kAddValue, 0);
  found.errors = take(kAddErrors, 0);
  found.reset_value = take(kResetValue, kNoReset) == 0;  // values other than 0 have no effect
  found.reset_errors = take(kResetErrors, kNoReset) == 0;
  return found;
}

// ---- the word -------------------------------------------------------------------------------------------------------

void ClientMemory::set_buffer(void* where, bool device) noexcept {
  const Guard guard(lock_);
  buffer_ = where;
  of_device_ = device;
  write_locked();
}

void ClientMemory::write_locked() noexcept {
  lock_.assert_held();
  last_ = writeback::word(counter_->value(), counter_->errors());
  if (buffer_ == nullptr) return;
  const bool written = of_device_ ? devices_->copy({buffer_, true}, {&last_, false}, sizeof(last_)) == Status::ok
                                  : mem::copy_guarded_hot(static_cast<std::byte*>(buffer_),
                                                          reinterpret_cast<const std::byte*>(&last_), sizeof(last_));
  if (!written) faulted_.store(true, std::memory_order_relaxed);
}

void ClientMemory::on_change(bool write) noexcept {
  const Guard guard(lock_);
  const uint64_t value = counter_->value();
  while (!at_.empty() && *at_.begin() <= value) {
    at_.erase(at_.begin());
    write = true;
  }
  if (write) write_locked();
}

void ClientMemory::write_back_at(uint64_t value) {
  {
    const Guard guard(lock_);
    at_.insert(value);
  }
  on_change(false);
}

uint64_t ClientMemory::read(bool errors) noexcept {
  (void)look();
  const Guard guard(lock_);
  uint64_t told = last_;
  write_locked();
  if (!cached.load(std::memory_order_relaxed)) told = last_;
  return errors ? writeback::errors_of(told) : writeback::value_of(told);
}

std::shared_ptr<CounterPage> ClientMemory::page() {
  const Guard guard(page_mutex_);
  if (!page_) {
    page_ = std::make_shared<CounterPage>();
    has_page_.store(true, std::memory_order_release);
  }
  return page_;
}

bool ClientMemory::look() noexcept {
  if (!has_page_.load(std::memory_order_acquire)) return false;
  const Guard guard(page_mutex_);
  return take(page_->look());
}

void ClientMemory::store(size_t offset, uint64_t value) noexcept {
  const Guard guard(page_mutex_);
  if (page_) (void)take(page_->look());
  CounterPage::Stored stored;
  switch (offset) {
    case CounterPage::kAddValue:
      stored.value = value;
      break;
    case CounterPage::kAddErrors:
      stored.errors = value;
      break;
    case CounterPage::kResetValue:
      stored.reset_value = value == 0;
      break;
    case CounterPage::kResetErrors:
      stored.reset_errors = value == 0;
      break;
    default:
      break;
  }
  (void)take(stored);
}

bool ClientMemory::take(const CounterPage::Stored& stored) noexcept {
  page_mutex_.assert_held();
  if (!stored.any()) [[likely]]
    return false;
  if (stored.reset_value) counter_->set(0);
  if (stored.reset_errors) counter_->set_errors(0);
  if (stored.value != 0) counter_->add(stored.value);
  if (stored.errors != 0) counter_->add_errors(stored.errors);
  return true;
}

// ---- the counters whose pages the NIC reads -------------------------------------------------------------------------

void Nic::watch(const std::shared_ptr<Counter>& counter) {
  {
    const Guard guard(watched_mutex_);
    if (std::ranges::find(watched_, counter) != watched_.end()) return;
    watched_.push_back(counter);
    watched_count_.store(watched_.size(), std::memory_order_seq_cst);
  }
  need_engine();
}

void Nic::unwatch(const Counter* counter) noexcept {
  const Guard guard(watched_mutex_);
  std::erase_if(watched_, [&](const auto& one) { return one.get() == counter; });
  watched_count_.store(watched_.size(), std::memory_order_seq_cst);
}

size_t Nic::look_at_pages() noexcept {
  const Guard guard(watched_mutex_);
  size_t n = 0;
  for (const auto& counter : watched_) n += counter->memory()->look() ? 1 : 0;
  return n;
}

}  // namespace weft::nic
