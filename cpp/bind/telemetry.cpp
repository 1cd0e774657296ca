// cpp/bind/telemetry.cpp: the NICs' counts for operators as a Python type.
#include "nic/telemetry.hpp"

#include "bind/objects.hpp"

namespace weft::bind {

void register_telemetry(Module& m, Class<PyNic>& nic) {
  using nic::TrafficRules;
  Class<TrafficRules>(m, "TrafficRules",
                      "The provider's rules for how an endpoint's operations travel, used only for telemetry.\n"
                      "An endpoint without rules counts nothing.")
      .def("__init__",
           [](TrafficRules* self) {
             new (self) TrafficRules{};
             self->on = true;
           })
      .def_rw("optimized_below", &TrafficRules::optimized_below,
              "Client keys below this number belong to optimized regions.")
      .def_rw("provider_bit", &TrafficRules::provider_bit, "The bit that is set in keys made by the provider.")
      .def_rw("optimized_bit", &TrafficRules::optimized_bit,
              "The bit that is set in provider keys of optimized regions.")
      .def_rw("cached_bit", &TrafficRules::cached_bit,
              "The bit that is set in cached provider keys, whose regions have no events.")
      .def_rw("events_bit", &TrafficRules::events_bit,
              "The bit that is set in provider keys, other than cached ones, of regions with events.")
      .def_rw("client_events", &TrafficRules::client_events,
              "True: regions with client keys count as regions with events.")
      .def_rw("flush_flags", &TrafficRules::flush_flags, "Operation flags with which a write or an atomic flushes.")
      .def_rw("unreliable_flag", &TrafficRules::unreliable_flag)
      .def_rw("hrp_flag", &TrafficRules::hrp_flag, "The operation flag of High Rate Puts.")
      .def_rw("pcie_flag", &TrafficRules::pcie_flag, "The operation flag of atomics over PCIe.")
      .def_rw("hrp_without_uint32", &TrafficRules::hrp_without_uint32,
              "True: atomics of UINT32 are never sent as High Rate Puts.");
  nic.def(
         "telemetry",
         [](PyNic& n, uint32_t number) {
           const nic::TelemetryPage& page =
               translating([&]() -> nic::TelemetryPage& { return box_of(n)->host->nic().telemetry().of(number); });
           nb::dict d;
           for (size_t i = 0; i < nic::kTelemetryCount; ++i) {
             const auto what = static_cast<nic::Telemetry>(i);
             d[nic::telemetry_name(what)] = page.total(what);
           }
           return d;
         },
         nb::arg("nic"), nb::sig("def telemetry(self, nic: int) -> dict[str, int]"),
         "Returns the counts of a NIC: those of this process and of all processes that attached the same page.")
      .def(
          "attach_telemetry",
          [](PyNic& n, uint32_t number, int fd) {
            translating([&] { box_of(n)->host->nic().telemetry().attach(number, fd); });
          },
          nb::arg("nic"), nb::arg("fd"),
          "Stores the counts of a NIC in the first 4 KiB of this file from now on: a cache line of 8 words for\n"
          "initiators and one for targets, in the order of telemetry(); from byte 256 on, 30 blocks of two such\n"
          "lines, each of one writer. A count is the sum of its words. The NIC keeps a descriptor of the file, so\n"
          "the caller may close its own. Raises Busy if this process has already counted for the NIC without a file.");
}

}  // namespace weft::bind
