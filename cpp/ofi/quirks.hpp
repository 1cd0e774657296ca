// cpp/ofi/quirks.hpp: the deviations of a provider of the loaded library from its man pages, as a set.
//
// Which providers and versions have a quirk is policy: the table is weft.providers.ofi.quirks, and a domain is told its
// set when it is opened. Nothing here or in cpp/bind looks at a provider's name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::ofi {

// The quirks that C++ guards. Their names in the table are in capitals; their places in the set are those of kQuirks.
enum class Quirk : uint8_t {
  ignores_peek,
  insert_before_enable_crashes,
  own_collectives,
  close_without_vector_crashes,
  refused_close_frees,
  close_during_connect_crashes,
  dmabufs_are_not_known,
};
inline constexpr std::array kQuirks{
    "IGNORES_PEEK",        "INSERT_BEFORE_ENABLE_CRASHES", "OWN_COLLECTIVES",       "CLOSE_WITHOUT_VECTOR_CRASHES",
    "REFUSED_CLOSE_FREES", "CLOSE_DURING_CONNECT_CRASHES", "DMABUFS_ARE_NOT_KNOWN",
};
static_assert(kQuirks.size() == static_cast<size_t>(Quirk::dmabufs_are_not_known) + 1);

class Quirks {
 public:
  constexpr Quirks() = default;
  constexpr explicit Quirks(uint64_t bits) noexcept : bits_(bits) {}
  [[nodiscard]] constexpr bool has(Quirk quirk) const noexcept {
    return (bits_ >> static_cast<unsigned>(quirk) & 1) != 0;
  }

 private:
  uint64_t bits_ = 0;
};

}  // namespace weft::ofi
