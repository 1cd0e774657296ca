// cpp/base/clock.hpp: time and randomness as parameters, so that one seed can replay a whole fabric.
#pragma once

#include <cstdint>

namespace weft {

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual uint64_t now_ns() = 0;  // monotonic, unless a parameter's comment says otherwise
  // The same time in steps of some milliseconds, for callers that cannot afford now_ns().
  [[nodiscard]] virtual uint64_t coarse_ns() { return now_ns(); }
};

class Random {
 public:
  virtual ~Random() = default;
  [[nodiscard]] virtual uint64_t next() = 0;
};

}  // namespace weft
