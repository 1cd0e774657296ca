// cpp/bind/wait.hpp: waiting for the NIC in a Python thread: it spins briefly, yields for a while, then sleeps; other
// Python threads run during the wait, and Ctrl-C ends it.
#pragma once

#include <time.h>

#include <algorithm>

#include "bind/common.hpp"

namespace weft::bind {

inline uint64_t now_ns() {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

constexpr uint64_t kForever = ~uint64_t{0};
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
  if (s >= 0 && s < 1e9) *deadline = now_ns() + static_cast<uint64_t>(s * 1e9);
  return true;  // negative: no deadline, as in fi_cq_sread
}

// Limits of polling before a thread sleeps: the time in which its core ran no other thread, and the time in all.
constexpr uint64_t kPollNs = 20'000, kPollAllNs = 1'000'000;

// Polls until ready() is true, as any polling thread does: the engine leaves the links to it, and peers need no system
// call to wake the engine.
// with_gil: gives up when the core should be yielded, after 2 us at most. Otherwise begins with a yield, and gives up
// as above or at the deadline.
template <typename Ready>
bool poll_until(nic::Nic& nic, host::PollPacer& pacer, bool with_gil, uint64_t deadline, Ready&& ready) {
  for (uint64_t begun = 0, elsewhere = 0;;) {
    if (!with_gil) {
      const uint64_t now = pacer.yield_measured();
      if (begun == 0) begun = now - pacer.yielded_ns();
      elsewhere += pacer.yielded_ns();
      if (now - begun > kPollAllNs || now - begun - elsewhere > kPollNs || now >= deadline) return ready();
    }
    do {
      if (ready()) return true;
      nic.release_kept();
      if (nic.poll_from_app() != 0 && ready()) return true;
      cpu_relax();
    } while (!pacer.shares_core() && !pacer.due());  // a busy core: one look a turn
    if (with_gil) return false;
  }
}

// Waits until ready() is true: polls, and then sleeps on the event. Releases the GIL when the first polls find nothing,
// because releasing and taking the GIL costs as much as a message. memory: the pacer of earlier waits; needs the GIL.
// 1 ready, 0 timeout, -1 a Python signal handler raised. look_ns: the longest sleep before ready() is checked again.
template <typename Ready>
int wait_for(nic::Nic& nic, nic::Event& event, host::PollPacer& memory, uint64_t deadline, Ready&& ready,
             int64_t look_ns = kSleepSlice) {
  host::PollPacer pacer = memory;
  pacer.found();
  if (poll_until(nic, pacer, true, deadline, ready)) return 1;
  for (;;) {
    int result = -1;
    {
      const ReleasedGil released;
      if (poll_until(nic, pacer, false, deadline, ready)) {
        result = 1;
      } else if (const uint64_t now = now_ns(); now >= deadline) {
        result = ready() ? 1 : 0;
      } else {
        const int64_t slice = deadline == kForever ? look_ns : std::min(static_cast<int64_t>(deadline - now), look_ns);
        event.enter();
        const uint32_t seen = event.sequence();
        if (ready()) {
          result = 1;
        } else if (nic.has_engine()) {
          nic.prepare_app_sleep();
          if (!ready()) event.sleep(seen, slice);
        } else {
          nic.wait_as_engine(slice);
        }
        event.leave();
      }
    }
    memory = pacer;
    if (PyErr_CheckSignals() != 0) return -1;
    if (result >= 0) return result;
  }
}

}  // namespace weft::bind
