// cpp/bind/nic.cpp: the NIC and its allocations as Python types.
#include "bind/objects.hpp"
#include "mem/huge_pages.hpp"

namespace weft::bind {

std::shared_ptr<NicBox>& box_of(PyNic& nic) {
  if (!nic.box) raise(fi_err::kEOPBADSTATE, "the NIC is closed");
  if (nic.box->fork_generation != g_fork_generation) {
    raise(fi_err::kEOPBADSTATE, "this NIC belongs to the parent process: a forked child makes its own");
  }
  return nic.box;
}

namespace {

nb::dict described(const link::Peer& p, const link::Link& tcp) {
  nb::dict d;
  d["pid"] = p.process_id;
  d["same_process"] = p.same_process;
  d["peer"] = p.describe();
  d["path"] = p.link() == &tcp ? "tcp" : !p.table.valid() ? "frames" : p.cma ? "direct+cma" : "direct";
  d["dead"] = p.dead();
  d["cma_reason"] = p.cma_reason;
  return d;
}

struct Allocation {
  std::shared_ptr<NicBox> box;
  std::byte* address = nullptr;
  size_t nbytes = 0;
  ~Allocation() {
    if (box && box->fork_generation == g_fork_generation) box->host->nic().segments().free(address);
  }
};

int allocation_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* a = nb::inst_ptr<Allocation>(self);
  return PyBuffer_FillInfo(view, self, a->address, static_cast<Py_ssize_t>(a->nbytes), 0, flags);
}

PyType_Slot g_allocation_slots[] = {{Py_bf_getbuffer, slot<allocation_getbuffer>()}, {0, nullptr}};

}  // namespace

void register_nic(Module& m) {
  Class<Allocation> allocation(
      m, "Allocation", nb::type_slots(g_allocation_slots),
      "Memory in a segment that peers map and access by load and store: a writable buffer of bytes.\n"
      "The memory is freed with the last reference to this object.");
  allocation.about("Virtual address of the first byte.")
      .def_prop<"address">([](const Allocation& a) { return reinterpret_cast<uint64_t>(a.address); })
      .about("Length in bytes.")
      .def_prop<"nbytes">([](const Allocation& a) { return a.nbytes; });

  Class<PyNic> nic_class(m, "Nic", "The software NIC of this process: one engine, its links, its memory table.");
  nic_class
      .def(
          "__init__",
          [](PyNic* self, const std::string& engine, const std::string& isolation, bool cma, bool shm, bool tcp_log,
             uint32_t mr_count_max, const std::string& cache_monitor, uint64_t cache_count_max,
             uint64_t cache_bytes_max, const std::vector<uint32_t>& cache_off, bool viewers, const std::string& trace,
             uint64_t trace_records) {
            host::HostConfig config;
            config.cache_monitor = cache_monitor;
            config.cache = {cache_count_max, cache_bytes_max};
            if (engine != "thread" && engine != "manual") {
              raise(fi_err::kEINVAL, "engine is '", engine, "'; it must be thread or manual (WEFT_ENGINE)");
            }
            if (isolation != "shared" && isolation != "strict") {
              raise(fi_err::kEINVAL, "isolation is '", isolation, "'; it must be shared or strict (WEFT_ISOLATION)");
            }
            config.engine_thread = engine == "thread";
            config.shm.strict = isolation == "strict";
            config.shm.cma = cma;
            config.shm_link = shm;
            config.viewers = viewers;
            config.trace = trace;
            config.trace_records = trace_records;
            config.routes = routes();
            config.tcp.log = tcp_log;
            config.limits.mr_count_max = mr_count_max;
            new (self) PyNic{std::make_shared<NicBox>(config)};
            for (const uint32_t iface : cache_off) self->box->host->cache().set_enabled(iface, false);
          },
          nb::kw_only(), nb::arg("engine") = "thread", nb::arg("isolation") = "shared", nb::arg("cma") = true,
          nb::arg("shm") = true, nb::arg("tcp_log") = false, nb::arg("mr_count_max") = uint32_t{1} << 21,
          nb::arg("cache_monitor") = "", nb::arg("cache_count_max") = mem::kCacheCountDefault,
          nb::arg("cache_bytes_max") = mem::kUnlimited, nb::arg("cache_off") = std::vector<uint32_t>(),
          nb::arg("viewers") = true, nb::arg("trace") = "", nb::arg("trace_records") = uint64_t{1} << 18,
          "engine        thread: an engine thread serves peers; manual: only calls into the NIC serve them.\n"
          "isolation     shared: peers map our segments; strict: no memory is shared, and our engine makes every\n"
          "              access.\n"
          "cma           whether the NIC may use process_vm_readv and process_vm_writev.\n"
          "shm           whether the NIC reaches processes of this host through shared memory; otherwise through\n"
          "              tcp, like other hosts.\n"
          "tcp_log       write the reasons for rejected callers and lost connections to stderr.\n"
          "mr_count_max  the most regions at a time, a power of two.\n"
          "cache_*       the registration cache: the monitor of system memory (\"\": this machine's default), the\n"
          "              limits, and the interfaces whose memory is not cached.\n"
          "viewers       whether processes of this user may look at the NIC's state (snapshot()).\n"
          "trace         the folder for a file that the NIC records into, of trace_records records; \"\": none.")
      .def_prop<"engine">([](PyNic& n) { return box_of(n)->host->config().engine_thread ? "thread" : "manual"; })
      .def_prop<"isolation">([](PyNic& n) { return box_of(n)->host->config().shm.strict ? "strict" : "shared"; })
      .about(
          "Makes one round of progress: frames, connections, waiting operations. Returns the number of steps; 0\n"
          "also while another thread is in a round.")
      .def<"progress">([](PyNic& n) {
        auto box = box_of(n);
        const ReleasedGil released;
        return box->host->nic().progress();
      })
      .about(
          "Returns counts since the NIC was made: operations by path (direct, cma, framed), failed operations,\n"
          "bytes, frames served for peers, messages that this sender has helped to copy, and wake-ups of the\n"
          "engine; and the present numbers of peers, regions and allocated bytes.")
      .def<"statistics(self) -> dict[str, int]">([](PyNic& n) {
        const nic::NicStatistics s = box_of(n)->host->nic().statistics();
        nb::dict d;
        WEFT_PUT(d, s, direct_ops, cma_ops, framed_ops, helped_ops, failed_ops, bytes, frames_served, engine_wakes,
                 peers, regions, allocated_bytes, resting_bytes);
        return d;
      })
      .about("Returns the state of domains, endpoints, queues, counters and peers, as JSON: what `weft top` shows.")
      .def<"snapshot">([](PyNic& n) {
        auto box = box_of(n);
        const ReleasedGil released;
        return box->host->nic().snapshot();
      })
      .about(
          "Returns the address of the first page in [address, address + length) that is missing or not readable, or "
          "None.")
      .def<"missing_page(address, length)">([](PyNic& n, uint64_t address, uint64_t length) {
        auto box = box_of(n);
        const ReleasedGil released;
        return box->host->nic().missing_page(address, length);
      })
      .about(
          "Returns a dict for each process that this NIC is connected to: pid, path (direct+cma, direct, frames or\n"
          "tcp), dead, and the reason if cma is off.")
      .def<"peers(self) -> list[dict[str, object]]">([](PyNic& n) {
        nb::list out;
        for (link::Link* link : box_of(n)->host->nic().links()) {
          for (const auto& p : link->peers()) {
            out.append(described(*p, box_of(n)->host->tcp()));
          }
        }
        return out;
      })
      .about("Returns what peers() has of the process that operations of `ep` to `dest` reach; None: not connected.")
      .def<"peer_of(self, ep: EndpointCore, dest: int) -> dict[str, object] | None">(
          [](PyNic& n, EndpointCore& ep, uint64_t dest) -> nb::object {
            const auto box = box_of(n);
            const auto p = ep.ep->peer_of(dest);
            return p == nullptr ? nb::none() : nb::object(described(*p, box->host->tcp()));
          })
      .about(
          "Allocates memory that peers access by load and store. Raises FabricError (ENOMEM).\n\n"
          "address  where to place the memory, a multiple of the page size, if nothing is mapped there; with\n"
          "         `fixed` the memory replaces existing mappings.\n"
          "fresh    the memory reads as zero, and none of its pages is allocated yet. Otherwise it may hold bytes\n"
          "         of an earlier allocation.\n"
          "huge     all pages are allocated now, huge ones where the kernel has some; the bytes stay.\n"
          "follow   pages are allocated as they are touched; a thread makes huge pages of them.")
      .def<"alloc(nbytes, *, address=0, fixed=False, fresh=False, huge=False, follow=False)">(
          [](PyNic& n, size_t nbytes, uint64_t address, bool fixed, bool fresh, bool huge, bool follow) {
            auto box = box_of(n);
            mem::SegmentSet& segments = box->host->nic().segments();
            std::byte* p = nullptr;
            if (address != 0) p = segments.allocate_at(reinterpret_cast<std::byte*>(address), nbytes, fixed);
            if (p == nullptr && !fixed) p = segments.allocate(nbytes);
            if (p == nullptr) {
              char text[64];
              std::snprintf(text, sizeof(text),
                            "%llu B cannot be mapped at 0x%llx: ", static_cast<unsigned long long>(nbytes),
                            static_cast<unsigned long long>(address));
              raise(fi_err::kENOMEM, text, "the address is not one of this process, or memory of Weft is mapped there");
            }
            if (fresh) segments.discard(p);
            if (huge) {
              const ReleasedGil released;
              (void)mem::use_huge_pages(reinterpret_cast<uint64_t>(p), nbytes);  // a refusal leaves small pages
            }
            if (follow) {
              const ReleasedGil released;
              try {
                segments.follow(p);
              } catch (const std::exception&) {  // no thread: small pages
              }
            }
            auto a = std::make_unique<Allocation>();
            a->box = box;
            a->address = p;
            a->nbytes = nbytes;
            return a;
          })
      .about(
          "Puts the pages at `source`, memory of a peer that is mapped here, in the place of a whole allocation of\n"
          "alloc(): the addresses stay, and until they are freed peers do not map them. False: the addresses are no\n"
          "such allocation, or the kernel refused.")
      .def<"overlay(address, nbytes, source)">([](PyNic& n, uint64_t address, uint64_t nbytes, uint64_t source) {
        bool done = false;
        done = box_of(n)->host->nic().segments().overlay(reinterpret_cast<std::byte*>(address), nbytes,
                                                         reinterpret_cast<std::byte*>(source));
        return done;
      })
      .about("Returns (address, length) of an open region's buffer that overlaps these addresses, or None.")
      .def<"region_in(address, nbytes)">(
          [](PyNic& n, uint64_t address, uint64_t nbytes) -> std::optional<std::pair<uint64_t, uint64_t>> {
            for (const DomainBox* domain : box_of(n)->domains) {
              for (const MemoryRegionCore* r = domain->regions; r != nullptr; r = r->next) {
                if (r->region->closed()) continue;
                for (const mem::MrBuffer& b : r->region->buffers()) {
                  if (b.local_addr < address + nbytes && address < b.local_addr + b.length)
                    return std::pair(b.local_addr, b.length);
                }
              }
            }
            return std::nullopt;
          })
      .about("Stops the engine. Objects made on the NIC keep their memory until they are closed.")
      .def<"close">([](PyNic& n) {
        if (!n.box) return;
        if (n.box->fork_generation == g_fork_generation) {
          const ReleasedGil released;
          n.box->host->nic().stop_engine();
        }
        n.box.reset();
      });

  register_hmem(nic_class);
  register_telemetry(nic_class);
  register_tcp(m, nic_class);
}

}  // namespace weft::bind
