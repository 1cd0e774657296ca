// cpp/nic/rx_buffers.hpp: memory for the bytes of unexpected messages: overflow buffers, or request buffers.
//
// Messages lie one behind the other in a buffer. A buffer without room for a message is retired, and posted again when
// the last of its messages has been taken. The number of buffers grows as messages need it, and shrinks to cached_max.
// Callers: not thread-safe. The lock of the receive context guards every call.
// Source: fi_cxi(7) FI_CXI_OFLOW_BUF_*, FI_CXI_REQ_BUF_*.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/cache.hpp"
#include "base/fields.hpp"

namespace weft::mem {
class Devices;
}

namespace weft::nic {

struct RxBufferConfig {
  WEFT_TABLE(4, RxBufferConfig, "Buffers for messages.");
  WEFT_FIELD(1, bytes, size_t, size_t{2} << 20, bytes, "The size of a buffer.");
  WEFT_FIELD(2, posted_min, uint32_t, 3, none, "Buffers that are ready in advance, the current one included.");
  WEFT_FIELD(3, cached_max, uint32_t, 0, none, "The most buffers that are kept when no message needs them; 0: all.");
  WEFT_FIELD(4, count_max, uint32_t, ~uint32_t{0} - 1, none, "The most buffers; when all are full, senders wait.");
  mem::Devices* devices = nullptr;  // the buffers are registered with their runtimes
};

class RxBuffers {
 public:
  using Config = RxBufferConfig;
  // Room in a buffer; `memory` is aligned to a cache line. null: none.
  struct Room {
    std::byte* memory = nullptr;
    uint32_t buffer = 0;
  };

  explicit RxBuffers(const Config& config) noexcept : config_(config) {}
  ~RxBuffers() { close(); }
  RxBuffers(const RxBuffers&) = delete;
  RxBuffers& operator=(const RxBuffers&) = delete;

  // Makes the buffers that are ready in advance, if making them takes long: with `devices`.
  void open() noexcept;
  void close() noexcept;  // frees all buffers, with the messages in them
  // HOT. Room for one message. None: the message is longer than a buffer, there are count_max buffers, or no memory.
  // promised: the receiver has promised to take the message, so count_max does not count.
  [[nodiscard]] Room take(size_t bytes, bool promised = false) noexcept {
    const size_t rounded = (bytes + kCacheLine - 1) & ~(kCacheLine - 1);
    if (current_ == kNone || rounded > config_.bytes - buffers_[current_].used) [[unlikely]] {
      if (rounded > config_.bytes || rounded < bytes || !next(promised)) return {};
    }
    Buffer& b = buffers_[current_];
    const Room room{b.memory + b.used, current_};
    b.used += rounded;
    ++b.messages;
    return room;
  }
  // HOT. One message of the buffer has been taken.
  void give(uint32_t buffer) noexcept {
    Buffer& b = buffers_[buffer];
    assert(b.messages != 0 && b.memory != nullptr && "a message of the buffer is taken once");
    if (--b.messages != 0) return;
    b.used = 0;  // the current buffer begins again, in memory that is in the processor's cache
    if (buffer != current_) [[unlikely]]
      post(buffer);
  }

  // Buffers of another kind from now on. Those with messages stay until the messages have been taken.
  void change(const Config& config) noexcept;

  struct Statistics {
    uint32_t buffers = 0;   // mapped
    uint32_t posted = 0;    // of these, ready for messages
    uint32_t messages = 0;  // in all buffers
    uint32_t buffers_most = 0;
    uint32_t registered = 0;  // buffers that a runtime knows
  };
  [[nodiscard]] Statistics statistics() const noexcept;
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Buffer {
    std::byte* memory = nullptr;  // null: not mapped
    size_t used = 0;
    uint32_t messages = 0, kind = 0;
    size_t bytes = 0;
    mem::Devices* registered = nullptr;  // with whose runtimes
  };
  void post_ahead(bool promised) noexcept;
  [[gnu::noinline]] bool next(bool promised) noexcept;
  uint32_t map(bool promised) noexcept;
  void unmap(uint32_t buffer) noexcept;
  [[gnu::noinline]] void post(uint32_t buffer) noexcept;

  Config config_;
  uint32_t current_ = kNone;
  uint32_t kind_ = 0;  // number of change() calls
  uint32_t mapped_ = 0, mapped_most_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<uint32_t> posted_;  // without the current one
  std::vector<uint32_t> unused_;  // numbers without memory
};

}  // namespace weft::nic
