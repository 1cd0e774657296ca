// cpp/bind/telemetry.cpp: the NICs' counts for operators as a Python type.
#include "nic/telemetry.hpp"

#include "bind/objects.hpp"

namespace weft::bind {

void register_telemetry(nb::module_& m, nb::class_<PyNic>& nic) {
  using nic::TrafficRules;
  nb::class_<TrafficRules>(m, "TrafficRules",
                           "How operations of an endpoint travel, for the NICs' telemetry alone. Made, it is on; an "
                           "endpoint without it counts nothing.")
      .def("__init__",
           [](TrafficRules* self) {
             new (self) TrafficRules{};
             self->on = true;
           })
      .def_rw("optimized_below", &TrafficRules::optimized_below, "Client keys below it are of optimized regions.")
      .def_rw("provider_bit", &TrafficRules::provider_bit, "The bit of keys that the provider made.")
      .def_rw("optimized_bit", &TrafficRules::optimized_bit, "Of those, the bit of optimized regions.")
      .def_rw("cached_bit", &TrafficRules::cached_bit, "Of those, the bit of cached keys, which want no events.")
      .def_rw("events_bit", &TrafficRules::events_bit, "Of the others, the bit of regions that want events.")
      .def_rw("client_events", &TrafficRules::client_events, "Regions of client keys are taken to want events.")
      .def_rw("flush_flags", &TrafficRules::flush_flags, "Flags with which a write or an atomic flushes.")
      .def_rw("unreliable_flag", &TrafficRules::unreliable_flag)
      .def_rw("hrp_flag", &TrafficRules::hrp_flag, "High Rate Put.")
      .def_rw("pcie_flag", &TrafficRules::pcie_flag, "Atomics over PCIe.")
      .def_rw("hrp_without_uint32", &TrafficRules::hrp_without_uint32, "Atomics of UINT32 are no High Rate Puts.");
  nic.def(
         "telemetry",
         [](PyNic& n, uint32_t number) {
           const nic::TelemetryPage& page =
               translating([&]() -> nic::TelemetryPage& { return box_of(n)->host->nic().telemetry().of(number); });
           nb::dict d;
           for (size_t i = 0; i < nic::kTelemetryCount; ++i) {
             const auto what = static_cast<nic::Telemetry>(i);
             d[nic::telemetry_name(what)] = page.word(what).load(std::memory_order_relaxed);
           }
           return d;
         },
         nb::arg("nic"), nb::sig("def telemetry(self, nic: int) -> dict[str, int]"),
         "What was counted for a NIC, by this process, and by all that attached the same page.")
      .def(
          "attach_telemetry",
          [](PyNic& n, uint32_t number, int fd) {
            translating([&] { box_of(n)->host->nic().telemetry().attach(number, fd); });
          },
          nb::arg("nic"), nb::arg("fd"),
          "From now on the counts of a NIC are in the first 4 KiB of this file, which may be closed then: a line of 8\n"
          "words for initiators and one for targets, in the order of telemetry(). Raises Busy where the NIC was "
          "counted\n"
          "for without a file before.");
}

}  // namespace weft::bind
