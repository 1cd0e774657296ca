// cpp/nic/rx_mode.hpp: where the messages of an endpoint are matched, and the list entries that hardware matching
// takes.
//
// Hardware matching takes one list entry for each listed receive, each kept message and each posted buffer. The
// processes of a service share the entries. The matching itself is the same in all modes (match.hpp), so a change of
// mode keeps the order of messages; what changes is the account of entries and the class of buffers.
//
//   mode      starts as   without an entry for a message       without an entry for a receive
//   unlimited hardware    cannot happen                        cannot happen
//   hardware  hardware    flow control: kept messages give     the same at once; if there is still none, the
//                         their entries back, then go on       receive is refused
//   hybrid    hardware    changes to software                  changes to software
//   software  software    cannot happen                        cannot happen
//
// While an endpoint changes, messages and receives are refused. The change ends with the next progress. lossless: a
// message without an entry is refused without a change in hardware mode (its traffic class pauses).
// Callers: not thread-safe. The lock of the receive context guards every call.
// Source: fi_cxi(7) "Messaging", FI_CXI_RX_MATCH_MODE, FI_CXI_HYBRID_*, FI_CXI_MSG_LOSSLESS.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "mem/ledger.hpp"

namespace weft::nic {

// List entries of a service. Without a ledger there is no limit. The ledger outlives the endpoint.
struct ListEntries {
  mem::Ledger* ledger = nullptr;
  uint32_t slot = 0, kind = 0;

  [[nodiscard]] bool limited() const noexcept { return ledger != nullptr; }
  bool take(uint32_t n) const noexcept;
  void give(uint32_t n) const noexcept;
  [[nodiscard]] bool has(uint32_t n) const noexcept;
};

enum class MatchMode : uint8_t { unlimited, hardware, hybrid, software };

struct RxModeConfig {
  MatchMode mode = MatchMode::unlimited;
  ListEntries entries;
  uint32_t buffers = 0;   // entries of the overflow buffers that are posted in hardware
  uint32_t requests = 0;  // entries of the request buffers in software
  uint32_t size = ~0u;    // rx_attr.size
  bool lossless = false;
  // hybrid: changes to software before entries run out: fewer than `requests` are left when a message or a receive
  // takes one; more than `size` receives are listed, or messages kept.
  bool early_for_messages = false, early_for_receives = false;
  bool by_receives = false, by_messages = false;
};

class RxMode {
 public:
  enum class State : uint8_t { hardware, changing, software };
  // Of the last change, or refusal.
  enum class Cause : uint8_t {
    none,
    no_entry_for_message,
    no_entry_for_receive,
    few_entries,
    many_receives,
    many_messages
  };

  explicit RxMode(const RxModeConfig& config) noexcept
      : config_(config),
        state_(config.mode == MatchMode::software ? State::software : State::hardware),
        accounts_(config.mode != MatchMode::unlimited) {}
  ~RxMode() { close(); }
  RxMode(const RxMode&) = delete;
  RxMode& operator=(const RxMode&) = delete;

  // Takes the entries of the first buffers. False: the service has too few.
  [[nodiscard]] bool open() noexcept;
  void close() noexcept;  // returns all entries

  // HOT. The mode has an account of receives and messages.
  [[nodiscard]] bool accounts() const noexcept { return accounts_; }
  [[nodiscard]] bool changing() const noexcept { return state_ == State::changing; }
  [[nodiscard]] State state() const noexcept { return state_; }

  // A message is to be kept. False: refuse it. *epoch: for taken(). promised: it cannot be refused.
  [[nodiscard]] bool keep(bool promised, uint32_t* epoch) noexcept;
  // A kept message has been taken by a receive, or was not kept after all.
  void taken(uint32_t epoch) noexcept {
    if (epoch == 0) return;
    if (epoch == epoch_) {
      assert(messages_ != 0 && "the message has an entry");
      --messages_;
      config_.entries.give(1);
    } else {
      assert(kept_without_ != 0 && "the message is kept without an entry");
      --kept_without_;
    }
  }
  // A receive has been listed. False: there is no entry, and none is expected; used: it has taken messages already, so
  // it cannot be refused.
  [[nodiscard]] bool list(bool used) noexcept;
  void unlisted() noexcept;  // it takes no more messages

  // Ends a change. True: entries have become free, so that refused messages may be kept.
  bool finish() noexcept;

  struct Statistics {
    MatchMode mode = MatchMode::unlimited;
    State state = State::hardware;
    Cause cause = Cause::none;
    uint32_t receives = 0, messages = 0, buffers = 0;  // entries now
    uint64_t wanted_most = 0;                          // entries that would have sufficed so far
    uint64_t changes = 0;                              // to software
    uint64_t stops = 0;                                // times that flow control began
    uint64_t pauses = 0;                               // messages refused by a lossless endpoint
    uint64_t onloaded = 0;                             // kept messages that gave their entries back
    uint64_t no_entries = 0;                           // receives refused for want of an entry
  };
  [[nodiscard]] Statistics statistics() const noexcept;

 private:
  static constexpr uint32_t kNoEntry = 1;  // epoch of a kept message without an entry
  void begin_change(Cause cause) noexcept;
  void onload() noexcept;
  void note_wanted(uint32_t refused = 0) noexcept {
    const uint64_t wanted = uint64_t{receives_} + unbacked_ + messages_ + kept_without_ + config_.buffers + refused;
    if (wanted > counts_.wanted_most) counts_.wanted_most = wanted;
  }

  const RxModeConfig config_;
  State state_;
  const bool accounts_;
  uint32_t receives_ = 0;                     // entries of listed receives
  uint32_t messages_ = 0;                     // entries of kept messages of this epoch
  uint32_t buffers_ = 0;                      // entries of posted buffers
  uint32_t epoch_ = kNoEntry + 1;             // kept messages of earlier ones have returned their entries
  uint32_t reclaimed_ = 0;                    // by the change under way
  uint64_t unbacked_ = 0, kept_without_ = 0;  // listed receives and kept messages without an entry
  Cause cause_ = Cause::none;
  Statistics counts_;
};

}  // namespace weft::nic
