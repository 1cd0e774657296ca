// cpp/host/probe.cpp: see probe.hpp.
#include "host/probe.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/cache.hpp"
#include "host/pacer.hpp"
#include "host/wait.hpp"

namespace weft::host {

namespace {

constexpr int kFirstLooks = 32;

// Of this thread's waits for a word: a thread that shares its core then yields early in its next wait too, instead of
// spinning through its time slice while the other thread waits.
thread_local constinit PollPacer t_word_pacer;

double mean(uint64_t start, uint64_t rounds) {
  return static_cast<double>(now_ns() - start) / static_cast<double>(rounds);
}

// Polls until `size` bytes have arrived; false if `deadline` passes or the other side hangs up.
bool receive_polling(int fd, std::byte* to, size_t size, uint64_t deadline) {
  size_t have = 0;
  for (uint32_t round = 0; have < size; ++round) {
    const ssize_t n = ::recv(fd, to + have, size - have, MSG_DONTWAIT);
    if (n > 0) {
      have += static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR) || ((round & 255) == 255 && now_ns() > deadline)) {
      return false;
    }
  }
  return true;
}

bool send_all(int fd, const std::byte* from, size_t size, uint64_t deadline) {
  size_t sent = 0;
  while (sent < size) {
    const ssize_t n = ::send(fd, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if ((n < 0 && errno != EAGAIN && errno != EINTR) || now_ns() > deadline) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool look_for_word(const Word* word, uint64_t value) {
  const int looks = t_word_pacer.shares_core() ? 1 : kFirstLooks;
  for (int i = 0; i < looks; ++i) {
    if (word->load(std::memory_order_acquire) == value) return true;
    cpu_relax();
  }
  return false;
}

bool await_word(const Word* word, uint64_t value, uint64_t timeout_ns) {
  PollPacer& pacer = t_word_pacer;
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

double probe_memcpy(std::span<std::byte> to, std::span<const std::byte> from, uint64_t rounds, size_t piece,
                    size_t stride) {
  const size_t n = std::min(to.size(), from.size());
  if (piece == 0 || piece > n) piece = n;
  stride = std::max(stride, piece);
  const uint64_t start = now_ns();
  for (uint64_t i = 0; i < rounds; ++i) {
    size_t at = 0;
    do {
      std::memcpy(to.data() + at, from.data() + at, piece);
      asm volatile("" ::: "memory");
      at += stride;
    } while (at + piece <= n);
  }
  return mean(start, rounds);
}

double probe_fetch_add(Word* word, uint64_t rounds) {
  const uint64_t start = now_ns();
  for (uint64_t i = 0; i < rounds; ++i) word->fetch_add(1, std::memory_order_seq_cst);
  return mean(start, rounds);
}

double probe_cma(bool write, pid_t pid, uint64_t remote, std::span<std::byte> local, uint64_t rounds) {
  const iovec l{local.data(), local.size()}, r{reinterpret_cast<void*>(remote), local.size()};  // NOLINT
  const uint64_t start = now_ns();
  for (uint64_t i = 0; i < rounds; ++i) {
    const ssize_t n = write ? ::process_vm_writev(pid, &l, 1, &r, 1, 0) : ::process_vm_readv(pid, &l, 1, &r, 1, 0);
    if (n != static_cast<ssize_t>(local.size())) return -1.0;
  }
  return mean(start, rounds);
}

double probe_pingpong(Word* word, uint64_t rounds, bool first, uint64_t timeout_ns) {
  const uint64_t base = first ? 0 : 1;
  uint64_t start = now_ns();
  for (uint64_t i = 0; i <= rounds; ++i) {
    if (i == 1) start = now_ns();  // the first round waits for the other side to start
    if (first) {
      word->store(2 * i + 1, std::memory_order_release);
      if (!await_word(word, 2 * i + 2, timeout_ns)) return -1.0;
    } else {
      if (!await_word(word, 2 * i + base, timeout_ns)) return -1.0;
      word->store(2 * i + 2, std::memory_order_release);
    }
  }
  return mean(start, 2 * rounds);
}

double probe_socket_pingpong(int fd, uint64_t rounds, size_t size, bool first, uint64_t timeout_ns) {
  std::vector<std::byte> buffer(size);
  uint64_t start = 0;
  const uint64_t deadline = now_ns() + timeout_ns;
  for (uint64_t i = 0; i <= rounds; ++i) {
    if (i == 1) start = now_ns();
    if (first && !send_all(fd, buffer.data(), size, deadline)) return -1.0;
    if (!receive_polling(fd, buffer.data(), size, deadline)) return -1.0;
    if (!first && !send_all(fd, buffer.data(), size, deadline)) return -1.0;
  }
  return mean(start, 2 * rounds);
}

double probe_socket_stream(int fd, std::span<std::byte> buffer, uint64_t rounds, bool send, uint64_t timeout_ns) {
  const uint64_t deadline = now_ns() + timeout_ns, start = now_ns();
  for (uint64_t i = 0; i < rounds; ++i) {
    if (!(send ? send_all(fd, buffer.data(), buffer.size(), deadline)
               : receive_polling(fd, buffer.data(), buffer.size(), deadline))) {
      return -1.0;
    }
  }
  // The other side confirms the arrival of the last byte.
  std::byte done{};
  const bool ok = send ? receive_polling(fd, &done, 1, deadline) : send_all(fd, &done, 1, deadline);
  return ok ? static_cast<double>(now_ns() - start) : -1.0;
}

}  // namespace weft::host
