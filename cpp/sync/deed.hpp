// cpp/sync/deed.hpp: what a call has taken of an object, so that an exception that ends its caller can undo it.
#pragma once

#include <cstdint>

#include "sync/object.hpp"

namespace weft::sync {

struct Taken {
  Op op{};                                   // take, get, claim, reserve; none: nothing is to be undone
  uint64_t slot = 0, place = 0, length = 0;  // of a record
  uint64_t type = 0;                         // of a record
  uint64_t dead = 0;                         // lock: the last holder died

  // A call has been done, with these arguments and results. has_record: the caller has the slot's record.
  void note(Op done, uint64_t a, uint64_t value, uint64_t value2, uint64_t value3, uint64_t state,
            bool has_record) noexcept {
    switch (done) {
      case Op::take:
        dead = value2;
        op = done;
        break;
      case Op::claim:
        type = value3;
        length = state;
        [[fallthrough]];
      case Op::reserve:
        slot = value;
        place = value2;
        op = done;
        break;
      case Op::commit:
        op = {};
        break;
      case Op::free_slot:
        if (op == Op::claim && a == slot) op = has_record ? Op::get : Op{};
        if (op == Op::reserve) op = {};
        break;
      default:
        break;
    }
  }
};

// By: settle(op, a, b) does one call, whatever signals come, and put_back(type) puts the record back; false: it was not
// done. has_record(): the caller has the record. rescue(slot, place, length) copies it. keep(): the next call of this
// handle gets it.
template <typename By>
void undo(const Taken& taken, bool semaphore, By&& by) {
  switch (taken.op) {
    case Op::take:
      (void)by.settle(Op::release, semaphore ? 1 : taken.dead, 0);
      break;
    case Op::reserve:
      (void)by.settle(Op::free_slot, taken.slot, 0);
      break;
    case Op::claim:
      if (by.settle(Op::free_slot, taken.slot, 1)) break;
      // Others have taken later records: this process keeps this one.
      if (by.has_record()) {
        (void)by.settle(Op::free_slot, taken.slot, 0);
      } else {
        by.rescue(taken.slot, taken.place, taken.length);
      }
      if (by.has_record()) by.keep();
      break;
    case Op::get:
      if (!by.put_back(taken.type)) by.keep();
      break;
    default:
      break;
  }
}

}  // namespace weft::sync
