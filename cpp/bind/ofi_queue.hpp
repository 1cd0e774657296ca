// cpp/bind/ofi_queue.hpp: shared by the queues and counters of a real libfabric: waiting in slices, and their
// descriptors.
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <string>

#include "bind/ofi.hpp"
#include "bind/wait.hpp"

namespace weft::bind {

constexpr int kSliceMs = 50;  // a waiting thread looks for Ctrl-C after this time

// Milliseconds to wait in one call: at least one, so that a short rest of the time is not spent spinning.
inline int slice_ms(uint64_t deadline) {
  if (deadline == kForever) return kSliceMs;
  const uint64_t now = now_ns();
  if (now >= deadline) return 0;
  return static_cast<int>(std::clamp<uint64_t>((deadline - now + 999'999) / 1'000'000, 1, kSliceMs));
}
inline void rest() {
  const ReleasedGil released;
  const timespec moment{0, 200'000};
  ::nanosleep(&moment, nullptr);
}

template <typename T>
int descriptor(OfiCore<T>& self) {
  T& t = ofi_open(self, "fd");
  int fd = -1;
  const int r = t.h.fid->ops->control(t.h.fid, ofi::kGetWait, &fd);
  ofi_check("fi_control(FI_GETWAIT)", r);
  return fd;
}
template <typename T>
uint64_t number_of_fid(const OfiCore<T>& core) {
  return reinterpret_cast<uint64_t>(core.box->h.fid);
}

template <typename T>
nb::object words_of(OfiCore<T>& self, int prov_errno, const nb::bytes& err_data, const char* name) {
  T& t = ofi_open(self, name);
  std::array<char, 512> room{};
  using Ops = std::remove_pointer_t<decltype(t.get()->ops)>;
  const auto call = ofi::op(t.get()->ops, &Ops::strerror);
  const char* found = call == nullptr ? nullptr
                                      : call(t.get(), prov_errno, err_data.size() != 0 ? err_data.c_str() : nullptr,
                                             room.data(), room.size());
  return ofi_words(found);
}

}  // namespace weft::bind
