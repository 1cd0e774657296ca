// cpp/bind/telemetry.cpp: the NICs' counts for operators as a Python type.
#include "nic/telemetry.hpp"

#include "bind/objects.hpp"

namespace weft::bind {

void register_telemetry(Class<PyNic>& nic) {
  nic.about("Returns the counts of a NIC: those of this process and of all processes that attached the same page.")
      .def<"telemetry(self, nic: int) -> dict[str, int]">([](PyNic& n, uint32_t number) {
        const nic::TelemetryPage& page = box_of(n)->host->nic().telemetry().of(number);
        nb::dict d;
        for (size_t i = 0; i < nic::kTelemetryCount; ++i) {
          const auto what = static_cast<nic::Telemetry>(i);
          d[nic::telemetry_name(what)] = page.total(what);
        }
        return d;
      })
      .about(
          "Stores the counts of a NIC in the first 4 KiB of this file from now on: a cache line of 8 words for\n"
          "initiators and one for targets, in the order of telemetry(); from byte 256 on, 30 blocks of two such\n"
          "lines, each of one writer. A count is the sum of its words. The NIC keeps a descriptor of the file, so\n"
          "the caller may close its own. Raises Busy if this process has already counted for the NIC without a file.")
      .def<"attach_telemetry(nic, fd)">(
          [](PyNic& n, uint32_t number, int fd) { box_of(n)->host->nic().telemetry().attach(number, fd); });
}

}  // namespace weft::bind
