// cpp/bind/ofi_mr.cpp: memory regions of a real libfabric.
#include "bind/ofi.hpp"

namespace weft::bind {

PyTypeObject* g_ofi_mr_type = nullptr;

OfiMr::~OfiMr() {
  const Seam seam;
  const bool drops = ofi_may_drop(h);
  if (h.shut() == 0 && drops) return;
  (void)keep.release();  // the library, or the parent process, may still use the memory
  (void)buffer.release();
}

namespace {

// The buffers of a registration, and what keeps their memory.
struct Memory {
  std::vector<iovec> iov;
  nb::list keep;
  int iface = mem::kHmemSystem;
};

Memory memory_of(const nb::list& buffers, bool writable) {
  Memory found;
  for (const nb::handle one : buffers) {
    Buf b;
    if (!b.acquire(one.ptr(), writable)) throw nb::python_error();
    if (b.bare && b.length != 0 && b.iface == mem::kHmemSystem && !bare_is_there(b, "mr_reg", writable))
      throw nb::python_error();
    found.iov.push_back({b.data, b.length});
    found.iface = static_cast<int>(b.iface);
    found.keep.append(nb::steal(b.hold()));
  }
  return found;
}

// Fields that only a registration by attributes has.
struct MrMore {
  std::optional<int> iface;
  uint64_t device = 0;
  bool by_attr = false;
  const nb::bytes* auth_key = nullptr;
  std::optional<std::tuple<int, uint64_t, size_t, uint64_t>> dmabuf;  // fd, offset, len, base_addr
  std::shared_ptr<OfiMr> base;
};

int register_attr(OfiDomain& d, const Memory& memory, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
                  const MrMore& more, ofi::FidMr** fid) {
  const auto call = ofi::op(d.get()->mr, &ofi::MrOps::regattr);
  if (call == nullptr) return -fi_err::kENOSYS;
  ofi::MrAttr attr{};
  ofi::MrDmabuf dmabuf{};
  attr.iov = memory.iov.data();
  attr.iov_count = memory.iov.size();
  if (more.dmabuf) {
    const auto& [number, start, length, base] = *more.dmabuf;
    dmabuf = {number, start, length, reinterpret_cast<void*>(base)};
    attr.iov = reinterpret_cast<const iovec*>(&dmabuf);
    attr.iov_count = 1;
  }
  attr.access = access;
  attr.offset = offset;
  attr.requested_key = key;
  attr.iface = more.iface.value_or(memory.iface);
  attr.device = more.device;
  if (more.base != nullptr) attr.base_mr = more.base->get();
  if (more.auth_key != nullptr) {
    attr.auth_key = reinterpret_cast<uint8_t*>(const_cast<char*>(more.auth_key->c_str()));
    attr.auth_key_size = more.auth_key->size();
  }
  return call(d.h.fid, &attr, flags, fid);
}

void make_mr(OfiCore<OfiMr>* self, const OfiCore<OfiDomain>& domain, const nb::list& buffers, uint64_t access,
             uint64_t offset, uint64_t key, uint64_t flags, bool writable, std::optional<int> iface, uint64_t device,
             bool by_attr, const std::optional<nb::bytes>& auth_key,
             std::optional<std::tuple<int, uint64_t, size_t, uint64_t>> dmabuf, OfiCore<OfiMr>* base_mr) {
  OfiDomain& d = ofi_open(domain, "mr_reg");
  const Memory memory = memory_of(buffers, writable);
  if (memory.iov.empty() && !dmabuf) raise(fi_err::kEINVAL, "mr_reg: no buffer");
  if ((dmabuf || base_mr != nullptr) && d.quirks.has(ofi::Quirk::dmabufs_are_not_known))
    ofi_raise_missing("mr_regattr of a DMA-buf or a sub-MR");
  MrMore more{iface, device, by_attr, auth_key ? &*auth_key : nullptr, dmabuf, nullptr};
  if (base_mr != nullptr) {
    (void)ofi_open(*base_mr, "mr_regattr");
    more.base = base_mr->box;
  }
  ofi::FidMr* fid = nullptr;
  int r = 0;
  const ofi::MrOps* ops = d.get()->mr;
  {
    const size_t first = memory.iov.empty() ? 0 : memory.iov[0].iov_len;
    const OfiReleased released(&d.h, d.thread_safe && first >= kReleaseGilBytes);  // pins pages
    if (by_attr || iface || memory.iface != static_cast<int>(mem::kHmemSystem)) {
      r = register_attr(d, memory, access, offset, key, flags, more, &fid);
    } else if (memory.iov.size() == 1) {
      r = ofi_call(ops, &ofi::MrOps::reg, d.h.fid, memory.iov[0].iov_base, memory.iov[0].iov_len, access, offset, key,
                   flags, &fid, nullptr);
    } else {
      r = ofi_call(ops, &ofi::MrOps::regv, d.h.fid, memory.iov.data(), memory.iov.size(), access, offset, key, flags,
                   &fid, nullptr);
    }
  }
  ofi_check("mr_reg", r);
  auto box = std::make_shared<OfiMr>();
  box->domain = domain.box;
  box->h.fid = &fid->fid;
  box->keep = memory.keep;
  if (more.base != nullptr) box->h.bound.push_back(more.base);
  if (nb::len(buffers) == 1) box->buffer = nb::borrow(buffers[0]);
  new (self) OfiCore<OfiMr>{box};
}

void close_mr(OfiCore<OfiMr>& self) {
  const int r = self.box->h.shut();
  if (r < 0) ofi_raise("mr.close", r);
  const nb::object keep = std::move(self.box->keep), buffer = std::move(self.box->buffer);  // may run Python code
}

std::pair<uint64_t, nb::bytes> raw_attr(OfiCore<OfiMr>& self, uint64_t flags) {
  OfiMr& mr = ofi_open(self, "mr.raw_attr");
  std::vector<uint8_t> raw(4096);
  size_t size = raw.size();
  uint64_t base = 0;
  ofi::RawMr attr{flags, &base, raw.data(), &size};
  ofi_check("mr.raw_attr", mr.h.fid->ops->control(mr.h.fid, ofi::kGetRawMr, &attr));
  return std::pair(base, nb::bytes(reinterpret_cast<const char*>(raw.data()), std::min(size, raw.size())));
}

void refresh(OfiCore<OfiMr>& self, const nb::list& buffers, uint64_t flags) {
  OfiMr& mr = ofi_open(self, "mr.refresh");
  const Memory memory = memory_of(buffers, false);
  ofi::MrModify modify{};
  modify.flags = flags;
  modify.attr.iov = memory.iov.data();
  modify.attr.iov_count = memory.iov.size();
  ofi_check("mr.refresh", mr.h.fid->ops->control(mr.h.fid, ofi::kRefresh, &modify));
}

}  // namespace

void register_ofi_regions(Module& m) {
  Class<OfiCore<OfiMr>> mr(m, "OfiMemoryRegionCore", "A memory region of a real libfabric.");
  mr.about("True while an object that uses this one exists.").def_prop<"in_use">(&ofi_in_use<OfiMr>);
  mr.def<
        "__init__(self, domain: OfiDomainCore, buffers: list[Any], access: int, offset: int, requested_key: int, "
        "flags: int, writable: bool, iface: int | None = None, device: int = 0, by_attr: bool = False, auth_key: bytes "
        "| None = None, dmabuf: tuple[int, int, int, int] | None = None, base_mr: OfiMemoryRegionCore | None = None) "
        "-> None">(&make_mr)
      .def<"close_core">(&close_mr)
      .def<"bind_ep(ep, flags)">(&ofi_bound<"mr.bind", OfiMr, OfiEp>)
      .def<"bind_cntr(cntr, flags)">([](OfiCore<OfiMr>& self, const CounterCore& cntr, uint64_t flags) {
        (void)ofi_bind("mr.bind", self, ofi_counter(cntr, "mr.bind"), flags);
      })
      .def<"enable_core">([](OfiCore<OfiMr>& self) {
        OfiMr& one = ofi_open(self, "mr.enable");
        ofi_check("mr.enable", one.h.fid->ops->control(one.h.fid, ofi::kEnable, nullptr));
      })
      .def<"raw_attr_core(flags)">(&raw_attr)
      .def<"refresh_core(self, buffers: list[Any], flags: int) -> None">(&refresh)
      .about("The remote key (fi_mr_key); fi.KEY_NOTAVAIL before enable() under MR_PROV_KEY and MR_ENDPOINT.")
      .def_prop<"key">([](OfiCore<OfiMr>& self) { return ofi_open(self, "mr.key").get()->key; });
  g_ofi_mr_type = reinterpret_cast<PyTypeObject*>(mr.ptr());
}

}  // namespace weft::bind
