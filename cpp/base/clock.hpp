// cpp/base/clock.hpp: time and randomness as parameters, so that one seed can replay a whole fabric.
#pragma once

#include <cstdint>

namespace weft {

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual uint64_t now_ns() = 0;  // monotonic
};

class Random {
 public:
  virtual ~Random() = default;
  [[nodiscard]] virtual uint64_t next() = 0;
};

}  // namespace weft
