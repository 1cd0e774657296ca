// cpp/nic/rules.cpp: the atomics table of the rules.
#include "nic/rules.hpp"

namespace weft::nic {

namespace {

const AtomicTable g_all_atomics = [] {
  AtomicTable made{};
  for (size_t family = 0; family < made.size(); ++family) {
    for (size_t op = 0; op < kAtomicOpCount; ++op) {
      for (uint32_t datatype = 0; datatype < kDatatypeCount; ++datatype) {
        if (atomic_valid(static_cast<Datatype>(datatype), static_cast<AtomicOp>(op),
                         static_cast<AtomicFamily>(family))) {
          made[family][op] |= 1u << datatype;
        }
      }
    }
  }
  return made;
}();

}  // namespace

const AtomicTable& all_atomics() noexcept {
  return g_all_atomics;
}

}  // namespace weft::nic
