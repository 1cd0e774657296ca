// cpp/bind/hmem.cpp: the NIC's methods for device memory.
#include "bind/objects.hpp"

namespace weft::bind {

static mem::DeviceRuntime& runtime_of(PyNic& n, uint32_t iface) {
  mem::DeviceRuntime* const found = box_of(n)->host->nic().devices().runtime(iface);
  if (found == nullptr) raise(fi_err::kENOSYS, "that interface's runtime is not loaded");
  return *found;
}

void register_hmem(Class<PyNic>& nic) {
  nic.about(
         "Loads the runtime of a device interface (1 CUDA, 2 ROCR, 3 ZE). Returns None, or the reason why the runtime "
         "cannot "
         "be used.")
      .def<"hmem_load(iface, library)">(
          [](PyNic& n, uint32_t iface, const std::string& library) -> std::optional<std::string> {
            mem::Devices& devices = box_of(n)->host->nic().devices();
            if (devices.runtime(iface) != nullptr) return std::nullopt;
            std::string why;
            std::unique_ptr<mem::DeviceRuntime> runtime;
            {
              const ReleasedGil released;
              if (iface == 1) runtime = mem::load_cuda(library, &why);
              if (iface == 2) runtime = mem::load_rocr(library, &why);
              if (iface == 3) runtime = mem::load_ze(library, &why);
            }
            if (!runtime) return why.empty() ? "this release has no data path to that interface" : why;
            devices.add(std::move(runtime));
            if (mem::RegistrationCache* cache = box_of(n)->host->nic().cache()) {
              cache->set_monitor(iface, mem::make_device_monitor(devices, iface));
            }
            return std::nullopt;
          })
      .about("The number of devices of an interface; None if its runtime is not loaded.")
      .def<"hmem_devices(iface)">([](PyNic& n, uint32_t iface) -> std::optional<uint64_t> {
        mem::DeviceRuntime* r = box_of(n)->host->nic().devices().runtime(iface);
        return r == nullptr ? std::nullopt : std::optional(r->device_count());
      })
      .about(
          "Returns (iface, kind, device, base, length) of the allocation that contains the address; None if the\n"
          "loaded runtimes do not know the address. kind: device, managed or host.")
      .def<"hmem_find(address)">(
          [](PyNic& n,
             uint64_t address) -> std::optional<std::tuple<uint32_t, std::string, uint64_t, uint64_t, uint64_t>> {
            const auto found = box_of(n)->host->nic().devices().find(address);
            if (!found) return std::nullopt;
            constexpr const char* kKinds[] = {"device", "managed", "host"};
            return std::tuple(found->iface, kKinds[static_cast<int>(found->kind)], found->device, found->base,
                              found->length);
          })
      .about("Copies bytes; the source and the destination may be device memory.")
      .def<"hmem_copy(to, from_, length)">([](PyNic& n, uint64_t to, uint64_t from, uint64_t length) {
        auto box = box_of(n);
        Status status;
        {
          const ReleasedGil released;
          const mem::Devices& devices = box->host->nic().devices();
          status = devices.copy({reinterpret_cast<void*>(to), devices.find(to).has_value()},
                                {reinterpret_cast<void*>(from), devices.find(from).has_value()}, length);
        }
        if (status != Status::ok) raise(fi_errno(status), "the device's runtime could not copy");
      })
      .about(
          "Declares that device memory is also mapped at `at`: short copies are loads and stores there (see "
          "hmem_near()).")
      .def<"hmem_window(base, length, at)">([](PyNic& n, uint64_t base, uint64_t length, uint64_t at) {
        mem::Devices& devices = box_of(n)->host->nic().devices();
        const auto found = devices.find(base);
        if (!found) raise(fi_err::kEINVAL, "no device memory there");
        devices.add_window(base, length, reinterpret_cast<std::byte*>(at), found->buffer_id);
      })
      .about("Ends a window of hmem_window(); the caller may unmap it afterwards. False if there is none.")
      .def<"hmem_no_window(base, at)">([](PyNic& n, uint64_t base, uint64_t at) {
        const ReleasedGil released;  // waits for copies through it
        return box_of(n)->host->nic().devices().remove_window(base, reinterpret_cast<std::byte*>(at));
      })
      .about(
          "Sets the length in bytes of the longest copy through a window, if given. Returns the number of such copies "
          "so far.")
      .def<"hmem_near(most=None)">([](PyNic& n, std::optional<uint64_t> most) {
        mem::Devices& devices = box_of(n)->host->nic().devices();
        if (most) devices.set_near_bytes(*most);
        return devices.near_copies();
      })
      .about("True: peers open each other's device memory; False: the owner copies (FI_HMEM_DISABLE_P2P).")
      .def<"hmem_p2p(on)">([](PyNic& n, bool on) { box_of(n)->host->nic().devices().set_p2p(on); })
      .about(
          "Allocates memory on the first device and returns its address; free it with hmem_free().\n"
          "Raises FabricError (ENOMEM, ENOSYS).")
      .def<"hmem_alloc(iface, nbytes, managed=False)">([](PyNic& n, uint32_t iface, uint64_t nbytes, bool managed) {
        mem::DeviceRuntime& r = runtime_of(n, iface);
        std::string why;
        const uint64_t address = r.allocate(nbytes, managed, &why);
        if (address == 0) {
          raise(fi_err::kENOMEM, nbytes, " B of device memory cannot be allocated: ", why);
        }
        return address;
      })
      .def<"hmem_free(iface, address)">([](PyNic& n, uint32_t iface, uint64_t address) {
        if (mem::DeviceRuntime* r = box_of(n)->host->nic().devices().runtime(iface)) r->release(address);
      })
      .about("Returns a DMA-buf descriptor of device memory; the caller closes the descriptor.")
      .def<"hmem_dmabuf(iface, address, length)">([](PyNic& n, uint32_t iface, uint64_t address, uint64_t length) {
        mem::DeviceRuntime& r = runtime_of(n, iface);
        std::string why;
        const int fd = r.export_dmabuf(address, length, &why);
        if (fd < 0) raise(fi_err::kEOPNOTSUPP, "no DMA-buf of this memory: ", why);
        return fd;
      });
}

}  // namespace weft::bind
