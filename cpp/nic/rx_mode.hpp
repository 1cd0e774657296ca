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
#include <cstdint>

#include "base/fields.hpp"
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

#define WEFT_MATCH_MODES(X)                                                   \
  X(unlimited, 0, "As in hardware, without a limit of list entries.")         \
  X(hardware, 1, "In hardware; without list entries flow control begins.")    \
  X(hybrid, 2, "In hardware; without list entries in software from then on.") \
  X(software, 3, "In software, which needs no list entries.")
WEFT_ENUM(MatchMode, uint8_t, WEFT_MATCH_MODES, "Where the messages of an endpoint are matched: FI_CXI_RX_MATCH_MODE.");

struct RxModeConfig {
  WEFT_TABLE(5, RxModeConfig, "Where messages are matched, and so whether receives and messages take list entries.");
  WEFT_FIELD(1, mode, MatchMode, MatchMode::unlimited, none, "Where messages are matched.");
  WEFT_FIELD(2, size, uint32_t, ~0u, none, "rx_attr.size: see by_receives and by_messages.");
  WEFT_FIELD(3, lossless, bool, false, none,
             "In hardware mode a message without a list entry waits at its sender, and no flow control begins.");
  WEFT_FIELD(4, early_for_messages, bool, false, none,
             "hybrid: changes to software when a message without a receive would take one of the last entries, which "
             "the buffers for matching by software need.");
  WEFT_FIELD(5, early_for_receives, bool, false, none, "The same for a posted receive.");
  WEFT_FIELD(6, by_receives, bool, false, none,
             "hybrid: changes to software when more receives than `size` are posted.");
  WEFT_FIELD(7, by_messages, bool, false, none,
             "hybrid: changes to software when more messages than `size` have no receive.");
  ListEntries entries;
  uint32_t buffers = 0;   // entries of the overflow buffers that are posted in hardware
  uint32_t requests = 0;  // entries of the request buffers in software
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
