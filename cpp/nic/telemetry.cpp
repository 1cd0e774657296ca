// cpp/nic/telemetry.cpp: see telemetry.hpp.
#include "nic/telemetry.hpp"

#include <sys/stat.h>

#include <array>

#include "base/status.hpp"

namespace weft::nic {

const char* telemetry_name(Telemetry what) noexcept {
  switch (what) {
    case Telemetry::hrp_ack:
      return "HNI_HRP_ACK";
    case Telemetry::cpu_fetch_amo:
      return "IXE_DMAWR_CPU_FTCH_AMO_REQS";
    case Telemetry::flush:
      return "IXE_DMAWR_FLUSH_REQS";
    case Telemetry::restricted_pkt:
      return "IXE_RX_PTL_RESTRICTED_PKT";
    case Telemetry::unrestricted_pkt:
      return "IXE_RX_PTL_UNRESTRICTED_PKT";
    case Telemetry::entry_hit:
      return "LPE_PLEC_HITS";
    case Telemetry::success:
      return "LPE_SUCCESS_CNTR";
    case Telemetry::sent_tc0:
      break;
  }
  static constexpr std::array<const char*, kTclassCount> kSent = {"HNI_PKTS_SENT_BY_TC_0", "HNI_PKTS_SENT_BY_TC_1",
                                                                  "HNI_PKTS_SENT_BY_TC_2", "HNI_PKTS_SENT_BY_TC_3",
                                                                  "HNI_PKTS_SENT_BY_TC_4"};
  return kSent[word_of(what) - 1];
}

uint16_t TrafficRules::of(OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key, uint64_t flags,
                          bool waw) const noexcept {
  if (!on) return 0;
  uint16_t how = traffic::kCounted;
  const bool atomic = kind == OpKind::atomic;
  const bool plain = optimized(key) && !wants_events(key);
  if (plain) how |= traffic::kEntryHit;
  const bool unreliable = atomic && (flags & unreliable_flag) != 0;
  const bool restricted = atomic ? optimized(key) && unreliable : plain && (kind == OpKind::read || !waw);
  if (restricted) how |= traffic::kRestricted;
  if (kind != OpKind::read && (flags & flush_flags) != 0) how |= traffic::kFlush;
  if (atomic && (flags & pcie_flag) != 0) how |= traffic::kCpuAmo;
  if (restricted && (flags & hrp_flag) != 0 && kind != OpKind::read && (!atomic || family == AtomicFamily::base) &&
      !(atomic && hrp_without_uint32 && datatype == Datatype::uint32)) {
    how |= traffic::kHrp;
  }
  return how;
}

void TelemetryPage::add_target(uint16_t how, uint64_t bytes, bool counts) noexcept {
  const uint64_t packets = packets_of(bytes);
  add((how & traffic::kRestricted) != 0 ? Telemetry::restricted_pkt : Telemetry::unrestricted_pkt, packets);
  add(Telemetry::success, 1);
  if ((how & traffic::kEntryHit) != 0 && !counts) add(Telemetry::entry_hit, 1);
  if ((how & traffic::kFlush) != 0) add(Telemetry::flush, 1);
  if ((how & traffic::kCpuAmo) != 0) add(Telemetry::cpu_fetch_amo, 1);
}

TelemetryPage& TelemetryPages::of(uint32_t nic) {
  const std::lock_guard guard(mutex_);
  Held& held = pages_[nic];
  if (held.pages.empty()) {
    const UniqueFd fd = make_memfd("weft-telemetry", TelemetryPage::kBytes);
    held.pages.push_back(Mapping::shared(fd.get(), TelemetryPage::kBytes, true, "counts of a NIC"));
  }
  return *reinterpret_cast<TelemetryPage*>(held.pages.back().data());
}

void TelemetryPages::attach(uint32_t nic, int fd) {
  struct stat s{};
  if (::fstat(fd, &s) != 0 || static_cast<size_t>(s.st_size) < TelemetryPage::kBytes) {
    throw Error(fi_err::kEINVAL, "a page of counts is a file of 4096 bytes");
  }
  const std::lock_guard guard(mutex_);
  Held& held = pages_[nic];
  if (held.attached() && held.device == s.st_dev && held.file == s.st_ino) return;
  if (!held.attached() && !held.pages.empty()) {
    throw Error(fi_err::kEBUSY, "operations were counted for the NIC before its page was attached: attach it first");
  }
  held.pages.push_back(Mapping::shared(fd, TelemetryPage::kBytes, true, "counts of a NIC"));
  held.device = s.st_dev;
  held.file = s.st_ino;
}

}  // namespace weft::nic
