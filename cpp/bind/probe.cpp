// cpp/bind/probe.cpp: measures the machine's physical limits for comparison, and waits for a word in memory.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "bind/common.hpp"
#include "bind/signatures.hpp"
#include "bind/wait.hpp"
#include "mem/huge_pages.hpp"
#include "mem/segment.hpp"

namespace weft::bind {

namespace {

using Word = std::atomic<uint64_t>;

// Of this thread's waits for a word: a thread that shares its core then yields early in its next wait too, instead of
// spinning through its time slice while the other thread waits.
thread_local constinit host::PollPacer t_word_pacer;

// HOT. Waits until *word == value: spins, then yields; false after timeout_ns. Lines touched: the word's and the
// pacer's. The clock is read only around yields.
bool await_word(const Word* word, uint64_t value, uint64_t timeout_ns) {
  host::PollPacer& pacer = t_word_pacer;
  uint64_t deadline = 0;  // 0: there was no yield
  for (;;) {
    if (word->load(std::memory_order_acquire) == value) {
      pacer.found();
      return true;
    }
    cpu_relax();
    if (pacer.due()) {
      const uint64_t now = pacer.yield_measured();
      if (deadline == 0) deadline = now + timeout_ns;
      if (now > deadline || timeout_ns == 0) return false;
    }
  }
}

// ---- poll_u64 ------------------------------------------------------------------------------------------------------

constexpr int kLooksWithGil = 32;          // 0.3 us, a little more than the cost of releasing and taking the GIL
constexpr uint64_t kSliceNs = 50'000'000;  // interval at which a waiting thread checks for Ctrl-C

Signature g_poll{"poll_u64", {"obj", "offset", "value", "timeout"}, 4, 4, {}};

// HOT. A plain CPython method: with more pollers than cores each time slice starts with cold caches, so every page and
// line that the method does not touch saves time. Lines touched: the arguments', the word's, the pacer's; the GIL's
// only if it waits. Benchmark: bench/bench_oversubscription.py.
PyObject* poll_u64(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* a[4];
  uint64_t offset = 0, value = 0;
  Buf b;
  if (!parse(g_poll, args, nargs, kwnames, a) || !to_u64(a[1], &offset, "poll_u64", "offset") ||
      !to_u64(a[2], &value, "poll_u64", "value") || !b.acquire_host(a[0], false)) {
    return nullptr;
  }
  const double seconds = PyFloat_AsDouble(a[3]);
  if (seconds == -1.0 && PyErr_Occurred()) return nullptr;
  if (b.length < 8 || offset > b.length - 8 || reinterpret_cast<uintptr_t>(b.data + offset) % sizeof(Word) != 0) {
    set_error(fi_err::kEINVAL, "no aligned 8-byte word there");
    return nullptr;
  }
  const auto* word = reinterpret_cast<const Word*>(b.data + offset);
  const int looks = t_word_pacer.shares_core() ? 1 : kLooksWithGil;
  for (int i = 0; i < looks; ++i) {
    if (word->load(std::memory_order_acquire) == value) Py_RETURN_TRUE;
    cpu_relax();
  }
  uint64_t left = seconds > 0 ? static_cast<uint64_t>(std::min(seconds, 1e9) * 1e9) : 0;
  uint64_t end = 0;  // 0: during the first slice, before the clock is read
  for (;;) {
    const uint64_t slice = std::min(left, kSliceNs);
    {
      const ReleasedGil released;
      if (await_word(word, value, slice)) break;
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
    {"poll_u64", method<poll_u64>(), METH_FASTCALL | METH_KEYWORDS,
     "True once the 8-byte word at offset has this value; False after timeout seconds. Spins, then yields."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void register_probes(Module& m) {
  m.def(
      "probe_memcpy",
      [](nb::handle dst, nb::handle src, uint64_t rounds, size_t piece, size_t stride) {
        Buf d, s;
        if (!d.acquire_host(dst.ptr(), true) || !s.acquire_host(src.ptr(), false)) throw nb::python_error();
        const size_t n = std::min(d.length, s.length);
        if (piece == 0 || piece > n) piece = n;
        stride = std::max(stride, piece);
        const ReleasedGil released;
        const uint64_t start = now_ns();
        for (uint64_t i = 0; i < rounds; ++i) {
          size_t at = 0;
          do {
            std::memcpy(d.data + at, s.data + at, piece);
            asm volatile("" ::: "memory");
            at += stride;
          } while (at + piece <= n);
        }
        return static_cast<double>(now_ns() - start) / static_cast<double>(rounds);
      },
      nb::arg("dst"), nb::arg("src"), nb::arg("rounds"), nb::arg("piece") = 0, nb::arg("stride") = 0,
      "Nanoseconds that memcpy takes between these buffers, on average.\n\n"
      "piece, stride  if given, one copy of `piece` bytes every `stride` bytes; the result is the time for all of "
      "them.");
  m.def(
      "probe_fetch_add",
      [](nb::handle word, uint64_t rounds) {
        Buf b;
        if (!b.acquire_host(word.ptr(), true)) throw nb::python_error();
        if (b.length < 8 || reinterpret_cast<uintptr_t>(b.data) % 8 != 0)
          raise(fi_err::kEINVAL, "an aligned 8-byte word is needed");
        auto* w = reinterpret_cast<Word*>(b.data);
        const ReleasedGil released;
        const uint64_t start = now_ns();
        for (uint64_t i = 0; i < rounds; ++i) w->fetch_add(1, std::memory_order_seq_cst);
        return static_cast<double>(now_ns() - start) / static_cast<double>(rounds);
      },
      nb::arg("word"), nb::arg("rounds"),
      "Nanoseconds that a bare atomic fetch-and-add of this word takes, on average.");
  m.def("memory_bytes", [] { return mem::memory_bytes(); }, "The memory and the swap space of this machine, in bytes.");
  m.def(
      "use_huge_pages",
      [](uint64_t address, uint64_t length) {
        const ReleasedGil released;
        return mem::use_huge_pages(address, length);
      },
      nb::arg("address"), nb::arg("length"),
      "Puts huge pages behind the whole blocks of 2 MiB of shared memory. False: the kernel refuses.");
  static constexpr auto cma = [](bool write, int pid, uint64_t remote, nb::handle local, uint64_t rounds) {
    Buf s;
    if (!s.acquire_host(local.ptr(), !write)) throw nb::python_error();
    const ReleasedGil released;
    const iovec l{s.data, s.length}, r{reinterpret_cast<void*>(remote), s.length};
    const uint64_t start = now_ns();
    for (uint64_t i = 0; i < rounds; ++i) {
      const ssize_t n = write ? ::process_vm_writev(pid, &l, 1, &r, 1, 0) : ::process_vm_readv(pid, &l, 1, &r, 1, 0);
      if (n != static_cast<ssize_t>(s.length)) return -1.0;
    }
    return static_cast<double>(now_ns() - start) / static_cast<double>(rounds);
  };
  m.def(
      "probe_cma_write",
      [](int pid, uint64_t remote, nb::handle src, uint64_t rounds) { return cma(true, pid, remote, src, rounds); },
      nb::arg("pid"), nb::arg("remote"), nb::arg("src"), nb::arg("rounds"),
      "Nanoseconds that a bare process_vm_writev of src to an address of process pid takes; -1 when the kernel "
      "refuses.");
  m.def(
      "probe_cma_read",
      [](int pid, uint64_t remote, nb::handle dst, uint64_t rounds) { return cma(false, pid, remote, dst, rounds); },
      nb::arg("pid"), nb::arg("remote"), nb::arg("dst"), nb::arg("rounds"),
      "Nanoseconds that a bare process_vm_readv into dst takes; -1 when the kernel refuses.");
  m.def(
      "probe_pingpong",
      [](nb::handle word, uint64_t rounds, bool first, double timeout) {
        Buf b;
        if (!b.acquire_host(word.ptr(), true)) throw nb::python_error();
        if (b.length < 8) raise(fi_err::kEINVAL, "the shared word needs 8 bytes");
        auto* w = reinterpret_cast<Word*>(b.data);
        const auto timeout_ns = static_cast<uint64_t>(timeout * 1e9);
        const ReleasedGil released;
        const uint64_t base = first ? 0 : 1;
        uint64_t start = now_ns();
        for (uint64_t i = 0; i <= rounds; ++i) {
          if (i == 1) start = now_ns();  // the first round waits for the other side to start
          if (first) {
            w->store(2 * i + 1, std::memory_order_release);
            if (!await_word(w, 2 * i + 2, timeout_ns)) return -1.0;
          } else {
            if (!await_word(w, 2 * i + base, timeout_ns)) return -1.0;
            w->store(2 * i + 2, std::memory_order_release);
          }
        }
        return static_cast<double>(now_ns() - start) / static_cast<double>(2 * rounds);
      },
      nb::arg("word"), nb::arg("rounds"), nb::arg("first"), nb::arg("timeout") = 10.0,
      "Half a round trip, in nanoseconds, of bare stores to one shared word between two processes; -1 on timeout.\n"
      "Both sides call it, one with first=True, on the same word, which starts as 0. The first round is not counted.");
  if (PyModule_AddFunctions(m.ptr(), with_signatures("", g_functions)) != 0) throw nb::python_error();
}

}  // namespace weft::bind
