// cpp/provider/objects.hpp: the objects of a C program: libfabric's structs, each at the start of what Weft has for it.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "base/lock.hpp"
#include "host/host.hpp"
#include "host/pacer.hpp"
#include "mem/ledger.hpp"
#include "nic/cm.hpp"
#include "nic/endpoint.hpp"
#include "nic/queue.hpp"
#include "ofi/abi.hpp"
#include "provider/front.hpp"
#include "provider/helper.hpp"
#include "provider/log.hpp"

namespace weft::provider {

// libfabric's error numbers that base/status.hpp has no name for.
namespace code {
constexpr int kENOENT = 2, kENODATA = 61, kETOOSMALL = 257, kENOEQ = 261, kEOTHER = 256;
}

// Objects made before a fork belong to the parent: this number counts forks.
extern std::atomic<int> g_forks;
// The NIC of this process, made as a domain's record says. Throws Error.
std::shared_ptr<host::HostNic> nic_of_process(const Record& how);
// At the end of the process.
void end_nic() noexcept;

// A number of the policy helper, which goes back with its object. A forked child destroys no object of its parent.
class Lease {
 public:
  Lease() = default;
  ~Lease() { Helper::of_process().give_back(number_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  void take(const Record& answer) noexcept { number_ = answer.number("lease"); }
  operator uint64_t() const noexcept { return number_; }

 private:
  uint64_t number_ = 0;
};

// Members of all objects. An object cannot be closed while other objects use it.
struct Object {
  std::atomic<int> uses{0};
  Lease lease;
  int made_in = g_forks.load(std::memory_order_relaxed);

  [[nodiscard]] bool forked() const noexcept { return made_in != g_forks.load(std::memory_order_relaxed); }
};

// What a passive endpoint shares with the requests to it, which outlive it.
struct Listener {
  RankedMutex<lock_rank::kProviderListener> lock;
  nic::Endpoint* ep GUARDED_BY(lock) = nullptr;  // null: the passive endpoint is closed
};

// A peer that wants to connect: the handle in the fi_info of an FI_CONNREQ event.
struct Request {
  ofi::Fid fid{};
  std::shared_ptr<Listener> listener;
  wire::EpAddress source;
  uint64_t connection = 0;

  // False: the passive endpoint is closed, and the peer has heard nothing.
  bool reject(std::span<const std::byte> data = {}) {
    const Guard guard(listener->lock);
    if (listener->ep == nullptr) return false;
    (void)listener->ep->cm().send(source, nic::CmKind::reject, connection, data);
    return true;
  }
};

struct Fabric : Object {
  Front front;
  const Front* origin = nullptr;  // the front's own, which lives as long as the front is loaded
  std::string name;
  RankedMutex<lock_rank::kProviderRequests> requests_lock;
  std::unordered_map<const ofi::Fid*, std::unique_ptr<Request>> requests GUARDED_BY(requests_lock);

  // The unanswered request of a handle, which nobody can answer again; null: there is none, or none to this listener.
  std::unique_ptr<Request> take(const ofi::Fid* handle, const Listener* listener = nullptr) {
    const Guard guard(requests_lock);
    const auto found = requests.find(handle);
    if (found == requests.end() || (listener != nullptr && found->second->listener.get() != listener)) return nullptr;
    auto request = std::move(found->second);
    requests.erase(found);
    return request;
  }
};

// What peers' access to regions takes of a service: provider keys, and entries of the device's ledger.
struct Keys {
  RankedMutex<lock_rank::kProviderKeys> lock;
  uint64_t base GUARDED_BY(lock) = 0, sequence_mask = 0, sequence GUARDED_BY(lock) = 0;
  uint32_t shift = 0, count = 0, next GUARDED_BY(lock) = 0;
  std::vector<uint32_t> free GUARDED_BY(lock);
  bool made = false;  // the provider makes the keys
};

// How deferred work is queued, besides its rules (nic::WorkRules).
struct WorkQueue {
  bool cancels = true;
  std::string semaphore;  // the file under whose lock the processes of a service queue; empty: work waits for entries
  std::atomic<uint64_t> waited{0};
};

struct Domain : Object {
  Fabric* fabric = nullptr;
  std::shared_ptr<host::HostNic> host;
  std::unique_ptr<nic::Domain> domain;
  std::unique_ptr<mem::Ledger> ledger;
  uint32_t slot = 0;
  Record rules;
  Keys keys;
  uint32_t addr_format = 0;
  uint32_t fabric_base = 0;                          // of NIC numbers, where addresses have only a part of the number
  std::unordered_map<uint32_t, uint32_t> elsewhere;  // NICs of its fabric that other hosts have: numbers of routes
  uint32_t api_version = 0;                          // of the program
  uint16_t vni = 0;
  bool address_vni = false, asks_outcome = false;
  bool av_auth_key = false;  // its keys come from its address vectors (FI_AV_AUTH_KEY)
  WorkQueue work;
  std::atomic<bool> entry_alone{false};  // fi_cxi_dom_ops' ep_get_unexp_msgs fills entries without senders
  uint64_t mr_mode = 0;

  // The number with which the provider refuses what breaks a rule of weft.fi, by the rule's name.
  [[nodiscard]] int errno_of(std::string_view rule) const {
    return static_cast<int>(rules.number("errno." + std::string(rule)));
  }
  // Contexts of receives that ended without a completion: in C they hold nothing to release.
  void forget_released() {
    if (domain->has_released()) [[unlikely]]
      (void)domain->take_released();
  }
};

struct Av : Object {
  Domain* domain = nullptr;
  std::shared_ptr<nic::AddressVector> av;
  bool user_ids = false;                              // FI_AV_USER_ID
  std::unordered_map<uint64_t, uint64_t> insertions;  // insertions of a fi_addr, if the provider counts them
  RankedMutex<lock_rank::kProviderVector>
      keyed_lock;  // of insertions; the helper's vector sees the same order of calls
};

// An empty poll of a C program takes 10 to 20 ns: it yields after 1 us on a core shared with threads
// that poll, after 16 us on an idle core, after 160 us beside threads that compute.
// Measured beside eight threads that compute, on two cores: with the pace of Python programs half a round trip of 8 B
// took 1.1 ms, because each wait for an answer gave two time slices away.
inline host::PollPacer pace_of_c() noexcept {
  return {63, 1023, 16383, 100'000};
}

// A poll has found nothing.
[[gnu::always_inline]] inline void pace(host::PollPacer& pacer, const nic::Domain& domain) noexcept {
  if (!pacer.due()) [[likely]]
    return;
  if (nic::t_posts || !pacer.serves_posters(domain.statistics.posted())) pacer.yield_or_rest();
}

struct Cq : Object {
  Domain* domain = nullptr;
  std::shared_ptr<nic::CompletionQueue> cq;
  std::shared_ptr<host::EventfdNotifier> notifier;
  host::PollPacer pacer = pace_of_c();
  int format = 1, wait_obj = 0;
  bool threshold = false, signals = true;
  std::string text;  // of the error that was read last
};

struct Cntr : Object {
  Domain* domain = nullptr;
  std::shared_ptr<nic::Counter> counter;
  std::shared_ptr<host::EventfdNotifier> notifier;
  host::PollPacer pacer = pace_of_c();
  int wait_obj = 0;
  bool trywaits = false;
};

struct Eq : Object {
  struct Event {
    uint32_t number = 0;
    std::string entry;          // the struct that the program reads, with its data
    ofi::Fid* fid = nullptr;    // the object that has the event; null: the program wrote the event
    std::string err_data;       // of a struct fi_eq_err_entry
    bool failed = false;        // fi_eq_readerr reads it
    bool whole = false;         // the program's room holds all of the entry, or the event stays
    ofi::Info* info = nullptr;  // of FI_CONNREQ: freed, unless the program reads the event
  };
  // What an endpoint makes of a message of the NIC, under the queue's lock.
  using Handler = void (*)(Eq& eq, ofi::Fid* owner, const nic::CmEvent& message);
  struct Owner {
    ofi::Fid* fid;
    Handler handler;
  };
  Fabric* fabric = nullptr;
  RankedMutex<lock_rank::kProviderEvents> lock;
  std::deque<Event> events GUARDED_BY(lock);
  std::unordered_map<uint64_t, Owner> owners GUARDED_BY(lock);  // by the tokens of their messages
  std::shared_ptr<host::EventfdNotifier> notifier = std::make_shared<host::EventfdNotifier>();
  std::shared_ptr<nic::CmQueue> messages = std::make_shared<nic::CmQueue>(notifier);
  std::shared_ptr<host::HostNic> host GUARDED_BY(lock);  // of the endpoints
  std::string err_data;                                  // of the error that was read last
  int wait_obj = 0;
  bool writable = false, trywaits = false;

  // Reports an event of an object. The data of a failure is a struct fi_eq_err_entry's err_data.
  void post(Event event) REQUIRES(lock) {
    events.push_back(std::move(event));
    notifier->notify();
  }
};

struct Mr : Object {
  Domain* domain = nullptr;
  std::shared_ptr<nic::MemoryRegion> region;
  Object* bound = nullptr;  // an endpoint, which counts the region, or keeps the region from being closed:
  std::shared_ptr<nic::Endpoint> keeps;
  std::vector<Object*> counters;  // and the vector of its authorization key
  bool later = false;             // its key is made when it is enabled
  bool wants_event = false;       // FI_RMA_EVENT
  bool may_enable = false;        // an endpoint was bound
  bool fixed = false;             // enabled by the program: no further bindings
  uint64_t counted = 0;           // counters that are bound
  int32_t number = -1;            // of its key
  int32_t took = 0;               // entries of the ledger,
  uint32_t took_kind = 0;         // of this kind
};

struct Group;  // provider/group.hpp

// What an endpoint shares with its groups: that of a failed join may be closed beside the endpoint, or after it.
struct Joins : RankedMutex<lock_rank::kProviderJoins> {};

// An endpoint, or an alias: the same endpoint of the NIC, with default flags and a lane of its own.
struct Ep : Object {
  Domain* domain = nullptr;
  ofi::FidEp* original = nullptr;  // of an alias
  std::shared_ptr<nic::Endpoint> ep;
  Record rules;
  std::vector<Object*> bound;
  Object* av = nullptr;
  Eq* eq = nullptr;
  uint64_t token = 0;                   // of the event queue's messages
  uint64_t tx_flags = 0, rx_flags = 0;  // as FI_GETOPSFLAG reads them
  nic::CallFlags flags{};               // by nic::FlagCall: the flags of calls without a flags argument
  uint64_t lane = 0, one_sided = 0;     // further flags of messages; of transfers and atomics
  std::unique_ptr<Request> request;     // that fi_accept answers
  std::string dest;                     // the dest_addr of its info
  uint64_t min_multi_recv = 0;
  uint32_t nic = 0;
  int64_t pid = -1;
  uint16_t vni = 0;
  bool connected = false;  // of the type FI_EP_MSG
  bool inject_context = false, data_writes = true, messages = true, desc_ignored = false;
  bool source = false, receives = false, triggers = false;  // of its capabilities
  uint64_t selective = 0;                                   // sides bound with FI_SELECTIVE_COMPLETION
  std::vector<Group*> groups;                               // of its joins; under the event queue's lock
  std::shared_ptr<Joins> joins = std::make_shared<Joins>();
  std::string no_work;  // why it has no deferred work; empty: it has

  [[nodiscard]] uint64_t flags_of(nic::FlagCall call) const noexcept { return flags[static_cast<size_t>(call)]; }
};

// A passive endpoint. The NIC's endpoint needs a domain and a vector, which the program does not see.
struct Pep : Object {
  Fabric* fabric = nullptr;
  ofi::FidDomain* domain = nullptr;
  std::shared_ptr<nic::Endpoint> ep;
  std::shared_ptr<Listener> listener = std::make_shared<Listener>();
  ofi::Info* info = nullptr;  // libfabric's copy
  Eq* eq = nullptr;
  uint64_t token = 0;
  wire::EpAddress address;
  bool has_pid = false, listens = false;
};

// An object behind its libfabric struct.
template <typename FidType, typename Of>
struct Shell {
  FidType fid{};
  Of of;
};
using FabricShell = Shell<ofi::FidFabric, Fabric>;
using DomainShell = Shell<ofi::FidDomain, Domain>;
using AvShell = Shell<ofi::FidAv, Av>;
using CqShell = Shell<ofi::FidCq, Cq>;
using CntrShell = Shell<ofi::FidCntr, Cntr>;
using MrShell = Shell<ofi::FidMr, Mr>;
using EqShell = Shell<ofi::FidEq, Eq>;
using EpShell = Shell<ofi::FidEp, Ep>;
using PepShell = Shell<ofi::FidPep, Pep>;

enum Class : size_t {
  kClassFabric = 1,
  kClassDomain = 2,
  kClassEp = 3,
  kClassPep = 9,
  kClassAv = 11,
  kClassMr = 12,
  kClassEq = 13,
  kClassCq = 14,
  kClassCntr = 15,
  kClassRequest = 18,
  kClassMc = 19,
  kClassAvSet = 21,
};

// What is behind a struct of libfabric's.
template <typename T, Class n>
struct Behind {
  using Of = T;
  static constexpr Class number = n;
};
Behind<Fabric, kClassFabric> behind(ofi::FidFabric*);
Behind<Domain, kClassDomain> behind(ofi::FidDomain*);
Behind<Av, kClassAv> behind(ofi::FidAv*);
Behind<struct AvSet, kClassAvSet> behind(ofi::FidAvSet*);
Behind<Cq, kClassCq> behind(ofi::FidCq*);
Behind<Cntr, kClassCntr> behind(ofi::FidCntr*);
Behind<Eq, kClassEq> behind(ofi::FidEq*);
Behind<Ep, kClassEp> behind(ofi::FidEp*);
Behind<Pep, kClassPep> behind(ofi::FidPep*);
template <typename FidType>
auto& of(FidType* fid) noexcept {
  using Found = decltype(behind(fid));
  assert(fid->fid.fclass == Found::number && "the struct is one of the call's kind");
  return reinterpret_cast<Shell<FidType, typename Found::Of>*>(fid)->of;
}
// The endpoint that this is, or is an alias of.
inline ofi::FidEp* whole(ofi::FidEp* fid) noexcept {
  Ep& ep = of(fid);
  return ep.original != nullptr ? ep.original : fid;
}
template <typename FidType>
FidType* as(ofi::Fid* fid) noexcept {
  return reinterpret_cast<FidType*>(fid);
}

int open_domain(ofi::FidFabric*, ofi::Info*, ofi::FidDomain**, void* context);
int open_eq(ofi::FidFabric*, ofi::EqAttr*, ofi::FidEq**, void* context);
int open_av(ofi::FidDomain*, ofi::AvAttr*, ofi::FidAv**, void* context);
int open_cq(ofi::FidDomain*, ofi::CqAttr*, ofi::FidCq**, void* context);
int open_cntr(ofi::FidDomain*, ofi::CntrAttr*, ofi::FidCntr**, void* context);
int open_endpoint(ofi::FidDomain*, ofi::Info*, ofi::FidEp**, void* context);
int open_passive_endpoint(ofi::FidFabric*, ofi::Info*, ofi::FidPep**, void* context);
int enable_endpoint(Ep& ep);
// fi_cm(3) of an endpoint, in the table of its calls.
void put_connection_calls(ofi::CmOps* ops) noexcept;
// A message of the peer, or the outcome of one to the peer.
void on_connection(Eq& eq, ofi::Fid* fid, const nic::CmEvent& message) REQUIRES(eq.lock);
// The endpoint closes: tells the peer.
void end_connection(Ep& ep);
// Copies an address as fi_getname and fi_av_lookup do. For peers: with host and port of this process, if it listens.
int copy_address(const Domain& domain, const wire::EpAddress& address, void* out, size_t* length,
                 bool for_peers = false) noexcept;
// False: entries wait, or an eventfd cannot be slept on yet (fi_trywait).
bool may_sleep(Cq& cq);
bool eq_is_empty(ofi::Fid* fid);
// fi_cq_strerror and fi_eq_strerror: in the caller's buffer, or in memory of the calling thread.
const char* text_of_errno(uint64_t lease, int prov_errno, char* buf, size_t length);
// FI_GETWAIT and FI_GETWAITOBJ; null: the object has no descriptor.
int control_waiting(const Front& front, Subject subject, int command, void* arg, int wait_obj,
                    host::EventfdNotifier* notifier);
// The messages of the NIC for this endpoint go to the queue; the token for detach().
uint64_t attach(Eq& eq, ofi::Fid* owner, Eq::Handler handler, const std::shared_ptr<host::HostNic>& host,
                nic::Endpoint& endpoint, bool listens = false);
// The owner is closed; returns its events that the program has not read.
std::vector<Eq::Event> detach(Eq& eq, ofi::Fid* owner, uint64_t token);
// Removes the events of an object that the program has not read, and returns them.
std::vector<Eq::Event> take_unread(Eq& eq, const ofi::Fid* fid) REQUIRES(eq.lock);
// The bytes of an entry of an event queue.
template <typename Entry>
std::string bytes_of(const Entry& entry, size_t size = sizeof(Entry)) {
  return {reinterpret_cast<const char*>(&entry), size};
}

// Deferred work: the three commands of fi_control on a domain.
int control_work(Domain& d, int command, void* arg) noexcept;

extern ofi::MrOps g_mr_ops;
extern ofi::MsgOps g_msg_ops;
extern ofi::TaggedOps g_tagged_ops;
extern ofi::RmaOps g_rma_ops;
extern ofi::AtomicOps g_atomic_ops;
extern ofi::CollectiveOps g_collective_ops;

constexpr uint64_t kAuthKeyFlag = uint64_t{1} << 57;  // FI_AUTH_KEY

// The bytes of a key for the policy, which refuses a size that is wrong: a key of such a size (FI_AV_AUTH_KEY is one)
// is not read.
inline std::string_view key_of(const void* key, size_t size) noexcept {
  constexpr size_t kMost = 256;
  return {static_cast<const char*>(key), size <= kMost ? size : 0};
}

// Writes an address in the applications' form; returns its length.
constexpr size_t kAddressBytesMax = 128;
size_t address_bytes(const Domain& domain, const wire::EpAddress& address, char (&out)[kAddressBytesMax],
                     bool for_peers = false) noexcept;
// Reads the address in these bytes; false: no address.
bool parse_address(const Domain& domain, const void* bytes, size_t size, wire::EpAddress* out, bool* has_pid) noexcept;
size_t address_size(const Domain& domain, const void* bytes) noexcept;

// ---- calls that do not exist ----------------------------------------------------------------------------------------

// Cold: the refusal of a call that an object does not have; `member`: its place in a table, as text_of_member() has it.
[[gnu::noinline, gnu::cold]] int refuse_missing(const ofi::Fid* fid, std::string_view member) noexcept;

// "weft::ofi::DomainOps::scalable_ep", as the compiler names the argument.
template <auto member>
constexpr std::string_view text_of_member() noexcept {
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find('&') + 1);
  return text.substr(0, text.find_first_of(";]"));
}

// Inline functions of libfabric call through most pointers without a check, so every table is full.
template <auto member, typename F>
struct Stub;
template <auto member, typename R, typename First, typename... A>
struct Stub<member, R (*)(First*, A...)> {
  static R call(First* object, A...) {
    return static_cast<R>(refuse_missing(reinterpret_cast<const ofi::Fid*>(object), text_of_member<member>()));
  }
};
template <typename Ops, auto... members>
Ops stubs() noexcept {
  Ops ops{};
  ops.size = sizeof(Ops);
  ((ops.*members = Stub<members, std::remove_reference_t<decltype(ops.*members)>>::call), ...);
  return ops;
}
ofi::FidOps fid_ops(int (*close)(ofi::Fid*), int (*control)(ofi::Fid*, int, void*) = nullptr,
                    int (*bind)(ofi::Fid*, ofi::Fid*, uint64_t) = nullptr,
                    int (*open)(ofi::Fid*, const char*, uint64_t, void**, void*) = nullptr) noexcept;

// The front that explains an object's refusals.
template <typename Of>
const Front& front_of(const Of& object) noexcept {
  if constexpr (requires { object.fabric->front; }) {
    return object.fabric->front;
  } else {
    return object.domain->fabric->front;
  }
}
template <typename Of>
constexpr Subject subject_of() noexcept {
  if constexpr (std::is_same_v<Of, Domain>) return Subject::domain;
  if constexpr (std::is_same_v<Of, Av>) return Subject::av;
  if constexpr (std::is_same_v<Of, Cq>) return Subject::cq;
  if constexpr (std::is_same_v<Of, Cntr>) return Subject::cntr;
  if constexpr (std::is_same_v<Of, Eq>) return Subject::eq;
  if constexpr (std::is_same_v<Of, Mr>) return Subject::mr;
  return Subject::ep_ctrl;
}

// Cold: the refusal of a call on an object that the parent of this process has opened.
[[gnu::noinline, gnu::cold]] int refuse_forked(const Front& front, Subject subject, const char* call) noexcept;
template <typename Of>
int refuse_forked(const Of& object, const char* call) noexcept {
  return refuse_forked(front_of(object), subject_of<Of>(), call);
}

// Runs a call that may throw; the number of the error, explained.
template <typename F>
int guarded(const Front& front, Subject subject, const char* call, F&& f) noexcept {
  try {
    return f();
  } catch (const Error& e) {
    return refuse(front, subject, call, e.fi_code(), std::string(call) + ": " + e.what());
  } catch (const std::bad_alloc&) {
    return -fi_err::kENOMEM;
  } catch (const std::exception& e) {
    return refuse(front, subject, call, code::kEOTHER, e.what());
  }
}

// fi_close of an object that other objects use.
template <typename Of>
int in_use(const Of& object, const char* why) noexcept {
  return refuse(front_of(object), subject_of<Of>(), "fi_close", fi_err::kEBUSY, std::string("fi_close: ") + why);
}

}  // namespace weft::provider
