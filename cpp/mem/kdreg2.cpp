// cpp/mem/kdreg2.cpp: the monitor for HPE's kernel module kdreg2, whose interface is not documented: always
// unavailable.
#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "base/fd.hpp"
#include "mem/monitor.hpp"

namespace weft::mem {

namespace {

constexpr const char* kDevice = "/dev/kdreg2";

class Kdreg2Monitor final : public Monitor {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "kdreg2"; }
  // Model: no document that Weft is built from describes the module's ioctl interface. So available() opens the device
  // to report whether it exists, and then refuses.
  [[nodiscard]] bool available(std::string* why) override {
    const UniqueFd fd(::open(kDevice, O_RDWR | O_CLOEXEC));
    if (!fd.valid()) {
      *why = std::string("cannot open ") + kDevice + ": " + std::strerror(errno) +
             (errno == ENOENT ? "; the kernel module kdreg2 of HPE systems is not loaded" : "");
    } else {
      *why = std::string(kDevice) + " exists, but Weft does not speak its protocol";
    }
    *why += "; set FI_MR_CACHE_MONITOR to memhooks or userfaultfd";
    return false;
  }
  bool subscribe(uint64_t, uint64_t, ChangeLog&, std::string* why) override { return available(why); }
  void unsubscribe(uint64_t, uint64_t, ChangeLog&) noexcept override {}
  [[nodiscard]] bool active() noexcept override { return false; }
};

}  // namespace

std::shared_ptr<Monitor> make_kdreg2_monitor() {
  return std::make_shared<Kdreg2Monitor>();
}

}  // namespace weft::mem
