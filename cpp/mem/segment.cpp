// cpp/mem/segment.cpp: best-fit allocation in memfd segments; freed pages go back to the system.
#include "mem/segment.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "base/status.hpp"
#include "mem/lease.hpp"

namespace weft::mem {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
// Smaller freed ranges keep their pages for the next allocation: punching costs a system call and a fault per page.
constexpr size_t kPunchBytes = size_t{1} << 20;
constexpr size_t kExposedBytes = kHugePage;

constexpr size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}
}  // namespace

SegmentSet::~SegmentSet() {
  for (auto& segment : segments_) {
    const auto begin = reinterpret_cast<uint64_t>(segment->mapping.data());
    if (segment->subscribed) monitor_->unsubscribe(begin, begin + segment->mapping.size(), log_);
  }
  for (const auto& [at, placed] : placed_) ::munmap(reinterpret_cast<void*>(at), placed.bytes);
}

SegmentSet::Segment& SegmentSet::grow(size_t bytes, const Addresses& not_over) {
  mutex_.assert_held();
  if (segments_.size() >= kSegmentCountMax) {
    throw Error(fi_err::kENOMEM, "cannot allocate " + std::to_string(bytes) + " bytes: all " +
                                     std::to_string(kSegmentCountMax) + " segments are in use; free arrays first");
  }
  auto segment = std::make_unique<Segment>();
  // Batch systems limit the address space (`ulimit -v`), in which the segments of peers have to fit, too.
  rlimit room{};
  (void)::getrlimit(RLIMIT_AS, &room);
  const size_t size = round_up(std::max(bytes, std::min<size_t>(kSegmentBytes, room.rlim_cur / 32)), kHugePage);
  segment->fd = make_memfd("weft-segment", size + kGateBytes);
  seal_size(segment->fd.get());
  segment->mapping = Mapping::shared(segment->fd.get(), size + kGateBytes, true, "a segment");
  // The kernel may choose the addresses that the caller is about to map. A second mapping, made while the first one
  // exists, gets other addresses.
  std::vector<Mapping> unwanted;
  const auto lies_over = [&] {
    const auto begin = reinterpret_cast<uint64_t>(segment->mapping.data());
    return begin < not_over.begin + not_over.bytes && not_over.begin < begin + size + kGateBytes;
  };
  while (lies_over()) {
    unwanted.push_back(std::move(segment->mapping));
    segment->mapping = Mapping::shared(segment->fd.get(), size + kGateBytes, true, "a segment");
  }
  unwanted.clear();
  segment->exposed.resize((size / kExposedBytes + 63) / 64 + 1);
  (void)::madvise(segment->mapping.data(), size, MADV_HUGEPAGE);  // a hint: the system may forbid it for shared memory
  segment->free_by_offset.emplace(0, size);
  segments_.push_back(std::move(segment));
  return *segments_.back();
}

SegmentPlace SegmentSet::take(size_t size, const Addresses& not_over) {
  mutex_.assert_held();
  // Large arrays start at a huge page boundary, so that the kernel can use huge pages.
  const size_t align = size >= kHugePage ? kHugePage : kAllocationAlign;
  if (log_.pending()) look_at_changes();
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (size_t i = 0; i < segments_.size(); ++i) {
      Segment& segment = *segments_[i];
      auto best = segment.free_by_offset.end();
      for (auto it = segment.free_by_offset.begin(); it != segment.free_by_offset.end(); ++it) {
        const uint64_t start = round_up(it->first, align);
        if (start + size > it->first + it->second) continue;
        if (best == segment.free_by_offset.end() || it->second < best->second) best = it;
      }
      if (best == segment.free_by_offset.end()) continue;
      const auto [free_offset, free_bytes] = *best;
      const uint64_t start = round_up(free_offset, align);
      segment.free_by_offset.erase(best);
      if (start > free_offset) segment.free_by_offset.emplace(free_offset, start - free_offset);
      if (start + size < free_offset + free_bytes) {
        segment.free_by_offset.emplace(start + size, free_offset + free_bytes - start - size);
      }
      return {static_cast<uint32_t>(i), start};
    }
    grow(size + align, not_over);
  }
  throw Error(fi_err::kENOMEM, "cannot allocate " + std::to_string(size) + " bytes of segment memory");
}

namespace {
size_t pages_of(size_t bytes) {
  if (bytes > (size_t{1} << 46)) {
    throw Error(fi_err::kENOMEM, "cannot allocate " + std::to_string(bytes) + " bytes: more than an address space");
  }
  return round_up(std::max<size_t>(bytes, 1), kAllocationAlign);
}
}  // namespace

namespace {
// A peer writes the hold, so its fields may have any value: avoid sums that could wrap.
bool overlap(const SegmentPlace& place, uint64_t bytes, const HeldPlace& held) noexcept {
  if (held.segment != place.segment) return false;
  return held.offset < place.offset ? held.length > place.offset - held.offset : held.offset - place.offset < bytes;
}
}  // namespace

std::byte* SegmentSet::allocate(size_t bytes) {
  const size_t size = pages_of(bytes);
  if (resting()) look_if_holds_ended();
  const Guard lock(mutex_);
  const SegmentPlace at = take(size);
  std::byte* address = segments_[at.segment]->mapping.data() + at.offset;
  live_.emplace(reinterpret_cast<uint64_t>(address), size);
  return address;
}

std::byte* SegmentSet::allocate_at(std::byte* address, size_t bytes, bool replace) {
  const size_t size = pages_of(bytes);
  if (resting()) look_if_holds_ended();
  const Guard lock(mutex_);
  const auto begin = reinterpret_cast<uint64_t>(address);
  for (const auto& segment : segments_) {  // a segment's own mapping holds other allocations
    const auto base = reinterpret_cast<uint64_t>(segment->mapping.data());
    if (begin < base + segment->mapping.size() && base < begin + size) return nullptr;
  }
  const auto after = placed_.lower_bound(begin + size);
  if (after != placed_.begin() && std::prev(after)->first + std::prev(after)->second.bytes > begin) return nullptr;
  // take() places no new segment at these addresses, and later segments find them mapped.
  const SegmentPlace at = take(size, {begin, size});
  const int how = MAP_SHARED | (replace ? MAP_FIXED : MAP_FIXED_NOREPLACE);
  void* mapped = ::mmap(address, size, PROT_READ | PROT_WRITE, how, segments_[at.segment]->fd.get(),
                        static_cast<off_t>(at.offset));
  if (mapped != address) {  // a kernel without MAP_FIXED_NOREPLACE takes the address as a hint
    if (mapped != MAP_FAILED) ::munmap(mapped, size);
    release(at, size);
    return nullptr;
  }
  live_.emplace(begin, size);
  placed_.emplace(begin, Placed{at.segment, at.offset, size});
  return address;
}

SegmentPlace SegmentSet::place_of(std::byte* live) const noexcept {
  mutex_.assert_held();
  if (const auto placed = placed_.find(reinterpret_cast<uint64_t>(live)); placed != placed_.end()) {
    return {placed->second.segment, placed->second.offset};
  }
  for (size_t i = 0; i < segments_.size(); ++i) {
    std::byte* base = segments_[i]->mapping.data();
    if (live >= base && live < base + segments_[i]->mapping.size()) {
      return {static_cast<uint32_t>(i), static_cast<uint64_t>(live - base)};
    }
  }
  return {};  // not reached: every live allocation is in a segment
}

void SegmentSet::discard(std::byte* address) noexcept {
  const Guard lock(mutex_);
  const auto live = live_.find(reinterpret_cast<uint64_t>(address));
  if (live == live_.end()) return;
  const SegmentPlace at = place_of(address);
  (void)::fallocate(segments_[at.segment]->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(at.offset), static_cast<off_t>(live->second));
}

void SegmentSet::follow(std::byte* address) {
  const Guard lock(mutex_);
  const auto live = live_.find(reinterpret_cast<uint64_t>(address));
  if (live == live_.end() || placed_.contains(live->first)) return;
  const SegmentPlace at = place_of(address);
  follower_.follow(segments_[at.segment]->fd.get(), at.offset, live->first, live->second);
}

void SegmentSet::unfollow(std::byte* address) noexcept {
  if (follower_.active() && allocated(address) >= kHugePage) follower_.forget(reinterpret_cast<uint64_t>(address));
}

bool SegmentSet::overlay(std::byte* address, size_t bytes, std::byte* source) {
  const size_t size = pages_of(bytes);
  unfollow(address);
  const Guard lock(mutex_);
  const auto live = live_.find(reinterpret_cast<uint64_t>(address));
  if (live == live_.end() || live->second != size || placed_.contains(live->first)) return false;
  const SegmentPlace at = place_of(address);
  // First, because memory that is left out of the segments in vain is only reached more slowly.
  add_hole(live->first, live->first + size);
  // An old size of 0 makes a second mapping of the pages, and leaves the first one (mremap(2)).
  overlaid_.insert(live->first);
  if (::mremap(source, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) return false;
  if (!exposed(at, size)) {
    (void)::fallocate(segments_[at.segment]->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(at.offset), static_cast<off_t>(size));
  }
  return true;
}

// Puts the segment's own pages back, so that the place can be allocated again.
void SegmentSet::end_overlay(std::byte* address, const SegmentPlace& place, uint64_t size) noexcept {
  mutex_.assert_held();
  const Segment& segment = *segments_[place.segment];
  const int how = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
  if (::mmap(address, size, PROT_READ | PROT_WRITE, how, segment.fd.get(), static_cast<off_t>(place.offset)) ==
      MAP_FAILED) {
    return;  // the hole stays
  }
  if (log_.pending()) look_at_changes();  // the monitor's report of this call
  const auto begin = reinterpret_cast<uint64_t>(address);
  remove_hole(begin, begin + size);
}

void SegmentSet::free(std::byte* address) noexcept {
  uint64_t size;
  SegmentPlace at;
  unfollow(address);
  {
    const Guard lock(mutex_);
    const auto live = live_.find(reinterpret_cast<uint64_t>(address));
    if (live == live_.end()) return;
    size = live->second;
    at = place_of(address);
    live_.erase(live);
    if (overlaid_.erase(reinterpret_cast<uint64_t>(address)) != 0) end_overlay(address, at, size);
    if (placed_.erase(reinterpret_cast<uint64_t>(address)) != 0) (void)::munmap(address, size);
    if (holders_.load(std::memory_order_relaxed) == nullptr || !exposed(at, size)) {
      release(at, size);
      return;
    }
  }
  try {
    PlaceHolders& holders = *holders_.load(std::memory_order_relaxed);
    holders.let_go({at.segment, at.offset, size});
    const uint64_t stamp = holders.holds_stamp();
    std::vector<HeldPlace> held;
    // SYNC POINT: the regions over the place were revoked earlier, so every hold was entered before that.
    holders.held_places(held);
    const bool is_held = std::ranges::any_of(held, [&](const HeldPlace& h) { return overlap(at, size, h); });
    {
      const Guard lock(mutex_);
      // A lease begins under a hold: the holds were read first, so one of the two is seen.
      if (!is_held && leased(segments_[at.segment]->fd.get(), at.offset, size)) {
        lease_rests_.store(true, std::memory_order_relaxed);
      } else if (!is_held) {
        release(at, size);
        return;
      }
      resting_.push_back({at, size});
      resting_count_.store(resting_.size(), std::memory_order_relaxed);
    }
    // The hold may have ended before the place was on the list: check again.
    if (holders.holds_stamp() != stamp) look_at_holds();
  } catch (const std::bad_alloc&) {
    // Out of memory, the holds are unknown: never reuse the place, because it may be held.
  }
}

// ---- places that are held ----------------------------------------------------------------------------------------

void SegmentSet::held_by(PlaceHolders* holders) noexcept {
  holders_.store(holders, std::memory_order_relaxed);
}

void SegmentSet::expose(Segment& segment, uint64_t offset, uint64_t length) noexcept {
  const uint64_t last = (offset + std::max<uint64_t>(length, 1) - 1) / kExposedBytes;
  for (uint64_t i = offset / kExposedBytes; i <= last; ++i) segment.exposed[i / 64] |= uint64_t{1} << (i % 64);
}

bool SegmentSet::exposed(const SegmentPlace& place, uint64_t length) const noexcept {
  mutex_.assert_held();
  const Segment& segment = *segments_[place.segment];
  const uint64_t last = (place.offset + length - 1) / kExposedBytes;
  for (uint64_t i = place.offset / kExposedBytes; i <= last; ++i) {
    if ((segment.exposed[i / 64] >> (i % 64) & 1) != 0) return true;
  }
  return false;
}

void SegmentSet::look_if_holds_ended() noexcept {
  PlaceHolders* holders = holders_.load(std::memory_order_relaxed);
  if (holders == nullptr) return;
  const uint64_t stamp = holders->holds_stamp();  // read first: the next check sees holds that end during this one
  if (stamp_.exchange(stamp, std::memory_order_relaxed) != stamp || lease_rests_.load(std::memory_order_relaxed)) {
    look_at_holds();
  }
}

void SegmentSet::look_at_holds() noexcept {
  PlaceHolders* holders = holders_.load(std::memory_order_relaxed);
  if (holders == nullptr || !resting()) return;
  const Guard one(look_mutex_);
  try {
    // A place that comes to rest during this check may have a hold that the check has missed: leave it for the next
    // check. Only a check removes places, so the first `count` places keep their positions.
    size_t count;
    {
      const Guard lock(mutex_);
      count = resting_.size();
    }
    std::vector<HeldPlace> held;
    holders->held_places(held);
    // Sort the holds, so that each place is compared with few of them.
    const auto order = [](const HeldPlace& h) { return std::pair(h.segment, h.offset); };
    std::ranges::sort(held, {}, order);
    uint64_t longest = 0;
    for (const HeldPlace& h : held) longest = std::max(longest, h.length);
    const Guard lock(mutex_);
    const auto looked_at = resting_.begin() + static_cast<std::ptrdiff_t>(count);
    bool only_leased = false;
    const auto end = std::remove_if(resting_.begin(), looked_at, [&](const Resting& r) {
      mutex_.assert_held();
      const uint64_t from = r.place.offset < longest ? 0 : r.place.offset - longest;
      auto h = std::ranges::lower_bound(held, std::pair(r.place.segment, from), {}, order);
      for (; h != held.end() && h->segment == r.place.segment && h->offset < r.place.offset + r.bytes; ++h) {
        if (overlap(r.place, r.bytes, *h)) return false;
      }
      if (leased(segments_[r.place.segment]->fd.get(), r.place.offset, r.bytes)) {
        only_leased = true;
        return false;
      }
      release(r.place, r.bytes);
      return true;
    });
    // Places after looked_at came meanwhile, perhaps because of a lease: leave the mark for the next check.
    if (looked_at == resting_.end()) lease_rests_.store(only_leased, std::memory_order_relaxed);
    resting_.erase(end, looked_at);
    resting_count_.store(resting_.size(), std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {  // the places stay at rest
  }
}

uint64_t SegmentSet::resting_bytes() {
  if (resting()) look_if_holds_ended();
  const Guard lock(mutex_);
  uint64_t sum = 0;
  for (const Resting& r : resting_) sum += r.bytes;
  return sum;
}

void SegmentSet::release(const SegmentPlace& place, uint64_t size) noexcept {
  mutex_.assert_held();
  assert(place.segment < segments_.size() && size % kAllocationAlign == 0 && "whole pages of a segment");
  Segment& segment = *segments_[place.segment];
  if (size >= kPunchBytes) {
    (void)::fallocate(segment.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(place.offset),
                      static_cast<off_t>(size));
  }
  if (log_.pending()) look_at_changes();
  give_back(segment, place.offset, size);
}

void SegmentSet::give_back(Segment& segment, uint64_t offset, uint64_t size) {
  mutex_.assert_held();
  const auto base = reinterpret_cast<uint64_t>(segment.mapping.data());
  for (const auto& [begin, end] : holes_) {
    if (end <= base + offset || base + offset + size <= begin) continue;
    if (begin > base + offset) give_back(segment, offset, begin - base - offset);
    if (end < base + offset + size) give_back(segment, end - base, base + offset + size - end);
    return;
  }
  auto& spans = segment.free_by_offset;
  auto next = spans.lower_bound(offset);
  if (next != spans.end() && offset + size == next->first) {
    size += next->second;
    next = spans.erase(next);
  }
  if (next != spans.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += size;
      return;
    }
  }
  spans.emplace(offset, size);
}

size_t SegmentSet::allocated(std::byte* address) const noexcept {
  const Guard lock(mutex_);
  const auto live = live_.find(reinterpret_cast<uint64_t>(address));
  return live == live_.end() ? 0 : live->second;
}

std::optional<SegmentPlace> SegmentSet::find(const void* address, size_t length) {
  const auto* p = static_cast<const std::byte*>(address);
  const Guard lock(mutex_);
  for (size_t i = 0; i < segments_.size(); ++i) {
    const auto* base = segments_[i]->mapping.data();
    const size_t size = segments_[i]->mapping.size();
    if (p >= base && p < base + size && length <= static_cast<size_t>(base + size - p)) {
      if (!segments_[i]->watched) [[unlikely]]
        watch(*segments_[i]);
      if (log_.pending()) [[unlikely]]
        look_at_changes();
      if (!holes_.empty()) [[unlikely]] {
        const auto begin = reinterpret_cast<uint64_t>(p);
        const auto after = holes_.lower_bound(begin + length);
        if (after != holes_.begin() && std::prev(after)->second > begin) return std::nullopt;
      }
      expose(*segments_[i], static_cast<uint64_t>(p - base), length);
      return SegmentPlace{static_cast<uint32_t>(i), static_cast<uint64_t>(p - base)};
    }
  }
  if (!placed_.empty()) {
    const auto begin = reinterpret_cast<uint64_t>(p);
    const auto after = placed_.upper_bound(begin);
    if (after != placed_.begin()) {
      const auto& [at, placed] = *std::prev(after);
      const uint64_t offset = begin - at;
      if (offset < placed.bytes && length <= placed.bytes - offset) {
        expose(*segments_[placed.segment], placed.offset + offset, length);
        return SegmentPlace{placed.segment, placed.offset + offset};
      }
    }
  }
  return std::nullopt;
}

// ---- pages that are no longer ours -------------------------------------------------------------------------------

void SegmentSet::watch_with(std::shared_ptr<Monitor> monitor) {
  const Guard lock(mutex_);
  monitor_ = std::move(monitor);
}

void SegmentSet::watch(Segment& segment) {
  mutex_.assert_held();
  segment.watched = true;  // tried once: a range that cannot be watched now cannot be watched later
  if (monitor_ == nullptr) return;
  const auto begin = reinterpret_cast<uint64_t>(segment.mapping.data());
  log_.watch(begin, begin + segment.mapping.size());
  std::string why;
  segment.subscribed = monitor_->subscribe(begin, begin + segment.mapping.size(), log_, &why);
}

void SegmentSet::look_at_changes() {
  mutex_.assert_held();
  log_.drain([this](const Change& change) {
    // Dropped pages come back from the segment's file at the next touch, so madvise() changes nothing.
    if (change.unmapped) add_hole(change.begin, change.end);
  });
}

void SegmentSet::add_hole(uint64_t begin, uint64_t end) {
  mutex_.assert_held();
  for (auto& segment : segments_) {
    const auto base = reinterpret_cast<uint64_t>(segment->mapping.data());
    uint64_t low = std::max(begin, base);
    uint64_t high = std::min(end, base + segment->mapping.size());
    if (low >= high) continue;
    // Round to whole pages.
    low = low / kAllocationAlign * kAllocationAlign;
    high = round_up(high, kAllocationAlign);
    auto next = holes_.upper_bound(low);
    if (next != holes_.begin() && std::prev(next)->second >= low) --next;
    uint64_t from = low, to = high;
    while (next != holes_.end() && next->first <= to) {
      from = std::min(from, next->first);
      to = std::max(to, next->second);
      next = holes_.erase(next);
    }
    holes_.emplace(from, to);
    auto& spans = segment->free_by_offset;
    auto span = spans.upper_bound(low - base);
    if (span != spans.begin()) --span;
    while (span != spans.end() && span->first < high - base) {
      const auto [at, bytes] = *span;
      if (at + bytes <= low - base) {
        ++span;
        continue;
      }
      span = spans.erase(span);
      if (at < low - base) spans.emplace(at, low - base - at);
      if (at + bytes > high - base) span = spans.emplace(high - base, at + bytes - (high - base)).first;
    }
  }
}

void SegmentSet::remove_hole(uint64_t begin, uint64_t end) {
  mutex_.assert_held();
  const auto after = holes_.upper_bound(begin);
  if (after == holes_.begin()) return;
  const auto [low, high] = *std::prev(after);
  if (high < end) return;
  holes_.erase(low);
  if (low < begin) holes_.emplace(low, begin);
  if (high > end) holes_.emplace(end, high);
}

Gate* SegmentSet::gate(uint32_t segment) const {
  const Guard lock(mutex_);
  if (segment >= segments_.size()) return nullptr;
  Mapping& mapping = segments_[segment]->mapping;
  return Gate::in(mapping.data(), mapping.size());
}

bool SegmentSet::takes_turns(const void* address, size_t length) const {
  const auto begin = reinterpret_cast<uint64_t>(address);
  const Guard lock(mutex_);
  auto live = live_.upper_bound(begin);
  if (live != live_.begin() && std::prev(live)->first + std::prev(live)->second > begin) --live;
  for (; live != live_.end() && live->first < begin + length; ++live) {
    if (live->second >= kTurnsBytesMin) return true;
  }
  return false;
}

uint32_t SegmentSet::count() const {
  const Guard lock(mutex_);
  return static_cast<uint32_t>(segments_.size());
}

size_t SegmentSet::bytes(uint32_t segment) const {
  const Guard lock(mutex_);
  return segment < segments_.size() ? segments_[segment]->mapping.size() : 0;
}

int SegmentSet::fd(uint32_t segment) const {
  const Guard lock(mutex_);
  return segment < segments_.size() ? segments_[segment]->fd.get() : -1;
}

uint64_t SegmentSet::allocated_bytes() const {
  const Guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [address, bytes] : live_) sum += bytes;
  return sum;
}

UNCHECKED void SegmentSet::close_fds() noexcept {
  for (auto& segment : segments_) segment->fd.reset();
}

uint64_t memory_bytes() noexcept {
  struct sysinfo found{};
  if (::sysinfo(&found) != 0) return ~uint64_t{0};
  return (uint64_t{found.totalram} + found.totalswap) * found.mem_unit;
}

bool populate(uint64_t address, uint64_t length, bool writable) noexcept {
#ifndef MADV_POPULATE_READ
  constexpr int MADV_POPULATE_READ = 22, MADV_POPULATE_WRITE = 23;  // Linux 5.14, <asm-generic/mman-common.h>
#endif
  if (length == 0) return true;
  const uint64_t begin = address / kAllocationAlign * kAllocationAlign;
  const size_t size = round_up(address + length, kAllocationAlign) - begin;
  int done;
  do {
    done = ::madvise(reinterpret_cast<void*>(begin), size, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  } while (done != 0 && errno == EINTR);
  if (done == 0 || errno != EINVAL) return done == 0;
  // EINVAL: the range is not mapped so, or an older kernel lacks the advice; a call with 0 bytes tells which. An older
  // kernel gets MADV_WILLNEED, which it may disregard: touching the pages could end the process.
  if (::madvise(reinterpret_cast<void*>(begin), 0, MADV_POPULATE_WRITE) == 0) return false;
  return ::madvise(reinterpret_cast<void*>(begin), size, MADV_WILLNEED) == 0;
}

}  // namespace weft::mem
