// cpp/link/shm_area.hpp: the memory that a NIC shares with its peers on a host, besides table and segments:
//   ring      frames to us, and our jobs (copy_job.hpp); peers write
//   staging   payloads from us that are too long for a ring slot, and counters of peers' payloads consumed; peers read
// Under the default isolation all peers share one area. A connection with a strict side has an area of its own in each
// direction, so that no peer can read another's frames or send frames in its name.
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/lock.hpp"
#include "base/mapping.hpp"
#include "link/copy_job.hpp"
#include "ring/mpsc.hpp"
#include "wire/frame.hpp"

namespace weft::link {

// Both sides know the two shapes; the NIC rejects a hello with other numbers.
struct AreaShape {
  uint32_t slot_count;      // of the ring
  uint32_t chunk_count;     // of staging memory, 64 KiB each, sparse
  uint32_t producer_count;  // ids from 1; each has a counter in the staging memory's header

  // The ring, and behind it a job for each producer.
  [[nodiscard]] constexpr size_t jobs_at() const noexcept { return ring::ring_bytes(slot_count); }
  [[nodiscard]] constexpr size_t ring_bytes() const noexcept { return jobs_at() + sizeof(CopyJob) * producer_count; }
  [[nodiscard]] constexpr size_t header_bytes() const noexcept { return size_t{8} * producer_count; }
  [[nodiscard]] constexpr size_t staging_bytes() const noexcept {
    return header_bytes() + size_t{chunk_count} * wire::kStagedPayloadMax;
  }
};
constexpr AreaShape kSharedArea{4096, 256, 4096};  // 1 MiB of ring, 16 MiB of staging memory
// 64 KiB of ring and 4 MiB of staging memory; only used pages are allocated. The header is a page: chunks are aligned.
constexpr AreaShape kPrivateArea{256, 64, 512};
constexpr uint32_t kBriefSlot = 1;        // kind of a ring slot with a wire::Brief; 0: with a wire::Frame
constexpr uint32_t kPrivateProducer = 1;  // the only producer id of a private ring

constexpr const AreaShape& area_shape(bool is_private) noexcept {
  return is_private ? kPrivateArea : kSharedArea;
}

// The consumer's side of an area's ring, in the NIC that owns it.
class Inbox {
 public:
  explicit Inbox(const AreaShape& shape)
      : fd_(make_memfd("weft-ring", shape.ring_bytes())),
        memory_(Mapping::shared(fd_.get(), shape.ring_bytes(), true, "the ring")),
        consumer(ring::MpscConsumer::create(std::span(memory_.data(), memory_.size()), shape.slot_count).value()) {
    seal_size(fd_.get());
  }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void close_fd() noexcept { fd_.reset(); }
  [[nodiscard]] std::byte* memory() const noexcept { return memory_.data(); }

 private:
  UniqueFd fd_;
  Mapping memory_;

 public:
  ring::MpscConsumer consumer;
};

// Our staging memory in an area. Thread-safe.
class Staging {
 public:
  explicit Staging(const AreaShape& shape)
      : shape_(shape),
        fd_(make_memfd("weft-staging", shape.staging_bytes())),
        memory_(Mapping::shared(fd_.get(), shape.staging_bytes(), true, "staging memory")) {
    seal_read_only(fd_.get());
    for (uint32_t i = 0; i < shape.chunk_count; ++i) free_.push_back(shape.chunk_count - 1 - i);
  }
  // A chunk for a peer that already holds `held` chunks; nullopt: no more for this peer. In a shared area no peer may
  // hold more chunks than are free (a dynamic threshold): one peer that has stopped reading holds at most half, two at
  // most a third each, and a peer that reads always gets a chunk.
  [[nodiscard]] std::optional<uint32_t> take(size_t held) noexcept {
    const Guard lock(lock_);
    const bool crowded = shape_.producer_count == kSharedArea.producer_count && free_.size() <= held;
    if (free_.empty() || crowded) return std::nullopt;
    const uint32_t chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  void give_back(uint32_t chunk) noexcept {
    const Guard lock(lock_);
    assert(chunk < shape_.chunk_count && free_.size() < shape_.chunk_count && "a chunk is given back once");
    free_.push_back(chunk);  // allocates nothing: the capacity holds all chunks
  }
  [[nodiscard]] std::byte* chunk(uint32_t index) const noexcept {
    return memory_.data() + shape_.header_bytes() + size_t{index} * wire::kStagedPayloadMax;
  }
  // Counter: staged payloads of this producer that we have consumed.
  [[nodiscard]] std::atomic<uint64_t>& consumed(uint32_t producer) const noexcept {
    assert(producer < shape_.producer_count && "the producer has a counter");
    return reinterpret_cast<std::atomic<uint64_t>*>(memory_.data())[producer];
  }
  [[nodiscard]] size_t bytes() const noexcept { return memory_.size(); }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void close_fd() noexcept { fd_.reset(); }

 private:
  const AreaShape shape_;
  UniqueFd fd_;
  Mapping memory_;
  RankedSpin<lock_rank::kStaging> lock_;
  std::vector<uint32_t> free_ GUARDED_BY(lock_);
};

struct Area {
  explicit Area(const AreaShape& shape) : inbox(shape), staging(shape) {}
  void close_fds() noexcept {
    inbox.close_fd();
    staging.close_fd();
  }
  Inbox inbox;
  Staging staging;
  RankedSpin<lock_rank::kShmInbox> inbox_mutex;  // excludes the polling thread and a thread that is about to sleep
  bool active = true;                            // polls read the ring; false: the producer rings the doorbell
  std::atomic<uint32_t> idle{0};                 // consecutive polls that found the ring empty
};

}  // namespace weft::link
