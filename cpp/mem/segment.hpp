// cpp/mem/segment.hpp: memory that Weft allocates: sparse memfd segments that a peer maps once, and their allocator.
// A segment is large (16 GiB of address space, pages only when touched), so a process has one or two of them however
// many arrays it allocates, and a peer needs one mapping to reach them all.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/mapping.hpp"
#include "mem/change_log.hpp"
#include "mem/monitor.hpp"

namespace weft::mem {

constexpr size_t kSegmentBytes = size_t{16} << 30;
constexpr uint32_t kSegmentCountMax = 200;  // all of them fit one SCM_RIGHTS message (253) beside the other descriptors
constexpr size_t kAllocationAlign = 4096;   // arrays of different owners never share a page

struct SegmentPlace {
  uint32_t segment = 0;
  uint64_t offset = 0;
};

struct HeldPlace {
  uint32_t segment;
  uint64_t offset, length;
};

// Knows which places in segments are held by pointers that outlive their regions (nic/window.hpp).
class PlaceHolders {
 public:
  virtual ~PlaceHolders() = default;
  // The places that are held now. Called without any lock of the segments.
  virtual void held_places(std::vector<HeldPlace>& out) = 0;
  // While this stays the same, no hold has ended.
  virtual uint64_t holds_stamp() = 0;
};

class SegmentSet {
 public:
  SegmentSet() = default;
  ~SegmentSet();
  SegmentSet(const SegmentSet&) = delete;
  SegmentSet& operator=(const SegmentSet&) = delete;

  // From here on a segment is watched once memory of it is looked for: pages of it that the application unmaps, or maps
  // something else over, are no longer segment memory, and are never allocated again.
  void watch_with(std::shared_ptr<Monitor> monitor);

  // Asked before a place that was ever registered is used again; null: there are no holders to ask.
  void held_by(PlaceHolders* holders) noexcept;
  // Frees the resting places that are no longer held.
  void look_at_holds() noexcept;
  [[nodiscard]] bool resting() const noexcept { return resting_count_.load(std::memory_order_relaxed) != 0; }

  // Memory of at least one byte, zeroed if it was never used before; throws Error(ENOMEM).
  std::byte* allocate(size_t bytes);
  // The same memory at an address of the caller's choice, a multiple of the page size. Unless `replace` says that what
  // is mapped there may go, null where something is. Throws Error(ENOMEM).
  std::byte* allocate_at(std::byte* address, size_t bytes, bool replace);
  // Drops the pages of an allocation: it reads as zero, and takes no memory until it is touched again.
  void discard(std::byte* address) noexcept;
  // The place is reused once no pointer holds it; until then it rests, with its pages.
  void free(std::byte* address) noexcept;
  // How many bytes lie at an address that allocate() returned; 0 for another.
  [[nodiscard]] size_t allocated(std::byte* address) const noexcept;

  // Where [address, address + length) lies, if it lies wholly in a segment.
  [[nodiscard]] std::optional<SegmentPlace> find(const void* address, size_t length);
  [[nodiscard]] uint32_t count() const;
  [[nodiscard]] size_t bytes(uint32_t segment) const;
  [[nodiscard]] int fd(uint32_t segment) const;
  [[nodiscard]] uint64_t allocated_bytes() const;
  // Freed by the application, and kept for the peers that hold them.
  [[nodiscard]] uint64_t resting_bytes() const;
  void close_fds() noexcept;  // in a forked child

 private:
  struct Segment {
    UniqueFd fd;
    Mapping mapping;
    std::map<uint64_t, uint64_t> free_by_offset;  // offset -> bytes
    // A bit for every kExposedBytes: memory of it was looked for, to be registered. Peers hold no other.
    std::vector<uint64_t> exposed;
    bool watched = false, subscribed = false;
  };
  struct Placed {  // an allocation that is mapped once more, where its user wants it
    uint32_t segment = 0;
    uint64_t offset = 0, bytes = 0;
  };
  struct Addresses {
    uint64_t begin, bytes;
  };
  struct Resting {
    SegmentPlace place;
    uint64_t bytes;
  };
  // `not_over`: where a new segment must not be mapped.
  Segment& grow(size_t bytes, const Addresses& not_over);
  SegmentPlace take(size_t size, const Addresses& not_over = {0, 0});  // with the lock
  static void expose(Segment& segment, uint64_t offset, uint64_t length) noexcept;
  [[nodiscard]] bool exposed(const SegmentPlace& place, uint64_t length) const noexcept;
  void look_if_holds_ended() noexcept;
  void release(const SegmentPlace& place, uint64_t size) noexcept;
  [[nodiscard]] SegmentPlace place_of(std::byte* live) const noexcept;
  void watch(Segment& segment);
  void look_at_changes();
  void add_hole(uint64_t begin, uint64_t end);
  void give_back(Segment& segment, uint64_t offset, uint64_t size);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::map<uint64_t, uint64_t> live_;  // address -> bytes
  std::map<uint64_t, Placed> placed_;  // by address; those of live_ that lie outside the segments' own mappings
  std::shared_ptr<Monitor> monitor_;
  ChangeLog log_;
  std::atomic<PlaceHolders*> holders_{nullptr};
  std::mutex look_mutex_;  // before mutex_
  std::vector<Resting> resting_;
  std::atomic<size_t> resting_count_{0};  // size of resting_, readable without the lock
  std::atomic<uint64_t> stamp_{0};        // of the last look at all of them
  std::map<uint64_t, uint64_t> holes_;    // begin -> end: addresses within segments that are mapped otherwise by now
};

// Has pages of [address, address + length) there before they are touched. False: no memory, or none may be there.
bool populate(uint64_t address, uint64_t length, bool writable) noexcept;

}  // namespace weft::mem
