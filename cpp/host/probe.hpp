// cpp/host/probe.hpp: measures this machine's physical limits for comparison, and waits for a word in memory.
//
// All times are in nanoseconds.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::host {

using Word = std::atomic<uint64_t>;

// HOT. Waits until *word == value: spins, then yields; false after timeout_ns. Lines touched: the word's and this
// thread's pacer. The clock is read only around yields.
bool await_word(const Word* word, uint64_t value, uint64_t timeout_ns);
// The first looks of a wait: 0.3 us, a little more than the cost of releasing and taking a lock that others want.
bool look_for_word(const Word* word, uint64_t value);

// Mean time of a memcpy; of all copies of `piece` bytes every `stride` bytes, if piece is not 0.
double probe_memcpy(std::span<std::byte> to, std::span<const std::byte> from, uint64_t rounds, size_t piece,
                    size_t stride);
double probe_fetch_add(Word* word, uint64_t rounds);
// A bare process_vm_writev or readv; -1 when the kernel refuses.
double probe_cma(bool write, pid_t pid, uint64_t remote, std::span<std::byte> local, uint64_t rounds);
// Half a round trip of bare stores to one word that starts as 0; -1 at the timeout. The first round is not counted.
double probe_pingpong(Word* word, uint64_t rounds, bool first, uint64_t timeout_ns);
// Half a round trip of `size` bytes over a socket that both sides poll; -1 at the timeout.
double probe_socket_pingpong(int fd, uint64_t rounds, size_t size, bool first, uint64_t timeout_ns);
// Sends or receives a buffer `rounds` times, and waits until the last byte has arrived; -1 at the timeout.
double probe_socket_stream(int fd, std::span<std::byte> buffer, uint64_t rounds, bool send, uint64_t timeout_ns);

}  // namespace weft::host
