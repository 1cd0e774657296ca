// cpp/nic/rx_mode.cpp: see rx_mode.hpp.
#include "nic/rx_mode.hpp"

#include <utility>

#include "base/status.hpp"

namespace weft::nic {

// ---- entries of a service ------------------------------------------------------------------------------------------

// A ledger whose lock another process holds for long counts as an empty one: the endpoint then changes its mode.
bool ListEntries::take(uint32_t n) const noexcept try {
  return ledger == nullptr || ledger->take(slot, kind, static_cast<int32_t>(n));
} catch (const Error&) {
  return false;
}

void ListEntries::give(uint32_t n) const noexcept try {
  if (ledger != nullptr && n != 0) ledger->give(slot, kind, static_cast<int32_t>(n));
} catch (const Error&) {  // the ledger returns the entries when the process ends
}

bool ListEntries::has(uint32_t n) const noexcept {
  if (!take(n)) return false;
  give(n);
  return true;
}

// ---- the mode ------------------------------------------------------------------------------------------------------

bool RxMode::open() noexcept {
  if (!accounts_) return true;
  const uint32_t wanted = state_ == State::software ? config_.requests : config_.buffers;
  if (!config_.entries.take(wanted)) return false;
  buffers_ = wanted;
  note_wanted();
  return true;
}

void RxMode::close() noexcept {
  config_.entries.give(std::exchange(receives_, 0) + std::exchange(messages_, 0) + std::exchange(buffers_, 0));
  ++epoch_;
}

bool RxMode::keep(bool promised, uint32_t* epoch) noexcept {
  if (state_ == State::hardware) {
    if (config_.by_messages && messages_ >= config_.size) {
      begin_change(Cause::many_messages);
    } else if (config_.early_for_messages && !config_.entries.has(config_.requests + 1)) {
      begin_change(Cause::few_entries);
    } else if (config_.entries.take(1)) {
      ++messages_;
      *epoch = epoch_;
      note_wanted();
      return true;
    } else if (config_.lossless && config_.mode == MatchMode::hardware) {
      ++counts_.pauses;
      cause_ = Cause::no_entry_for_message;
      if (!promised) {
        note_wanted(1);
        return false;
      }
    } else {
      begin_change(Cause::no_entry_for_message);
    }
  }
  if (state_ == State::changing && !promised) {
    note_wanted(1);
    return false;
  }
  ++kept_without_;
  *epoch = kNoEntry;
  note_wanted();
  return true;
}

bool RxMode::list(bool used) noexcept {
  if (state_ == State::hardware) {
    if (config_.by_receives && receives_ >= config_.size) {
      begin_change(Cause::many_receives);
      if (!used) return false;  // it is posted again after the change
    } else if (config_.early_for_receives && !config_.entries.has(config_.requests + 1)) {
      begin_change(Cause::few_entries);
    } else if (config_.entries.take(1)) {
      ++receives_;
      note_wanted();
      return true;
    } else if (config_.mode == MatchMode::hybrid) {
      begin_change(Cause::no_entry_for_receive);
    } else {
      cause_ = Cause::no_entry_for_receive;
      if (messages_ != 0) {
        ++counts_.stops;
        onload();
        if (config_.entries.take(1)) {
          ++receives_;
          note_wanted();
          return true;
        }
      }
      if (!used) {
        ++counts_.no_entries;
        note_wanted(1);
        return false;
      }
    }
  }
  ++unbacked_;
  note_wanted();
  return true;
}

void RxMode::unlisted() noexcept {
  if (receives_ != 0) {
    --receives_;
    config_.entries.give(1);
  } else {
    --unbacked_;
  }
}

// Kept messages return their entries.
void RxMode::onload() noexcept {
  const uint32_t n = std::exchange(messages_, 0);
  config_.entries.give(n);
  kept_without_ += n;
  counts_.onloaded += n;
  reclaimed_ += n;
  if (++epoch_ <= kNoEntry) epoch_ = kNoEntry + 1;
}

void RxMode::begin_change(Cause cause) noexcept {
  cause_ = cause;
  state_ = State::changing;
  reclaimed_ = 0;
  if (config_.lossless) ++counts_.pauses;
  onload();
  if (config_.mode == MatchMode::hybrid) {
    ++counts_.changes;
    config_.entries.give(receives_);
    reclaimed_ += receives_;
    unbacked_ += std::exchange(receives_, 0);
  } else {
    ++counts_.stops;
  }
}

bool RxMode::finish() noexcept {
  if (state_ != State::changing) return false;
  if (config_.mode != MatchMode::hybrid) {
    state_ = State::hardware;
    return reclaimed_ != 0;  // otherwise the senders try again after a time of their own
  }
  config_.entries.give(std::exchange(buffers_, 0));
  if (config_.entries.take(config_.requests)) buffers_ = config_.requests;
  state_ = State::software;
  return true;
}

RxMode::Statistics RxMode::statistics() const noexcept {
  Statistics s = counts_;
  s.mode = config_.mode;
  s.state = state_;
  s.cause = cause_;
  s.receives = receives_;
  s.messages = messages_;
  s.buffers = buffers_;
  return s;
}

}  // namespace weft::nic
