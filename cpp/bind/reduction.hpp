// cpp/bind/reduction.hpp: the fold of FI_MORE, for calls of endpoints and for accumulators without one.
#pragma once

#include "bind/common.hpp"

namespace weft::bind {

// One call with FI_MORE: folds `buf` into the accumulator `result`, 64 bytes. Needs no NIC, endpoint or group.
// buf: `count` elements, or, if pre_reduced, an accumulator too; count, datatype and op are then not read.
// general: operations of the general provider. prefer_numbers: as of nic::reduce_op(). Errors start with `method`;
// false with a Python error set.
bool fold_buffers(const char* method, PyObject* buf, PyObject* result, uint64_t count, uint64_t datatype, uint64_t op,
                  bool pre_reduced, bool general, bool prefer_numbers);

// FI_INT64 ... of an array's dtype; false with an error set that says that `method` needs a datatype.
bool datatype_of(const char* method, PyObject* array, uint64_t* out);

}  // namespace weft::bind
