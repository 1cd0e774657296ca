// cpp/bind/ofi_ep.cpp: endpoints of a real libfabric as Python objects; the table of their data-path methods.
#include "bind/ofi_ep.hpp"

#include "bind/signatures.hpp"
#include "bind/wait.hpp"

namespace weft::bind {

namespace {

#define WEFT_THROUGH(name, more) \
  {#name, method<ofi_##name>(), kFast, "As fi.Endpoint." #name "," more " through the library (fi_" #name ")."},
#define WEFT_CALL(name, params, doc) WEFT_THROUGH(name, "")
#define WEFT_BATCH(...)
#define WEFT_COLLECTIVE(name, kind, params, doc) WEFT_THROUGH(name, WEFT_ANY_##kind)
#define WEFT_ANY_barrier ""
#define WEFT_ANY_broadcast " of more than 32 bytes too,"
#define WEFT_ANY_reduce WEFT_ANY_broadcast
#define WEFT_ANY_allreduce WEFT_ANY_broadcast

PyMethodDef g_methods[] = {
#include "bind/calls.inl"
    {nullptr, nullptr, 0, nullptr}};

using Core = OfiCore<OfiEp>;

constexpr int kEpMsg = 1;  // FI_EP_MSG

void make_ep(Core* self, const OfiCore<OfiDomain>& domain, const OfiInfo& info) {
  OfiDomain& d = ofi_open(domain, "endpoint");
  ofi::FidEp* fid = nullptr;
  ofi_run("endpoint", d, &ofi::DomainOps::endpoint, info.info, &fid, nullptr);
  auto box = std::make_shared<OfiEp>();
  box->domain = domain.box;
  box->h.fid = &fid->fid;
  if (info.info->tx != nullptr) {
    box->tx_flags = info.info->tx->op_flags;
    box->inject_size = info.info->tx->inject_size;
    box->iov_limit = std::max<size_t>(info.info->tx->iov_limit, 1);
    box->rma_iov_limit = std::max<size_t>(info.info->tx->rma_iov_limit, 1);
  }
  box->mr_local = domain.box->mr_local;
  box->triggers = (info.info->caps & kOfiTrigger) != 0;
  box->connected = info.info->ep != nullptr && info.info->ep->type == kEpMsg;
  if (d.soft_groups() && info.info->ep != nullptr && (info.info->caps & flag::kCollective) != 0) {
    const auto bits = static_cast<int>(std::bit_width(info.info->ep->mem_tag_format));
    box->reserved_tag = bits == 0 || bits == 64 ? 0 : ~uint64_t{0} << bits;
  }
  if (info.info->rx != nullptr) {
    box->rx_flags = info.info->rx->op_flags;
    box->rx_iov_limit = std::max<size_t>(info.info->rx->iov_limit, 1);
  }
  new (self) Core{box};
}

// A table of the library that has every call; otherwise null.
template <typename Ops>
const Ops* whole(const Ops* ops) {
  if (ops == nullptr || ops->size < sizeof(Ops)) return nullptr;
  const auto* calls = reinterpret_cast<const void* const*>(ops) + 1;
  return std::count(calls, calls + sizeof(Ops) / sizeof(void*) - 1, nullptr) == 0 ? ops : nullptr;
}

// flags: of operations, and FI_TRANSMIT or FI_RECV, the side that has them from now on.
void put_op_flags(OfiEp& ep, uint64_t flags) {
  const uint64_t own = flags & ~(kOfiTransmit | flag::kRecv);
  if (flags & kOfiTransmit) ep.tx_flags = own;
  if (flags & flag::kRecv) ep.rx_flags = own;
}

// Finds out which calls of an enabled endpoint are plain.
void settle(OfiEp& ep) {
  ep.msg = whole(ep.get()->msg);
  ep.rma = whole(ep.get()->rma);
  ep.tagged = ep.reserved_tag == 0 ? whole(ep.get()->tagged) : nullptr;
  ep.plain_tx = ep.tx && (ep.selective & kOfiTransmit) == 0 && (ep.tx_flags & flag::kInject) == 0;
  ep.plain_rx = ep.rx && (ep.selective & flag::kRecv) == 0 &&
                (ep.rx_flags & (flag::kMultiRecv | flag::kPeek | flag::kClaim)) == 0;
}

// Copies what an alias shares with its original.
void follow(OfiEp& alias, const OfiEp& ep) {
  alias.tx = ep.tx;
  alias.rx = ep.rx;
  alias.av = ep.av;
  alias.selective = ep.selective;
  alias.enabled = ep.enabled;
  if (alias.enabled) settle(alias);
}

// After a change of an endpoint: its aliases follow.
void tell_aliases(OfiEp& ep) {
  std::erase_if(ep.aliases, [&](const std::weak_ptr<OfiEp>& one) {
    const std::shared_ptr<OfiEp> alias = one.lock();
    if (alias != nullptr) follow(*alias, ep);
    return alias == nullptr;
  });
}

// An alias of an endpoint (fi_ep_alias): the library's, with operation flags of its own for the side that `flags` name.
void make_alias(Core* self, Core& original, uint64_t flags) {
  OfiEp& ep = ofi_open(original, "ep.alias");
  ofi::Fid* fid = nullptr;
  ofi::Alias alias{&fid, flags};
  ofi_check("ep.alias", ep.h.fid->ops->control(ep.h.fid, ofi::kAlias, &alias));
  if (fid == nullptr) ofi_raise_missing("ep.alias");  // a provider that says yes to every command
  auto box = std::make_shared<OfiEp>();
  box->domain = ep.domain;
  box->h.fid = fid;
  box->owner = &ep;
  box->h.bound.push_back(original.box);
  box->iov_limit = ep.iov_limit;
  box->rma_iov_limit = ep.rma_iov_limit;
  box->rx_iov_limit = ep.rx_iov_limit;
  box->inject_size = ep.inject_size;
  box->mr_local = ep.mr_local;
  box->triggers = ep.triggers;
  box->connected = ep.connected;
  box->reserved_tag = ep.reserved_tag;
  box->tx_flags = ep.tx_flags;
  box->rx_flags = ep.rx_flags;
  put_op_flags(*box, flags);
  follow(*box, ep);
  ep.aliases.push_back(box);
  new (self) Core{box};
}

uint64_t get_ops_flags(Core& self, uint64_t side) {
  OfiEp& ep = ofi_open(self, "ep.control(GETOPSFLAG)");
  uint64_t flags = side;
  ofi_check("ep.control(GETOPSFLAG)", ep.h.fid->ops->control(ep.h.fid, ofi::kGetOpsFlag, &flags));
  return flags & ~side;
}

void set_ops_flags(Core& self, uint64_t flags) {
  OfiEp& ep = ofi_open(self, "ep.control(SETOPSFLAG)");
  uint64_t asked = flags;
  ofi_check("ep.control(SETOPSFLAG)", ep.h.fid->ops->control(ep.h.fid, ofi::kSetOpsFlag, &asked));
  put_op_flags(ep, flags);
  if (ep.enabled) settle(ep);
}

// For objects that must not be used before enable(). A connected endpoint's queues are read while it waits
// for its connection.
template <typename T>
OfiEp& bind_progress(const Core& self, const std::shared_ptr<T>& other, uint64_t flags) {
  OfiEp& ep = ofi_bind("ep.bind", self, other, flags);
  if (ep.enabled || ep.connected) return ep;
  ep.unready.emplace_back(other, &other->h);
  ++other->h.unready;
  return ep;
}

// The library reports every operation, also where the application wants selected ones: an entry tells when the buffers
// of an operation are free. read() leaves out entries that the application does not want.
void bind_cq(Core& self, const CompletionQueueCore& cq, uint64_t flags) {
  if (!cq.lib) raise(fi_err::kEINVAL, "ep.bind: the queue is of Weft's NIC");
  OfiEp& ep = bind_progress(self, cq.lib, flags & ~flag::kSelectiveCompletion);
  if (flags & kOfiTransmit) ep.tx = cq.lib;
  if (flags & flag::kRecv) ep.rx = cq.lib;
  if (flags & flag::kSelectiveCompletion) ep.selective |= flags & (kOfiTransmit | flag::kRecv);
  if (ep.enabled) settle(ep);
  tell_aliases(ep);
}

nb::object name_of(Core& self, bool peer) {
  const char* const name = peer ? "ep.getpeer" : "ep.getname";
  OfiEp& ep = ofi_open(self, name);
  return ofi_address_by(ep.domain->text_addresses, [&](void* room, size_t* length) {
    const ofi::CmOps* cm = ep.get()->cm;
    ofi_check(name, peer ? ofi_call(cm, &ofi::CmOps::getpeer, ep.get(), room, length)
                         : ofi_call(cm, &ofi::CmOps::getname, ep.h.fid, room, length));
  });
}

void set_name(Core& self, const nb::bytes& address) {
  OfiEp& ep = ofi_open(self, "ep.setname");
  std::string bytes = ofi_address_bytes(address, ep.domain->text_addresses);
  ofi_run("ep.setname", ep.get()->cm, &ofi::CmOps::setname, ep.h.fid, bytes.data(), bytes.size());
}

void connect(Core& self, const nb::bytes& address, const nb::bytes& param) {
  OfiEp& ep = ofi_open(self, "ep.connect");
  const std::string bytes = ofi_address_bytes(address, ep.domain->text_addresses);
  ofi_run("ep.connect", ep.get()->cm, &ofi::CmOps::connect, ep.get(), bytes.data(), param.c_str(), param.size());
}
void accept(Core& self, const nb::bytes& param) {
  OfiEp& ep = ofi_open(self, "ep.accept");
  ofi_run("ep.accept", ep.get()->cm, &ofi::CmOps::accept, ep.get(), param.c_str(), param.size());
}
void shutdown(Core& self, uint64_t flags) {
  OfiEp& ep = ofi_open(self, "ep.shutdown");
  ofi_run("ep.shutdown", ep.get()->cm, &ofi::CmOps::shutdown, ep.get(), flags);
}

uint64_t get_option(Core& self, int level, int name) {
  OfiEp& ep = ofi_open(self, "ep.getopt");
  alignas(8) std::array<std::byte, 64> room{};
  size_t length = sizeof(uint64_t);
  ofi_run("ep.getopt", ep.get()->ops, &ofi::EpOps::getopt, ep.h.fid, level, name, room.data(), &length);
  uint64_t value = 0;
  std::memcpy(&value, room.data(), std::min(length, sizeof value));
  return value;
}
void set_option(Core& self, int level, int name, uint64_t value, size_t size) {
  OfiEp& ep = ofi_open(self, "ep.setopt");
  ofi_run("ep.setopt", ep.get()->ops, &ofi::EpOps::setopt, ep.h.fid, level, name, &value, std::min(size, sizeof value));
}

// The oldest receive with the context, and every transfer with it: the operations that the library can cancel.
void cancel(Core& self, nb::handle context) {
  OfiEp& ep = ofi_open(self, "ep.cancel");
  const auto call = ofi::op(ep.get()->ops, &ofi::EpOps::cancel);
  if (call == nullptr) ofi_raise_missing("ep.cancel");
  const auto wanted = reinterpret_cast<uint64_t>(context.is_none() ? nullptr : context.ptr());
  std::vector<ofi::Slot*> found;
  const auto look = [&](const ofi::Slots& slots) {
    slots.each([&](ofi::Slot* slot) {
      if (slot->endpoint == ep.owner && slot->context == wanted) found.push_back(slot);
    });
  };
  if (ep.rx) look(ep.rx->slots);
  if (ep.tx && ep.tx != ep.rx) look(ep.tx->slots);
  std::sort(found.begin(), found.end(), [](const auto* a, const auto* b) { return a->sequence < b->sequence; });
  bool received = false, done = false;
  ssize_t refused = 0;
  for (ofi::Slot* slot : found) {
    if (slot->receives && received) continue;
    const ssize_t r = call(ep.h.fid, slot);
    done = done || r == 0;
    received = received || (slot->receives && r == 0);
    if (r < 0) refused = r;
  }
  if (done) return;
  if (refused != 0 && refused != -2) ofi_raise("ep.cancel", refused);  // FI_ENOENT
  raise(2 /* FI_ENOENT */, "ep.cancel: no operation with this context that the library can still cancel");
}

size_t valid(Core& self, int datatype, int op, int family) {
  OfiEp& ep = ofi_open(self, "ep.atomicvalid");
  size_t count = 0;
  ofi_run("ep.atomicvalid", ep.get()->atomic,
          family == 0   ? &ofi::AtomicOps::writevalid
          : family == 1 ? &ofi::AtomicOps::readwritevalid
                        : &ofi::AtomicOps::compwritevalid,
          ep.get(), datatype, op, &count);
  return count;
}

}  // namespace

// Binds a vector to an endpoint that has none, for its close().
static std::shared_ptr<OfiAv> any_vector(const OfiEp& ep) noexcept {
  const auto open = ep.domain->h.fid == nullptr ? nullptr : ofi::op(ep.domain->get()->ops, &ofi::DomainOps::av_open);
  if (open == nullptr) return nullptr;
  ofi::AvAttr attr{};
  ofi::FidAv* fid = nullptr;
  if (open(ep.domain->get(), &attr, &fid, nullptr) != 0) return nullptr;
  auto made = std::make_shared<OfiAv>();
  made->domain = ep.domain;
  made->h.fid = &fid->fid;
  (void)ep.h.fid->ops->bind(ep.h.fid, made->h.fid, 0);
  return made;
}

// Operations that are under way end with the endpoint. The library may still report them, so their slots stay until the
// queue is closed or reports them; but it no longer uses their buffers.
void OfiEp::release_unready() noexcept {
  for (const auto& handle : unready) --handle->unready;
  unready.clear();
}

int OfiEp::shut() noexcept {
  if (owner != this) return h.shut();  // its operations go on: they are the original's
  const bool drops = ofi_may_drop(h), was_open = h.fid != nullptr;
  std::shared_ptr<OfiAv> vector;
  if (was_open && drops && !av && !connected && domain->quirks.has(ofi::Quirk::close_without_vector_crashes))
    vector = any_vector(*this);
  // Another endpoint may be connecting to this one: the library takes the request, and then lets go of it.
  if (was_open && drops && enabled && !connected && domain->quirks.has(ofi::Quirk::close_during_connect_crashes)) {
    for (OfiCq* cq : {tx.get(), rx.get()}) {
      if (cq != nullptr) ofi_progress(*cq);
    }
  }
  const auto kept = h.bound;  // freed last
  const int r = h.shut();
  if (r < 0 || !was_open || !drops) return r;
  release_unready();
  std::vector<uint64_t> owners;
  for (OfiCq* cq : {tx.get(), rx.get()}) {
    if (cq == nullptr) continue;
    cq->slots.each([&](ofi::Slot* slot) {
      if (slot->endpoint != this) return;
      slot->endpoint = nullptr;
      slot->take_owners().each([&](uint64_t one) { owners.push_back(one); });
    });
  }
  left.clear();
  for (const uint64_t one : owners) ofi_drop(one);  // last: dropping may run Python code
  ofi_drop_all(own);
  av.reset();
  return 0;
}

OfiEp::~OfiEp() {
  const Seam seam;
  (void)shut();
}

PyType_Slot g_ofi_ep_slots[] = {{Py_tp_methods, with_signatures("OfiEndpointCore", g_methods)}, {0, nullptr}};

void register_ofi_endpoint(Module& m) {
  Class<Core>(m, "OfiEndpointCore", nb::type_slots(g_ofi_ep_slots), "An endpoint of a real libfabric: its data path.")
      .def<"__init__(domain, info)">(&make_ep)
      .def<"__init__(original, flags)">(&make_alias)
      .def<"close_core">(&ofi_close<"ep.close", OfiEp>)
      .def<"getopsflag_core(side)">(&get_ops_flags)
      .def<"setopsflag_core(flags)">(&set_ops_flags)
      .about("True while an object that uses this one exists.")
      .def_prop<"in_use">(&ofi_in_use<OfiEp>)
      .def_prop<"fid">([](const Core& self) { return reinterpret_cast<uint64_t>(self.box->h.fid); })
      .def<"bind_cq(cq, flags)">(&bind_cq)
      .def<"bind_cntr(cntr, flags)">([](Core& self, const CounterCore& cntr, uint64_t flags) {
        bind_progress(self, ofi_counter(cntr, "ep.bind"), flags);
      })
      .def<"bind_av(av, flags)">([](Core& self, OfiCore<OfiAv>& av, uint64_t flags) {
        OfiEp& ep = bind_progress(self, av.box, flags);
        ep.av = av.box;
        tell_aliases(ep);
      })
      .def<"bind_eq(eq, flags)">(&ofi_bound<"ep.bind", OfiEp, OfiEq>)
      .def<"enable_core">([](Core& self) {
        OfiEp& ep = ofi_open(self, "ep.enable");
        if (ep.enabled) return;  // another thread was first
        ofi_check("ep.enable", ep.h.fid->ops->control(ep.h.fid, ofi::kEnable, nullptr));
        ep.enabled = true;
        ep.release_unready();
        settle(ep);
        tell_aliases(ep);
      })
      .def<"getname_core(self) -> bytes | str">([](Core& self) { return name_of(self, false); })
      .def<"getpeer_core(self) -> bytes | str">([](Core& self) { return name_of(self, true); })
      .def<"setname_core(address)">(&set_name)
      .def<"connect_core(address, param)">(&connect)
      .def<"accept_core(param)">(&accept)
      .def<"shutdown_core(flags)">(&shutdown)
      .def<"getopt_core(level, optname)">(&get_option)
      .def<"setopt_core(level, optname, value, size)">(&set_option)
      .def<"cancel_core(context?)">(&cancel)
      .def<"valid_core(datatype, op, family)">(&valid)
      .def<"size_left(transmit)">([](Core& self, bool transmit) -> ssize_t {
        OfiEp& ep = ofi_open(self, "ep.size_left");
        const ssize_t r = ofi_run("ep.size_left", ep, transmit ? &ofi::EpOps::tx_size_left : &ofi::EpOps::rx_size_left);
        return r;
      })
      .about("Operations that are under way.")
      .def<"outstanding">([](Core& self) {
        size_t n = self.box->owner->own.busy();
        for (OfiCq* cq : {self.box->tx.get(), self.box->rx == self.box->tx ? nullptr : self.box->rx.get()}) {
          if (cq == nullptr) continue;
          cq->slots.each([&](ofi::Slot* slot) { n += slot->endpoint == self.box->owner ? 1 : 0; });
        }
        return n;
      });
}

}  // namespace weft::bind
