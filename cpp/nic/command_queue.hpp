// cpp/nic/command_queue.hpp: a model of the transmit command queue between a program and hardware.
//
// A program writes commands into slots and rings a doorbell; the NIC reads them at once, and now and then writes its
// read position back to memory. Only a write-back tells the program that slots are free again. A command on an idle
// queue can go through the low-latency ring: the command is written to the NIC itself and needs no doorbell. Callers
// hold the lock of the endpoint's domain. Here a transfer goes another way: the model only counts, and refuses a
// command while no slot is known to be free. Endpoints without the model do no work for it.
// Source: fi_cxi(7) FI_CXI_CQ_POLICY, FI_CXI_LLRING_MODE.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/fields.hpp"

namespace weft::nic {

#define WEFT_WRITE_BACKS(X)                                                            \
  X(always, 0, "After each command.")                                                  \
  X(high_empty, 1, "After 1/16 of the slots, and when the NIC has read all commands.") \
  X(low_empty, 2, "After 1/4 of the slots, and when the NIC has read all commands.")   \
  X(low, 3, "After 1/4 of the slots.")
WEFT_ENUM(WriteBack, uint8_t, WEFT_WRITE_BACKS, "When the NIC writes back how far it has read: FI_CXI_CQ_POLICY.");
#define WEFT_LOW_LATENCY_RINGS(X)   \
  X(idle, 0, "Of an idle queue.")   \
  X(always, 1, "Of every command.") \
  X(never, 2, "Of no command.")
WEFT_ENUM(LowLatencyRing, uint8_t, WEFT_LOW_LATENCY_RINGS,
          "Which commands go through the low-latency ring: FI_CXI_LLRING_MODE.");

struct CommandQueueConfig {
  WEFT_TABLE(11, CommandQueueConfig, "The model of a transmit command queue.");
  WEFT_FIELD(1, slots, uint32_t, 0, none, "Its slots; 0: no model.");
  WEFT_FIELD(2, policy, WriteBack, WriteBack::low_empty, none, "When slots are known to be free.");
  WEFT_FIELD(3, ring, LowLatencyRing, LowLatencyRing::idle, none, "Which commands go through the ring.");
};

class CommandQueue {
 public:
  struct Counts {
    uint64_t commands = 0, low_latency = 0, doorbells = 0, write_backs = 0;
  };

  explicit CommandQueue(const CommandQueueConfig& config) noexcept
      : config_(config),
        every_(config.policy == WriteBack::always       ? 1
               : config.policy == WriteBack::high_empty ? std::max<uint32_t>(config.slots / 16, 1)
                                                        : std::max<uint32_t>(config.slots / 4, 1)) {}

  // The slots that the program knows to be free.
  [[nodiscard]] uint32_t free_slots() const noexcept {
    return config_.slots - static_cast<uint32_t>(counts_.commands - written_back_);
  }
  // Adds a command; false: no slot is known to be free. more: without doorbell (FI_MORE).
  bool put(bool more) noexcept {
    if (free_slots() == 0) return false;
    const bool idle = counts_.commands == read_ && !burst_;
    burst_ = false;
    ++counts_.commands;
    if (more) return true;
    if (config_.ring == LowLatencyRing::always || (config_.ring == LowLatencyRing::idle && idle)) {
      ++counts_.low_latency;
    } else {
      ++counts_.doorbells;
    }
    read_all();
    return true;
  }
  // The NIC reads the commands that wait for a doorbell. followed: the next command is put behind them, so it finds the
  // queue not idle, and its doorbell is the doorbell of all.
  void ring(bool followed) noexcept {
    if (counts_.commands == read_) return;
    burst_ = followed;
    if (!followed) ++counts_.doorbells;
    read_all();
  }
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

 private:
  void read_all() noexcept {
    while (read_ != counts_.commands) {
      ++read_;
      if (read_ - written_back_ >= every_) write_back();
    }
    const bool at_empty = config_.policy == WriteBack::high_empty || config_.policy == WriteBack::low_empty;
    if (at_empty && written_back_ != read_) write_back();
  }
  void write_back() noexcept {
    written_back_ = read_;
    ++counts_.write_backs;
  }

  CommandQueueConfig config_;
  uint64_t every_;
  uint64_t read_ = 0, written_back_ = 0;
  bool burst_ = false;
  Counts counts_;
};

}  // namespace weft::nic
