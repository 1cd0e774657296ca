// cpp/nic/telemetry.hpp: a NIC's counts for operators: packets by format, flushes, acknowledgements of the fabric.
//
// Hardware counts at the NIC of the target. Here an initiator that accesses memory by load and store does the target's
// work, and counts in the target's page. Frames carry their traffic bits, and the NIC that serves them counts. The
// processes of a host may share a page (attach); it is then the device's, as in hardware, and says whether its link is
// down. Source: fi_cxi(7) "Optimized RMA", "High Rate Put", "PCIe Atomics".
#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/cache.hpp"
#include "base/fields.hpp"
#include "base/lock.hpp"
#include "base/mapping.hpp"
#include "nic/atomics.hpp"
#include "nic/op.hpp"

namespace weft::nic {

// The text is the name that the hardware gives the counter.
#define WEFT_TELEMETRY(X)                                                                            \
  X(hrp_ack, 0, "HNI_HRP_ACK")                          /* acknowledged High Rate Puts; initiator */ \
  X(cpu_fetch_amo, 1, "IXE_DMAWR_CPU_FTCH_AMO_REQS")    /* atomics sent over PCIe */                 \
  X(flush, 2, "IXE_DMAWR_FLUSH_REQS")                   /* flushes for delivery complete */          \
  X(restricted_pkt, 3, "IXE_RX_PTL_RESTRICTED_PKT")     /* packets of the low-overhead format */     \
  X(unrestricted_pkt, 4, "IXE_RX_PTL_UNRESTRICTED_PKT") /* the other packets */                      \
  X(entry_hit, 5, "LPE_PLEC_HITS")                      /* list entries that were in the cache */    \
  X(success, 6, "LPE_SUCCESS_CNTR")                     /* list entries that were found */           \
  X(sent_tc0, 7, "HNI_PKTS_SENT_BY_TC_0")               /* packets by traffic class; initiator */    \
  X(sent_tc1, 8, "HNI_PKTS_SENT_BY_TC_1")                                                            \
  X(sent_tc2, 9, "HNI_PKTS_SENT_BY_TC_2")                                                            \
  X(sent_tc3, 10, "HNI_PKTS_SENT_BY_TC_3")                                                           \
  X(sent_tc4, 11, "HNI_PKTS_SENT_BY_TC_4")                                                           \
  X(hrp_response, 12, "PCT_HRP_RESPONSES_RECEIVED") /* each to one or several High Rate Puts; initiator */
WEFT_ENUM(Telemetry, uint8_t, WEFT_TELEMETRY, "The hardware's counters that the NIC keeps.");
constexpr size_t kTclassCount = 5;
constexpr size_t kTelemetryCount = static_cast<size_t>(Telemetry::hrp_response) + 1;
constexpr bool at_initiator(Telemetry what) noexcept {
  return what == Telemetry::hrp_ack || what >= Telemetry::sent_tc0;
}
constexpr size_t word_of(Telemetry what) noexcept {
  const auto i = static_cast<size_t>(what);
  return what >= Telemetry::sent_tc0 ? i - static_cast<size_t>(Telemetry::sent_tc0) + 1 : i;
}
constexpr const char* telemetry_name(Telemetry what) noexcept {
  return kTelemetryChoices[static_cast<size_t>(what)].text;
}

constexpr uint64_t kPacketBytes = 2048;  // payload of one packet
constexpr uint64_t packets_of(uint64_t bytes) noexcept {
  return bytes == 0 ? 1 : (bytes - 1) / kPacketBytes + 1;
}

// Traffic bits: how an operation travels. Frames carry the bits below 256.
namespace traffic {
constexpr uint16_t kCounted = 1, kRestricted = 2, kFlush = 4, kCpuAmo = 8, kEntryHit = 16, kHrp = 256;
constexpr uint8_t kInFrames = 0x1f;
}  // namespace traffic

struct TrafficRules {
  WEFT_TABLE(9, TrafficRules, "The provider's rules for how an endpoint's operations travel, used only for telemetry.");
  WEFT_FIELD(1, on, bool, false, none, "False: the endpoint's operations are not counted.");
  WEFT_FIELD(2, optimized_below, uint64_t, 0, key, "Client keys below this number belong to optimized regions.");
  WEFT_FIELD(3, provider_bit, uint64_t, 0, key, "The bit that is set in keys made by the provider.");
  WEFT_FIELD(4, optimized_bit, uint64_t, 0, key, "The bit that is set in provider keys of optimized regions.");
  WEFT_FIELD(5, cached_bit, uint64_t, 0, key,
             "The bit that is set in cached provider keys, whose regions have no events.");
  WEFT_FIELD(6, events_bit, uint64_t, 0, key,
             "The bit that is set in provider keys, other than cached ones, of regions with events.");
  WEFT_FIELD(7, client_events, bool, false, none, "Regions with client keys count as regions with events.");
  WEFT_FIELD(8, flush_flags, uint64_t, 0, flags, "Operation flags with which a write or an atomic flushes.");
  WEFT_FIELD(9, unreliable_flag, uint64_t, 0, flags, "The operation flag of unreliable atomics.");
  WEFT_FIELD(10, hrp_flag, uint64_t, 0, flags, "The operation flag of High Rate Puts.");
  WEFT_FIELD(11, pcie_flag, uint64_t, 0, flags, "The operation flag of atomics over PCIe.");
  WEFT_FIELD(12, hrp_without_uint32, bool, false, none,
             "An erratum of the NIC: atomics of UINT32 are never sent as High Rate Puts.");

  [[nodiscard]] bool optimized(uint64_t key) const noexcept {
    return (key & provider_bit) != 0 ? (key & optimized_bit) != 0 : key < optimized_below;
  }
  [[nodiscard]] bool wants_events(uint64_t key) const noexcept {
    return (key & provider_bit) != 0 ? (key & cached_bit) == 0 && (key & events_bit) != 0 : client_events;
  }
  // How an operation travels, as traffic bits. waw: the endpoint orders writes after writes. Inline: a call costs more.
  [[nodiscard]] uint16_t of(OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key, uint64_t flags,
                            bool waw) const noexcept {
    if (!on) return 0;
    uint16_t how = traffic::kCounted;
    const bool atomic = kind == OpKind::atomic;
    const bool plain = optimized(key) && !wants_events(key);
    if (plain) how |= traffic::kEntryHit;
    const bool unreliable = atomic && (flags & unreliable_flag) != 0;
    const bool restricted = atomic ? unreliable && optimized(key) : plain && (kind == OpKind::read || !waw);
    if (restricted) how |= traffic::kRestricted;
    if (kind != OpKind::read && (flags & flush_flags) != 0) how |= traffic::kFlush;
    if (atomic && (flags & pcie_flag) != 0) how |= traffic::kCpuAmo;
    if (restricted && (flags & hrp_flag) != 0 && kind != OpKind::read && (!atomic || family == AtomicFamily::base) &&
        !(atomic && hrp_without_uint32 && datatype == Datatype::uint32)) {
      how |= traffic::kHrp;
    }
    return how;
  }
};

// The counts of one writer, in memory that processes may share: a cache line for initiators, and one for targets.
struct TelemetryBlock {
  alignas(kCacheLine) std::atomic<uint64_t> at_initiator[8];
  alignas(kCacheLine) std::atomic<uint64_t> at_target[8];

  [[nodiscard]] std::atomic<uint64_t>& word(Telemetry what) noexcept {
    return (nic::at_initiator(what) ? at_initiator : at_target)[word_of(what)];
  }
  [[nodiscard]] const std::atomic<uint64_t>& word(Telemetry what) const noexcept {
    return const_cast<TelemetryBlock*>(this)->word(what);
  }
};

// A NIC's counts. A writer with a block of its own adds without a locked instruction. A block belongs to one writer at
// a time; its counts stay when the writer ends, and the next writer adds to them.
struct TelemetryPage {
  static constexpr size_t kBytes = 4096, kBlocks = 30;

  TelemetryBlock shared;                           // for writers that have no block: added to by locked instructions
  alignas(kCacheLine) std::atomic<uint64_t> down;  // not 0: the link of the NIC is down, and no operation passes
  alignas(kCacheLine) std::byte unused[kCacheLine];
  TelemetryBlock blocks[kBlocks];

  [[nodiscard]] bool link_down() const noexcept { return down.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] uint64_t total(Telemetry what) const noexcept;
};
static_assert(sizeof(TelemetryPage) == TelemetryPage::kBytes && 2 + kTclassCount <= 8 &&
              static_cast<size_t>(Telemetry::sent_tc0) <= 8);

class TelemetryPages;

// Counts for one NIC. Used by one thread at a time: the domain's lock guards a domain's writers.
class TelemetryWriter {
 public:
  // block: TelemetryPage::kBlocks: none, count in the shared one.
  TelemetryWriter(TelemetryPages* pages, TelemetryPage* page, size_t block) noexcept
      : pages_(pages),
        page_(page),
        counts_(block < TelemetryPage::kBlocks ? &page->blocks[block] : &page->shared),
        alone_(block < TelemetryPage::kBlocks) {}
  ~TelemetryWriter();
  TelemetryWriter(const TelemetryWriter&) = delete;
  TelemetryWriter& operator=(const TelemetryWriter&) = delete;

  [[nodiscard]] const TelemetryPage* page() const noexcept { return page_; }
  [[nodiscard]] bool link_down() const noexcept { return page_->link_down(); }
  // HOT.
  void add(Telemetry what, uint64_t n) noexcept { add(counts_->word(what), n); }
  void add_sent(uint8_t tclass, uint64_t packets) noexcept { add(counts_->at_initiator[1 + tclass], packets); }
  // Counts one operation of `bytes` that reached its region. counts: a counter of the target counts it.
  void add_target(uint16_t how, uint64_t bytes, bool counts) noexcept {
    add((how & traffic::kRestricted) != 0 ? Telemetry::restricted_pkt : Telemetry::unrestricted_pkt, packets_of(bytes));
    add(Telemetry::success, 1);
    if ((how & traffic::kEntryHit) != 0 && !counts) add(Telemetry::entry_hit, 1);
    if ((how & traffic::kFlush) != 0) add(Telemetry::flush, 1);
    if ((how & traffic::kCpuAmo) != 0) add(Telemetry::cpu_fetch_amo, 1);
  }

 private:
  void add(std::atomic<uint64_t>& word, uint64_t n) const noexcept {
    if (alone_) [[likely]] {
      word.store(word.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    } else {
      word.fetch_add(n, std::memory_order_relaxed);
    }
  }

  TelemetryPages* pages_;
  TelemetryPage* page_;
  TelemetryBlock* counts_;
  bool alone_;
};

// The pages of all NICs for which this process counts.
class TelemetryPages {
 public:
  // The page of a NIC, made at the first call. Its address stays valid. Takes no lock for a NIC asked for before.
  TelemetryPage& of(uint32_t nic) {
    const Known* known = known_[nic % kKnown].load(std::memory_order_acquire);
    return known != nullptr && known->nic == nic ? *known->page : find(nic);
  }
  // Makes the file's first 4 KiB the page of a NIC; replaces an earlier file. Throws Error(EBUSY) if this process has
  // already counted for the NIC without a file. The descriptor may be closed afterwards.
  void attach(uint32_t nic, int fd);
  // A writer with a block of its own, if the page has a free one. Drop the writer before this object.
  std::unique_ptr<TelemetryWriter> writer(uint32_t nic);

 private:
  friend class TelemetryWriter;
  // Blocks are claimed by locks on their bytes of the file, which the kernel drops with the process.
  struct Page {
    Mapping memory;
    UniqueFd file;  // invalid: the page is this process's own
    std::bitset<TelemetryPage::kBlocks> taken;
  };
  struct Held {
    std::vector<std::unique_ptr<Page>> pages;  // the last one is in use; routes may still point to the others
    uint64_t device = 0, inode = 0;
    [[nodiscard]] bool attached() const noexcept { return inode != 0; }
  };
  struct Known {
    uint32_t nic;
    TelemetryPage* page;
  };
  static constexpr size_t kKnown = 8;

  TelemetryPage& find(uint32_t nic);
  Page& held(uint32_t nic);
  void remember(uint32_t nic);
  void give_back(const TelemetryPage* page, size_t block) noexcept;
  void close_deleted() noexcept;

  RankedMutex<lock_rank::kTelemetry> mutex_;
  std::unordered_map<uint32_t, Held> pages_ GUARDED_BY(mutex_);
  std::atomic<const Known*> known_[kKnown]{};
  std::deque<Known> noted_ GUARDED_BY(mutex_);  // what known_ points to; an entry for each page and change of it
};

}  // namespace weft::nic
