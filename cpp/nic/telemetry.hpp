// cpp/nic/telemetry.hpp: a NIC's counts for operators: packets by format, flushes, acknowledgements of the fabric.
//
// Hardware counts at the NIC of the target. Here an initiator that accesses memory by load and store does the target's
// work, and counts in the target's page. Frames carry their traffic bits, and the NIC that serves them counts. The
// processes of a host may share a page (attach); it is then the device's, as in hardware, and says whether its link is
// down. Source: fi_cxi(7) "Optimized RMA", "High Rate Put", "PCIe Atomics".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/cache.hpp"
#include "base/mapping.hpp"
#include "nic/atomics.hpp"
#include "nic/op.hpp"

namespace weft::nic {

enum class Telemetry : uint8_t {
  hrp_ack,           // HNI_HRP_ACK: High Rate Puts that the fabric acknowledged; at the initiator
  cpu_fetch_amo,     // IXE_DMAWR_CPU_FTCH_AMO_REQS: atomics sent over PCIe
  flush,             // IXE_DMAWR_FLUSH_REQS: flushes for delivery complete
  restricted_pkt,    // IXE_RX_PTL_RESTRICTED_PKT: packets of the low-overhead format
  unrestricted_pkt,  // IXE_RX_PTL_UNRESTRICTED_PKT: the other packets
  entry_hit,         // LPE_PLEC_HITS: operations that found their list entry in the cache
  success,           // LPE_SUCCESS_CNTR: operations that found their list entry
  sent_tc0,          // HNI_PKTS_SENT_BY_TC_0 ... _4: packets by traffic class, at the initiator
};
constexpr size_t kTclassCount = 5;
constexpr size_t kTelemetryCount = static_cast<size_t>(Telemetry::sent_tc0) + kTclassCount;
constexpr bool at_initiator(Telemetry what) noexcept {
  return what == Telemetry::hrp_ack || what >= Telemetry::sent_tc0;
}
constexpr size_t word_of(Telemetry what) noexcept {
  const auto i = static_cast<size_t>(what);
  return what >= Telemetry::sent_tc0 ? i - static_cast<size_t>(Telemetry::sent_tc0) + 1 : i;
}
const char* telemetry_name(Telemetry what) noexcept;

constexpr uint64_t kPacketBytes = 2048;  // payload of one packet
constexpr uint64_t packets_of(uint64_t bytes) noexcept {
  return bytes == 0 ? 1 : (bytes - 1) / kPacketBytes + 1;
}

// Traffic bits: how an operation travels. Frames carry the bits below 256.
namespace traffic {
constexpr uint16_t kCounted = 1, kRestricted = 2, kFlush = 4, kCpuAmo = 8, kEntryHit = 16, kHrp = 256;
constexpr uint8_t kInFrames = 0x1f;
}  // namespace traffic

// The provider's rules for traffic bits; on == false: no counts.
struct TrafficRules {
  bool on = false;
  // Optimized regions: client keys below optimized_below, provider keys with optimized_bit. Regions with events:
  // provider keys with events_bit and without cached_bit; client keys if client_events is set.
  uint64_t optimized_below = 0, provider_bit = 0, optimized_bit = 0, cached_bit = 0, events_bit = 0;
  bool client_events = false;
  uint64_t flush_flags = 0, unreliable_flag = 0, hrp_flag = 0, pcie_flag = 0;
  bool hrp_without_uint32 = false;  // erratum of the NIC: uint32 atomics are not sent as High Rate Puts

  [[nodiscard]] bool optimized(uint64_t key) const noexcept {
    return (key & provider_bit) != 0 ? (key & optimized_bit) != 0 : key < optimized_below;
  }
  [[nodiscard]] bool wants_events(uint64_t key) const noexcept {
    return (key & provider_bit) != 0 ? (key & cached_bit) == 0 && (key & events_bit) != 0 : client_events;
  }
  // waw: the endpoint orders writes after writes.
  [[nodiscard]] uint16_t of(OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key, uint64_t flags,
                            bool waw) const noexcept;
};

// The counts, in memory that processes may share: one cache line for initiators, one for targets.
struct TelemetryPage {
  alignas(kCacheLine) std::atomic<uint64_t> at_initiator[8];
  alignas(kCacheLine) std::atomic<uint64_t> at_target[8];
  alignas(kCacheLine) std::atomic<uint64_t> down;  // not 0: the link of the NIC is down, and no operation passes

  static constexpr size_t kBytes = 4096;
  [[nodiscard]] bool link_down() const noexcept { return down.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] const std::atomic<uint64_t>& word(Telemetry what) const noexcept {
    return (nic::at_initiator(what) ? at_initiator : at_target)[word_of(what)];
  }
  void add(Telemetry what, uint64_t n) noexcept {
    (nic::at_initiator(what) ? at_initiator : at_target)[word_of(what)].fetch_add(n, std::memory_order_relaxed);
  }
  // Counts one operation of `bytes` that reached its region. counts: a counter of the target counts it.
  void add_target(uint16_t how, uint64_t bytes, bool counts) noexcept;
};
static_assert(sizeof(TelemetryPage) <= TelemetryPage::kBytes && 1 + kTclassCount <= 8 &&
              static_cast<size_t>(Telemetry::sent_tc0) <= 8);

// The pages of all NICs for which this process counts.
class TelemetryPages {
 public:
  // The page of a NIC, made at the first call. Its address stays valid.
  TelemetryPage& of(uint32_t nic);
  // Makes the file's first 4 KiB the page of a NIC; replaces an earlier file. Throws Error(EBUSY) if this process has
  // already counted for the NIC without a file.
  void attach(uint32_t nic, int fd);

 private:
  struct Held {
    std::vector<Mapping> pages;  // the last one is in use; routes may still point to the others
    uint64_t device = 0, file = 0;
    [[nodiscard]] bool attached() const noexcept { return file != 0; }
  };
  std::mutex mutex_;
  std::unordered_map<uint32_t, Held> pages_;
};

}  // namespace weft::nic
