// cpp/mem/segment.hpp: memory that Weft allocates: sparse memfd segments that a peer maps once, and their allocator.
// A segment is large (16 GiB of address space; pages are allocated at first touch), so a process with many arrays still
// has one or two segments, and a peer reaches all its arrays through one mapping.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/lock.hpp"
#include "base/mapping.hpp"
#include "mem/change_log.hpp"
#include "mem/gate.hpp"
#include "mem/huge_pages.hpp"
#include "mem/monitor.hpp"

namespace weft::mem {

constexpr size_t kSegmentBytes = size_t{16} << 30;
constexpr uint32_t kSegmentCountMax = 200;  // one SCM_RIGHTS message (253) holds them and the other descriptors
constexpr size_t kAllocationAlign = 4096;   // arrays of different owners never share a page

struct SegmentPlace {
  uint32_t segment = 0;
  uint64_t offset = 0;
};

struct HeldPlace {
  uint32_t segment;
  uint64_t offset, length;
};

// Knows the places in segments to which pointers exist that outlive their regions (nic/window.hpp).
class PlaceHolders {
 public:
  virtual ~PlaceHolders() = default;
  // The application is about to free a place: its mappings end. The caller holds no lock of the segments.
  virtual void let_go(const HeldPlace&) {}
  // Adds the places that are held now. The caller holds no lock of the segments.
  virtual void held_places(std::vector<HeldPlace>& out) = 0;
  // Changes when a hold ends.
  virtual uint64_t holds_stamp() = 0;
};

class SegmentSet {
 public:
  SegmentSet() = default;
  ~SegmentSet();
  SegmentSet(const SegmentSet&) = delete;
  SegmentSet& operator=(const SegmentSet&) = delete;

  // Watches each segment from the first find() of its memory on: pages that the application unmaps, or maps other
  // memory over, are no longer segment memory and are never allocated again.
  void watch_with(std::shared_ptr<Monitor> monitor);

  // Sets the holders, which are asked before a place that was ever registered is reused; null: no holders.
  void held_by(PlaceHolders* holders) noexcept;
  // Frees the resting places that are neither held nor leased.
  void look_at_holds() noexcept;
  [[nodiscard]] bool resting() const noexcept { return resting_count_.load(std::memory_order_relaxed) != 0; }

  // Allocates at least one byte, zeroed if the memory was never used before; throws Error(ENOMEM).
  std::byte* allocate(size_t bytes);
  // Allocates at the caller's address, a multiple of the page size. `replace`: existing mappings there are replaced;
  // otherwise returns null if there is one. Throws Error(ENOMEM).
  std::byte* allocate_at(std::byte* address, size_t bytes, bool replace);
  // Drops the pages of an allocation: it reads as zero and occupies no memory until it is touched again.
  void discard(std::byte* address) noexcept;
  // From now on an allocation in a segment's own mapping gets huge pages as it is touched (huge_pages.hpp).
  void follow(std::byte* address);
  // Puts the pages at `source`, a shared mapping of another file, in the place of an allocation: its addresses stay,
  // and until free() they are not segment memory. Its own pages are freed, at once if no peer was ever told of them,
  // else by free(). `source` is not changed. False, and nothing has changed for the application: no allocation of as
  // many pages begins at the address, or the kernel refused.
  [[nodiscard]] bool overlay(std::byte* address, size_t bytes, std::byte* source);
  // Frees an allocation. Its place is reused when no pointer holds it and no process has a lease on it (lease.hpp);
  // until then it rests and keeps its pages.
  void free(std::byte* address) noexcept;
  // The size of the allocation at an address that allocate() returned; 0 for any other address.
  [[nodiscard]] size_t allocated(std::byte* address) const noexcept;

  // The place of [address, address + length); empty unless one segment contains all of it.
  [[nodiscard]] std::optional<SegmentPlace> find(const void* address, size_t length);
  [[nodiscard]] Gate* gate(uint32_t segment) const;  // null: no such segment
  // Whether updates of [address, address + length) take turns (gate.hpp): a part of it is in an allocation of at least
  // kTurnsBytesMin. It depends on the allocation alone, so that all regions over the same memory agree.
  [[nodiscard]] bool takes_turns(const void* address, size_t length) const;
  [[nodiscard]] uint32_t count() const;
  [[nodiscard]] size_t bytes(uint32_t segment) const;
  [[nodiscard]] int fd(uint32_t segment) const;
  [[nodiscard]] uint64_t allocated_bytes() const;
  // Bytes that the application has freed and that are kept for the peers that hold them; checks the holds first.
  [[nodiscard]] uint64_t resting_bytes();
  void close_fds() noexcept;  // in a forked child

 private:
  struct Segment {
    UniqueFd fd;
    Mapping mapping;
    std::map<uint64_t, uint64_t> free_by_offset;  // offset -> bytes
    // One bit per kExposedBytes: find() was called for memory in it, to register it. Peers can hold no other memory.
    std::vector<uint64_t> exposed;
    bool watched = false, subscribed = false;
  };
  struct Placed {  // an allocation with a second mapping, at the user's address
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
  // `not_over`: addresses at which a new segment must not be mapped.
  Segment& grow(size_t bytes, const Addresses& not_over);
  SegmentPlace take(size_t size, const Addresses& not_over = {0, 0});  // requires the lock
  static void expose(Segment& segment, uint64_t offset, uint64_t length) noexcept;
  [[nodiscard]] bool exposed(const SegmentPlace& place, uint64_t length) const noexcept;
  void look_if_holds_ended() noexcept;
  void release(const SegmentPlace& place, uint64_t size) noexcept;
  [[nodiscard]] SegmentPlace place_of(std::byte* live) const noexcept;
  void watch(Segment& segment);
  void look_at_changes();
  void add_hole(uint64_t begin, uint64_t end);
  void remove_hole(uint64_t begin, uint64_t end);
  void end_overlay(std::byte* address, const SegmentPlace& place, uint64_t size) noexcept;
  void unfollow(std::byte* address) noexcept;
  void give_back(Segment& segment, uint64_t offset, uint64_t size);

  mutable RankedMutex<lock_rank::kSegments> mutex_;
  std::vector<std::unique_ptr<Segment>> segments_ GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> live_ GUARDED_BY(mutex_);  // address -> bytes
  std::map<uint64_t, Placed> placed_
      GUARDED_BY(mutex_);  // by address; allocations of live_ outside the segments' own mappings
  std::set<uint64_t> overlaid_ GUARDED_BY(mutex_);  // addresses of live_ whose pages overlay() has replaced
  std::shared_ptr<Monitor> monitor_ GUARDED_BY(mutex_);
  ChangeLog log_;
  std::atomic<PlaceHolders*> holders_{nullptr};
  RankedMutex<lock_rank::kSegmentLook> look_mutex_;  // one look at resting_ at a time
  std::vector<Resting> resting_ GUARDED_BY(mutex_);
  std::atomic<size_t> resting_count_{0};  // size of resting_, readable without the lock
  std::atomic<uint64_t> stamp_{0};        // holds_stamp() at the last check of all resting places
  // A place rests only because of a lease. No event tells when a lease ends, so each allocation looks again.
  std::atomic<bool> lease_rests_{false};
  std::map<uint64_t, uint64_t> holes_
      GUARDED_BY(mutex_);  // begin -> end: addresses in segments where other memory is mapped now
  PageFollower follower_;  // ends first: it uses the segments' descriptors
};

// Allocates the pages of [address, address + length) before they are touched. False: out of memory, or no such mapping.
bool populate(uint64_t address, uint64_t length, bool writable) noexcept;

// The memory and the swap space of this machine, in bytes: more can never be in use.
uint64_t memory_bytes() noexcept;

}  // namespace weft::mem
