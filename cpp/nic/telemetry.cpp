// cpp/nic/telemetry.cpp: see telemetry.hpp.
#include "nic/telemetry.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/status.hpp"

namespace weft::nic {

uint64_t TelemetryPage::total(Telemetry what) const noexcept {
  uint64_t sum = shared.word(what).load(std::memory_order_relaxed);
  for (const TelemetryBlock& block : blocks) sum += block.word(what).load(std::memory_order_relaxed);
  return sum;
}

TelemetryWriter::~TelemetryWriter() {
  if (alone_) pages_->give_back(page_, static_cast<size_t>(counts_ - page_->blocks));
}

namespace {

// Locks or unlocks the bytes of a block for this open file; false: another process has the lock.
bool lock_block(int fd, size_t block, short type) noexcept {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(offsetof(TelemetryPage, blocks) + block * sizeof(TelemetryBlock));
  range.l_len = sizeof(TelemetryBlock);
  return ::fcntl(fd, F_OFD_SETLK, &range) == 0;
}

}  // namespace

TelemetryPages::Page& TelemetryPages::held(uint32_t nic) {
  mutex_.assert_held();
  Held& held = pages_[nic];
  if (held.pages.empty()) {
    const UniqueFd fd = make_memfd("weft-telemetry", TelemetryPage::kBytes);
    auto page = std::make_unique<Page>();
    page->memory = Mapping::shared(fd.get(), TelemetryPage::kBytes, true, "counts of a NIC");
    held.pages.push_back(std::move(page));
  }
  return *held.pages.back();
}

void TelemetryPages::remember(uint32_t nic) {
  mutex_.assert_held();
  noted_.push_back({nic, reinterpret_cast<TelemetryPage*>(held(nic).memory.data())});
  known_[nic % kKnown].store(&noted_.back(), std::memory_order_release);
}

TelemetryPage& TelemetryPages::find(uint32_t nic) {
  const Guard guard(mutex_);
  auto* page = reinterpret_cast<TelemetryPage*>(held(nic).memory.data());
  const auto noted = std::ranges::find_if(noted_, [&](const Known& k) { return k.nic == nic && k.page == page; });
  if (noted == noted_.end()) {
    remember(nic);
  } else {
    known_[nic % kKnown].store(&*noted, std::memory_order_release);
  }
  return *page;
}

std::unique_ptr<TelemetryWriter> TelemetryPages::writer(uint32_t nic) {
  const Guard guard(mutex_);
  Page& page = held(nic);
  size_t block = 0;
  while (block < TelemetryPage::kBlocks &&
         (page.taken[block] || (page.file.valid() && !lock_block(page.file.get(), block, F_WRLCK)))) {
    ++block;
  }
  auto made = std::make_unique<TelemetryWriter>(this, reinterpret_cast<TelemetryPage*>(page.memory.data()), block);
  if (block < TelemetryPage::kBlocks) page.taken.set(block);
  return made;
}

void TelemetryPages::give_back(const TelemetryPage* page, size_t block) noexcept {
  const Guard guard(mutex_);
  for (auto& [nic, held] : pages_) {
    for (const auto& one : held.pages) {
      if (reinterpret_cast<const TelemetryPage*>(one->memory.data()) != page) continue;
      one->taken.reset(block);
      if (one->file.valid()) lock_block(one->file.get(), block, F_UNLCK);
    }
  }
}

// Closes the files that have no name any more: no further process can open them to claim blocks.
void TelemetryPages::close_deleted() noexcept {
  mutex_.assert_held();
  for (auto& [nic, held] : pages_) {
    for (const auto& page : held.pages) {
      struct stat s{};
      if (page->file.valid() && ::fstat(page->file.get(), &s) == 0 && s.st_nlink == 0) page->file = UniqueFd();
    }
  }
}

void TelemetryPages::attach(uint32_t nic, int fd) {
  struct stat s{};
  if (::fstat(fd, &s) != 0 || static_cast<size_t>(s.st_size) < TelemetryPage::kBytes) {
    throw Error(fi_err::kEINVAL, "a page of counts is a file of 4096 bytes");
  }
  const Guard guard(mutex_);
  Held& held = pages_[nic];
  if (held.attached() && held.device == s.st_dev && held.inode == s.st_ino) return;
  if (!held.attached() && !held.pages.empty()) {
    throw Error(fi_err::kEBUSY, "operations were counted for the NIC before its page was attached: attach it first");
  }
  close_deleted();
  auto page = std::make_unique<Page>();
  page->memory = Mapping::shared(fd, TelemetryPage::kBytes, true, "counts of a NIC");
  page->file = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!page->file.valid()) throw Error(fi_err::kEMFILE, "no descriptor is left for the page of a NIC's counts");
  held.pages.push_back(std::move(page));
  held.device = s.st_dev;
  held.inode = s.st_ino;
  remember(nic);
}

}  // namespace weft::nic
