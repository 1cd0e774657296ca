// cpp/mem/monitor.cpp: makes a monitor by name.
#include "mem/monitor.hpp"

#include "base/status.hpp"

namespace weft::mem {

std::shared_ptr<Monitor> make_system_monitor(std::string_view name) {
  if (name == "disabled") return nullptr;
  if (name == "memhooks") return make_memhooks_monitor();
  if (name == "userfaultfd" || name == "uffd") return make_userfaultfd_monitor();
  if (name == "kdreg2") return make_kdreg2_monitor();
  if (name.empty()) {
    auto monitor = make_memhooks_monitor();
    std::string why;
    return monitor->available(&why) ? monitor : make_userfaultfd_monitor();
  }
  throw Error(fi_err::kEINVAL, "no memory monitor is called '" + std::string(name) +
                                   "': userfaultfd (uffd), memhooks, kdreg2 and disabled are known");
}

}  // namespace weft::mem
