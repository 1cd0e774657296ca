// cpp/mem/segment.cpp: best-fit allocation in memfd segments; freed pages go back to the system.
#include "mem/segment.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/status.hpp"

namespace weft::mem {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
// Below this, freed pages are kept for the next allocation: punching costs a system call and a page fault per page.
constexpr size_t kPunchBytes = size_t{1} << 20;

constexpr size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}
}  // namespace

SegmentSet::~SegmentSet() {
  for (auto& segment : segments_) {
    const auto begin = reinterpret_cast<uint64_t>(segment->mapping.data());
    if (segment->subscribed) monitor_->unsubscribe(begin, begin + segment->mapping.size(), log_);
  }
}

SegmentSet::Segment& SegmentSet::grow(size_t bytes) {
  if (segments_.size() >= kSegmentCountMax) {
    throw Error(fi_err::kENOMEM, "cannot allocate " + std::to_string(bytes) + " bytes: all " +
                                     std::to_string(kSegmentCountMax) + " segments are in use; free arrays first");
  }
  auto segment = std::make_unique<Segment>();
  const size_t size = round_up(std::max(bytes, kSegmentBytes), kHugePage);
  segment->fd = make_memfd("weft-segment", size);
  seal_size(segment->fd.get());
  segment->mapping = Mapping::shared(segment->fd.get(), size, true, "a segment");
  (void)::madvise(segment->mapping.data(), size, MADV_HUGEPAGE);  // used where the system allows it for shared memory
  segment->free_by_offset.emplace(0, size);
  segments_.push_back(std::move(segment));
  return *segments_.back();
}

std::byte* SegmentSet::allocate(size_t bytes) {
  if (bytes > (size_t{1} << 46)) {
    throw Error(fi_err::kENOMEM, "cannot allocate " + std::to_string(bytes) + " bytes: more than an address space");
  }
  // Large arrays start on a huge page, so that the system can back them with huge pages.
  const size_t align = bytes >= kHugePage ? kHugePage : kAllocationAlign;
  const size_t size = round_up(std::max<size_t>(bytes, 1), kAllocationAlign);
  const std::lock_guard lock(mutex_);
  if (log_.pending()) look_at_changes();
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (auto& segment : segments_) {
      auto best = segment->free_by_offset.end();
      for (auto it = segment->free_by_offset.begin(); it != segment->free_by_offset.end(); ++it) {
        const uint64_t start = round_up(it->first, align);
        if (start + size > it->first + it->second) continue;
        if (best == segment->free_by_offset.end() || it->second < best->second) best = it;
      }
      if (best == segment->free_by_offset.end()) continue;
      const auto [free_offset, free_bytes] = *best;
      const uint64_t start = round_up(free_offset, align);
      segment->free_by_offset.erase(best);
      if (start > free_offset) segment->free_by_offset.emplace(free_offset, start - free_offset);
      if (start + size < free_offset + free_bytes) {
        segment->free_by_offset.emplace(start + size, free_offset + free_bytes - start - size);
      }
      std::byte* address = segment->mapping.data() + start;
      live_.emplace(reinterpret_cast<uint64_t>(address), size);
      return address;
    }
    grow(size + align);
  }
  throw Error(fi_err::kENOMEM, "cannot allocate " + std::to_string(bytes) + " bytes of segment memory");
}

void SegmentSet::free(std::byte* address) noexcept {
  const std::lock_guard lock(mutex_);
  const auto live = live_.find(reinterpret_cast<uint64_t>(address));
  if (live == live_.end()) return;
  uint64_t size = live->second;
  live_.erase(live);
  for (auto& segment : segments_) {
    if (address < segment->mapping.data() || address >= segment->mapping.data() + segment->mapping.size()) continue;
    auto offset = static_cast<uint64_t>(address - segment->mapping.data());
    if (size >= kPunchBytes) {
      (void)::fallocate(segment->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                        static_cast<off_t>(size));
    }
    if (log_.pending()) look_at_changes();
    give_back(*segment, offset, size);
    return;
  }
}

void SegmentSet::give_back(Segment& segment, uint64_t offset, uint64_t size) {
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
  const std::lock_guard lock(mutex_);
  const auto live = live_.find(reinterpret_cast<uint64_t>(address));
  return live == live_.end() ? 0 : live->second;
}

std::optional<SegmentPlace> SegmentSet::find(const void* address, size_t length) {
  const auto* p = static_cast<const std::byte*>(address);
  const std::lock_guard lock(mutex_);
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
      return SegmentPlace{static_cast<uint32_t>(i), static_cast<uint64_t>(p - base)};
    }
  }
  return std::nullopt;
}

// ---- pages that are no longer ours -------------------------------------------------------------------------------

void SegmentSet::watch_with(std::shared_ptr<Monitor> monitor) {
  const std::lock_guard lock(mutex_);
  monitor_ = std::move(monitor);
}

void SegmentSet::watch(Segment& segment) {
  segment.watched = true;  // once: what cannot be watched now cannot be later
  if (monitor_ == nullptr) return;
  const auto begin = reinterpret_cast<uint64_t>(segment.mapping.data());
  log_.watch(begin, begin + segment.mapping.size());
  std::string why;
  segment.subscribed = monitor_->subscribe(begin, begin + segment.mapping.size(), log_, &why);
}

void SegmentSet::look_at_changes() {
  log_.drain([this](const Change& change) {
    // Pages that were dropped come back from the segment's file when they are touched: nothing changed.
    if (change.unmapped) add_hole(change.begin, change.end);
  });
}

void SegmentSet::add_hole(uint64_t begin, uint64_t end) {
  for (auto& segment : segments_) {
    const auto base = reinterpret_cast<uint64_t>(segment->mapping.data());
    uint64_t low = std::max(begin, base);
    uint64_t high = std::min(end, base + segment->mapping.size());
    if (low >= high) continue;
    // Whole pages, as the system maps them.
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

uint32_t SegmentSet::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(segments_.size());
}

size_t SegmentSet::bytes(uint32_t segment) const {
  const std::lock_guard lock(mutex_);
  return segment < segments_.size() ? segments_[segment]->mapping.size() : 0;
}

int SegmentSet::fd(uint32_t segment) const {
  const std::lock_guard lock(mutex_);
  return segment < segments_.size() ? segments_[segment]->fd.get() : -1;
}

uint64_t SegmentSet::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [address, bytes] : live_) sum += bytes;
  return sum;
}

void SegmentSet::close_fds() noexcept {
  for (auto& segment : segments_) segment->fd.reset();
}

}  // namespace weft::mem
