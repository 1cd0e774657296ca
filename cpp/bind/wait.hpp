// cpp/bind/wait.hpp: waiting for the NIC in a Python thread: it spins briefly, yields for a while, then sleeps; other
// Python threads run during the wait, and Ctrl-C ends it.
#pragma once

#include <time.h>

#include <algorithm>

#include "base/backoff.hpp"
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

// Waits until ready() is true: spins briefly, yields for a while, then sleeps on the event. Without the GIL.
// 1 ready, 0 timeout, -1 a Python signal handler raised. look_ns: the longest sleep before ready() is checked again.
template <typename Ready>
int wait_for(nic::Nic& nic, nic::Event& event, uint64_t deadline, Ready&& ready, int64_t look_ns = kSleepSlice) {
  int result = -2;
  while (result == -2) {
    {
      const ReleasedGil released;
      const uint64_t spin_until = now_ns() + 20'000;
      Backoff backoff(32, 64);
      while (result == -2) {
        if (ready()) {
          result = 1;
          break;
        }
        nic.release_kept();
        nic.progress(!nic.has_engine());
        if (now_ns() > spin_until) break;
        backoff.pause();
      }
      if (result == -2) {
        const uint64_t now = now_ns();
        if (now >= deadline) {
          result = ready() ? 1 : 0;
        } else {
          const int64_t slice =
              deadline == kForever ? look_ns : std::min(static_cast<int64_t>(deadline - now), look_ns);
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
    }
    if (PyErr_CheckSignals() != 0) return -1;
  }
  return result;
}

}  // namespace weft::bind
