// cpp/ofi/slots.cpp: see slots.hpp.
#include "ofi/slots.hpp"

#include <algorithm>

namespace weft::ofi {

void Slots::grow() {
  assert(free_ == nullptr && "no slot is free");
  const size_t count = slabs_.empty() ? 128 : std::min<size_t>(slabs_.back().count * 2, 65536);
  slabs_.push_back({std::make_unique<Slot[]>(count), count});
  Slot* slots = slabs_.back().slots.get();
  for (size_t i = count; i-- > 0;) {
    slots[i].next_free = free_;
    free_ = &slots[i];
  }
}

Slots::~Slots() {
  each([](Slot* slot) { delete slot->more; });
}

}  // namespace weft::ofi
