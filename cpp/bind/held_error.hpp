// cpp/bind/held_error.hpp: a Python error that is set aside while other code runs.
#pragma once

#include "bind/common.hpp"

namespace weft::bind {

// Holds the Python error of its scope's begin, and sets it again at the end, whatever came between.
class HeldError {
 public:
  HeldError() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~HeldError() { PyErr_Restore(type_, value_, trace_); }
  HeldError(const HeldError&) = delete;
  HeldError& operator=(const HeldError&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

}  // namespace weft::bind
