// cpp/base/cache.hpp: cache line size and the processor's spin hint.
#pragma once

#include <cstddef>

namespace weft {

constexpr size_t kCacheLine = 64;

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace weft
