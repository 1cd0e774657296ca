// cpp/bind/probe.cpp: the measurements of host/probe.hpp as functions, and poll_u64.
#include <algorithm>

#include "bind/common.hpp"
#include "bind/params.hpp"
#include "bind/signatures.hpp"
#include "bind/wait.hpp"
#include "host/probe.hpp"
#include "mem/huge_pages.hpp"
#include "mem/segment.hpp"

namespace weft::bind {

namespace {

using host::Word;

uint64_t ns_of(double seconds) {
  return seconds > 0 ? static_cast<uint64_t>(std::min(seconds, 1e9) * 1e9) : 0;
}

constexpr uint64_t kSliceNs = 50'000'000;  // interval at which a waiting thread checks for Ctrl-C

// HOT. A plain CPython method: with more pollers than cores each time slice starts with cold caches, so every page and
// line that the method does not touch saves time. Lines touched: the arguments', the word's, the pacer's; the GIL's
// only if it waits. Benchmark: bench/bench_oversubscription.py.
PyObject* poll_u64(PyObject*, PyObject* (&a)[4]) {
  uint64_t offset = 0, value = 0;
  Buf b;
  if (!to_u64(a[1], &offset, "poll_u64", "offset") || !to_u64(a[2], &value, "poll_u64", "value") ||
      !b.acquire_host(a[0], false)) {
    return nullptr;
  }
  const double seconds = PyFloat_AsDouble(a[3]);
  if (seconds == -1.0 && PyErr_Occurred()) return nullptr;
  if (b.length < 8 || offset > b.length - 8 || reinterpret_cast<uintptr_t>(b.data + offset) % sizeof(Word) != 0)
    return set_error(fi_err::kEINVAL, "no aligned 8-byte word there");
  const auto* word = reinterpret_cast<const Word*>(b.data + offset);
  if (host::look_for_word(word, value)) Py_RETURN_TRUE;
  uint64_t left = ns_of(seconds);
  uint64_t end = 0;  // 0: during the first slice, before the clock is read
  for (;;) {
    const uint64_t slice = std::min(left, kSliceNs);
    {
      const ReleasedGil released;
      if (host::await_word(word, value, slice)) break;
    }
    const uint64_t now = now_ns();
    if (end == 0) end = now + (left - slice);
    if (now >= end) Py_RETURN_FALSE;
    left = end - now;
    if (PyErr_CheckSignals() != 0) return nullptr;
  }
  Py_RETURN_TRUE;
}

PyMethodDef g_functions[] = {
    {"poll_u64", method<parsed<poll_u64, "poll_u64", "obj! offset! value! timeout!">>(), kFast,
     "True once the 8-byte word at offset has this value; False after timeout seconds. Spins, then yields."},
    {nullptr, nullptr, 0, nullptr}};

// The bytes of a buffer in host memory, which the buffer keeps valid.
std::span<std::byte> bytes_of(Buf& b, nb::handle object, bool writable) {
  if (!b.acquire_host(object.ptr(), writable)) throw nb::python_error();
  return {b.data, b.length};
}
Word* word_of(Buf& b, nb::handle object) {
  const auto bytes = bytes_of(b, object, true);
  if (bytes.size() < sizeof(Word) || reinterpret_cast<uintptr_t>(bytes.data()) % sizeof(Word) != 0) {
    raise(fi_err::kEINVAL, "an aligned 8-byte word is needed");
  }
  return reinterpret_cast<Word*>(bytes.data());
}
double cma(bool write, int pid, uint64_t remote, nb::handle local, uint64_t rounds) {
  Buf b;
  const auto bytes = bytes_of(b, local, !write);
  const ReleasedGil released;
  return host::probe_cma(write, pid, remote, bytes, rounds);
}

}  // namespace

void register_probes(Module& m) {
  m.about(
       "Nanoseconds that memcpy takes between these buffers, on average.\n\n"
       "piece, stride  if given, one copy of `piece` bytes every `stride` bytes; the result is the time for all of "
       "them.")
      .def<"probe_memcpy(dst, src, rounds, piece=0, stride=0)">(
          [](nb::handle dst, nb::handle src, uint64_t rounds, size_t piece, size_t stride) {
            Buf d, s;
            const auto to = bytes_of(d, dst, true), from = bytes_of(s, src, false);
            const ReleasedGil released;
            return host::probe_memcpy(to, from, rounds, piece, stride);
          });
  m.about("Nanoseconds that a bare atomic fetch-and-add of this word takes, on average.")
      .def<"probe_fetch_add(word, rounds)">([](nb::handle word, uint64_t rounds) {
        Buf b;
        Word* const w = word_of(b, word);
        const ReleasedGil released;
        return host::probe_fetch_add(w, rounds);
      });
  m.about("The memory and the swap space of this machine, in bytes.").def<"memory_bytes">([] {
    return mem::memory_bytes();
  });
  m.about("Puts huge pages behind the whole blocks of 2 MiB of shared memory. False: the kernel refuses.")
      .def<"use_huge_pages(address, length)">([](uint64_t address, uint64_t length) {
        const ReleasedGil released;
        return mem::use_huge_pages(address, length);
      });
  m.about(
       "Nanoseconds that a bare process_vm_writev of src to an address of process pid takes; -1 when the kernel "
       "refuses.")
      .def<"probe_cma_write(pid, remote, src, rounds)">([](int pid, uint64_t remote, nb::handle src, uint64_t rounds) {
        return cma(true, pid, remote, src, rounds);
      });
  m.about("Nanoseconds that a bare process_vm_readv into dst takes; -1 when the kernel refuses.")
      .def<"probe_cma_read(pid, remote, dst, rounds)">([](int pid, uint64_t remote, nb::handle dst, uint64_t rounds) {
        return cma(false, pid, remote, dst, rounds);
      });
  m.about(
       "Half a round trip, in nanoseconds, of bare stores to one shared word between two processes; -1 on timeout.\n"
       "Both sides call it, one with first=True, on the same word, which starts as 0. The first round is not counted.")
      .def<"probe_pingpong(word, rounds, first, timeout=10.0)">(
          [](nb::handle word, uint64_t rounds, bool first, double timeout) {
            Buf b;
            Word* const w = word_of(b, word);
            const ReleasedGil released;
            return host::probe_pingpong(w, rounds, first, ns_of(timeout));
          });
  m.about(
       "Nanoseconds of half a round trip of `size` bytes over a bare socket that both sides poll; -1 at the timeout.")
      .def<"probe_socket_pingpong(fd, rounds, size, first, timeout=10.0)">(
          [](int fd, uint64_t rounds, size_t size, bool first, double timeout) {
            const ReleasedGil released;
            return host::probe_socket_pingpong(fd, rounds, size, first, ns_of(timeout));
          });
  m.about("Nanoseconds to send (or receive) a buffer `rounds` times over a bare socket; -1 at the timeout.")
      .def<"probe_socket_stream(fd, buffer, rounds, send, timeout=10.0)">(
          [](int fd, nb::handle buffer, uint64_t rounds, bool send, double timeout) {
            Buf b;
            const auto bytes = bytes_of(b, buffer, !send);
            const ReleasedGil released;
            return host::probe_socket_stream(fd, bytes, rounds, send, ns_of(timeout));
          });
  if (PyModule_AddFunctions(m.ptr(), with_signatures("", g_functions)) != 0) throw nb::python_error();
}

}  // namespace weft::bind
