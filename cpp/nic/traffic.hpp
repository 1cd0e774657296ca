// cpp/nic/traffic.hpp: one endpoint's traffic as the devices of its fabric count it, and whether their links are up.
// Callers hold the domain's lock.
#pragma once

#include <cstdint>

#include "nic/aliases.hpp"
#include "nic/order.hpp"
#include "nic/route.hpp"
#include "nic/telemetry.hpp"

namespace weft::nic {

class Domain;

class Traffic {
 public:
  Traffic(const TrafficRules& rules, const Aliases& aliases) noexcept : rules_(rules), aliases_(aliases) {}

  // The endpoint has got its address, at this NIC. Throws std::bad_alloc.
  void begin(Domain& domain, uint32_t nic);
  [[nodiscard]] bool counted() const noexcept { return counts_ != nullptr; }

  // HOT. True: loads and stores may reach the peer. False: a link is down, or the peer's counts are not known yet.
  [[nodiscard]] bool flows(const Route& route) const noexcept {
    return counts_ == nullptr || (!counts_->link_down() && route.telemetry != nullptr && !route.telemetry->link_down());
  }
  // True if the link of the endpoint's NIC or of the peer's NIC is down. is_down() finds the peer's counts first.
  [[nodiscard]] bool is_down(Route& route) noexcept {
    if (counts_ == nullptr) return false;
    find_counts(route);
    return is_cut_off(route);
  }
  [[nodiscard]] bool is_cut_off(const Route& route) const noexcept {
    return counts_ != nullptr && (counts_->link_down() || (route.telemetry != nullptr && route.telemetry->link_down()));
  }
  // How an operation travels, as traffic bits.
  [[nodiscard]] uint16_t how(OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key,
                             uint64_t flags) const noexcept {
    const bool waw = (aliases_.of(flags).msg_order & (order::kWaw | order::kRmaWaw)) != 0;
    return rules_.of(kind, family, datatype, key, flags, waw);
  }

  // Counts an operation that reached its region. event: a counter of the target counts it; framed: so does its NIC.
  void count(Route& route, OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key, uint64_t flags,
             uint64_t bytes, bool event, bool framed) noexcept {
    if (counts_ != nullptr) count_known(route, how(kind, family, datatype, key, flags), flags, bytes, event, framed);
  }
  void count_message(uint64_t flags, uint64_t bytes) noexcept {
    if (counts_ != nullptr) counts_->add_sent(aliases_.of(flags).tclass, packets_of(bytes));
  }

 private:
  void count_known(Route& route, uint16_t how, uint64_t flags, uint64_t bytes, bool event, bool framed) noexcept;
  bool find_counts(Route& route) noexcept;  // sets route.telemetry; false: out of memory

  TelemetryWriter* counts_ = nullptr;  // the domain's counts for this NIC; null: not counted
  const TrafficRules rules_;
  const Aliases& aliases_;
};

}  // namespace weft::nic
