// cpp/sync/deed.hpp: what a call has taken of an object, so that an exception that ends its caller can undo it.
#pragma once

#include <cstdint>

#include "sync/object.hpp"

namespace weft::sync {

struct Taken {
  Op op{};                      // take, get, claim, reserve; none: nothing is to be undone
  uint64_t slot = 0, type = 0;  // of a record
  uint64_t dead = 0;            // lock: the last holder died
  uint64_t id = 0;              // of the call that took it, where the owner's NIC did the call

  // A call has been done, with these arguments and results. has_record: the caller has the slot's record.
  void note(Op done, uint64_t a, uint64_t value, uint64_t value2, uint64_t value3, uint64_t number,
            bool has_record) noexcept {
    switch (done) {
      case Op::take:
        dead = value2;
        op = done;
        id = number;
        break;
      case Op::claim:
        type = value3;
        [[fallthrough]];
      case Op::reserve:
        slot = value;
        op = done;
        id = number;
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

constexpr uint64_t kFirstAgain = 2;  // of free_slot: the record of a claimed slot is next again

// By: settle(op, a, b) does one call, whatever signals come, and put_back(type) puts the record back; false: it was not
// done in time: the queue is full, or its guard was held. has_record(): the caller has the record. keep(): the next
// call of this handle gets it. hand_back(op, id) has the owner's NIC undo a call as soon as it can.
template <typename By>
void undo(const Taken& taken, bool semaphore, By&& by) {
  switch (taken.op) {
    case Op::take:
      if (!by.settle(Op::release, semaphore ? 1 : taken.dead, 0)) by.hand_back(taken.op, taken.id);
      break;
    case Op::reserve:
      if (!by.settle(Op::free_slot, taken.slot, 0)) by.hand_back(taken.op, taken.id);
      break;
    case Op::claim:
      if (by.settle(Op::free_slot, taken.slot, kFirstAgain)) break;
      if (by.has_record()) {
        (void)by.settle(Op::free_slot, taken.slot, 0);
        by.keep();
      } else {
        by.hand_back(taken.op, taken.id);
      }
      break;
    case Op::get:
      if (!by.put_back(taken.type)) by.keep();
      break;
    default:
      break;
  }
}

}  // namespace weft::sync
