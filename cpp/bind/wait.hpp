// cpp/bind/wait.hpp: waiting for the NIC in a Python thread: other Python threads run during the wait, and Ctrl-C ends
// it.
#pragma once

#include "bind/common.hpp"
#include "host/wait.hpp"

namespace weft::bind {

using host::kForever, host::now_ns;

constexpr int64_t kSleepSlice = 50'000'000;  // interval at which a sleeping thread checks for Ctrl-C

// `seconds` (or None) from now; false with an error set.
inline bool deadline_of(PyObject* seconds, uint64_t* deadline, const char* method) {
  *deadline = kForever;
  if (seconds == nullptr || seconds == Py_None) return true;
  const double s = PyFloat_AsDouble(seconds);
  if (s == -1.0 && PyErr_Occurred()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Format(PyExc_TypeError, "%s: timeout must be a number of seconds, or None for no limit, not %R", method,
                   seconds);
    }
    return false;
  }
  *deadline = host::deadline_in(s);
  return true;
}

// Waits until ready() is true. Releases the GIL when the first polls find nothing, because releasing and taking the GIL
// costs as much as a message. memory: the pacer of earlier waits; needs the GIL.
// 1 ready, 0 timeout, -1 a Python signal handler raised. look_ns: the longest sleep before ready() is checked again.
template <typename Ready>
int wait_for(nic::Nic& nic, nic::Event& event, host::PollPacer& memory, uint64_t deadline, Ready&& ready,
             int64_t look_ns = kSleepSlice) {
  host::PollPacer pacer = memory;
  pacer.found();
  if (host::poll_until(nic, pacer, true, deadline, ready)) return 1;
  for (;;) {
    host::Turn turn;
    {
      const ReleasedGil released;
      turn = host::wait_turn(nic, event, pacer, deadline, look_ns, ready);
    }
    memory = pacer;
    if (PyErr_CheckSignals() != 0) return -1;
    if (turn != host::Turn::more) return turn == host::Turn::ready ? 1 : 0;
  }
}

}  // namespace weft::bind
