// cpp/bind/message_config.cpp: what the settings of messages have besides their fields.
#include "bind/objects.hpp"
#include "bind/tables.hpp"
#include "nic/config.hpp"

namespace weft::bind {

void register_message_config(Module& m) {
  register_table<nic::RxModeConfig>(m);
  register_table<nic::MessageConfig>(m)
      .about(
          "The list entries of a service: a kind of resource in the ledger, for the process with this slot. The slot\n"
          "must be open until the endpoint is closed; the ledger is kept until the process ends.")
      .def<"set_entries(ledger, slot, kind)">(
          [](nic::MessageConfig& c, nb::handle_t<mem::Ledger> ledger, uint32_t slot, uint32_t kind) {
            if (slot >= mem::Ledger::kSlotsMax || kind >= mem::Ledger::kKinds)
              raise(fi_err::kEINVAL, "MessageConfig: no such slot or kind");
            // An endpoint that is never closed uses the ledger until the process ends, so the ledger lives as long.
            ledger.inc_ref();
            c.match.entries = {nb::cast<mem::Ledger*>(ledger), slot, kind};
          });
}

}  // namespace weft::bind
