// cpp/bind/ofi.hpp: objects of a real libfabric as Python objects; shared by the ofi_*.cpp.
//
// Each object holds the objects that libfabric wants closed after it, so objects collected in any order are closed in
// the right order. Weft's rules of closing (Busy, which names the users) are in weft.providers.ofi.
//
// The GIL serialises calls. Where the library is thread-safe (FI_THREAD_SAFE), calls that wait or copy for long release
// it; under the other models no call does.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <unordered_set>
#include <vector>

#include "bind/objects.hpp"
#include "ofi/library.hpp"
#include "ofi/quirks.hpp"
#include "ofi/slots.hpp"

namespace weft::bind {

constexpr int kOfiNoDevice = 19;   // FI_ENODEV
constexpr int kOfiNoRegion = 270;  // FI_ENOMR

// Sets the Python exception of a refusal: `code` is negative, as libfabric returns it.
Failed ofi_set_error(const std::string& call, ssize_t code, const std::string& more = {});
[[noreturn]] void ofi_raise(const std::string& call, ssize_t code, const std::string& more = {});
inline void ofi_check(const std::string& call, ssize_t code) {
  if (code < 0) ofi_raise(call, code);
}
// The library has no such call: NotSupported, with the version.
Failed ofi_missing(const std::string& call);
[[noreturn]] void ofi_raise_missing(const std::string& call);

// An object of the library, open or closed.
struct OfiHandle {
  OfiHandle() = default;
  OfiHandle(const OfiHandle&) = delete;
  OfiHandle& operator=(const OfiHandle&) = delete;
  ~OfiHandle() { (void)shut(); }
  // Closes it, after calls that are under way in other threads have returned; a negative number if libfabric refuses.
  int shut() noexcept;
  [[nodiscard]] bool forked() const noexcept { return generation != g_fork_generation; }

  ofi::Fid* fid = nullptr;  // null: closed
  int generation = g_fork_generation;
  int calls = 0;         // under way without the GIL
  bool closing = false;  // the calls under way return soon
  bool once = false;     // a second close after a refusal would end the process
  int refused = 0;       // the refusal
  int unready = 0;       // of a queue, counter or vector: endpoints that are bound to it, and not enabled
  std::vector<std::shared_ptr<void>> bound;  // what libfabric wants closed after it, by fi_..._bind
};
// HOT. Whether calls may be made on a queue or counter; false with an error set. what: "counter" ...
Failed ofi_refuse_use(const OfiHandle& handle, const char* call, const char* what);
inline bool ofi_usable(const OfiHandle& handle, const char* call, const char* what) {
  if ((handle.fid != nullptr) & !handle.closing & !handle.forked() & (handle.unready == 0)) [[likely]]
    return true;
  return ofi_refuse_use(handle, call, what);
}
// A call without the GIL, during which close() waits.
class OfiReleased {
 public:
  OfiReleased(OfiHandle* handle, bool release) : handle_(release ? handle : nullptr) {
    if (handle_ == nullptr) return;
    ++handle_->calls;
    new (&released_) ReleasedGil;
  }
  ~OfiReleased() {
    if (handle_ == nullptr) return;
    released_.~ReleasedGil();
    --handle_->calls;
  }
  OfiReleased(const OfiReleased&) = delete;
  OfiReleased& operator=(const OfiReleased&) = delete;

 private:
  OfiHandle* handle_;
  union {
    ReleasedGil released_;
  };
};

struct OfiInfo {
  ~OfiInfo() {
    if (info != nullptr) ofi::library()->freeinfo(info);
  }
  ofi::Info* info = nullptr;
};

struct OfiFabric {
  OfiHandle h;
  [[nodiscard]] ofi::FidFabric* get() const noexcept { return reinterpret_cast<ofi::FidFabric*>(h.fid); }
};
struct OfiDomain {
  std::shared_ptr<OfiFabric> fabric;
  OfiHandle h;
  bool thread_safe = true;
  bool text_addresses = false;  // FI_ADDR_STR
  bool mr_local = false;        // FI_MR_LOCAL: local buffers need a descriptor
  ofi::Quirks quirks;
  size_t group_bytes = SIZE_MAX;  // of a collective
  std::string group_setting;      // the provider's setting of group_bytes
  // Collectives are libfabric's own, over messages: see ofi_group.cpp.
  [[nodiscard]] bool soft_groups() const noexcept { return !quirks.has(ofi::Quirk::own_collectives); }
  [[nodiscard]] ofi::FidDomain* get() const noexcept { return reinterpret_cast<ofi::FidDomain*>(h.fid); }
};
struct OfiAv {
  std::shared_ptr<OfiDomain> domain;
  OfiHandle h;
  bool any = false;            // fi_addrs have bits of receive contexts: they are not checked
  std::vector<uint8_t> small;  // fi_addrs in use, where they are indices
  std::unordered_set<ofi::Addr> others;
  // HOT. Whether a fi_addr that is an index is in use.
  [[nodiscard]] bool has_index(ofi::Addr a) const noexcept { return a < small.size() && small[a] != 0; }
  // Whether a fi_addr is in use: the library does not check, and some providers would crash.
  [[nodiscard]] bool knows(ofi::Addr a) const noexcept {
    return a < small.size() ? small[a] != 0 : any || (!others.empty() && others.contains(a));
  }
  void add(ofi::Addr a) {
    if (a >= kIndexMax) {
      others.insert(a);
      return;
    }
    if (a >= small.size()) small.resize(a + 1);
    small[a] = 1;
  }
  void drop(ofi::Addr a) {
    if (a < small.size()) {
      small[a] = 0;
    } else {
      others.erase(a);
    }
  }
  static constexpr ofi::Addr kIndexMax = 1 << 22;
  [[nodiscard]] ofi::FidAv* get() const noexcept { return reinterpret_cast<ofi::FidAv*>(h.fid); }
};
// How a thread waits for a queue or counter.
struct OfiWaits {
  int asked = 0, fd = -1;  // asked: the application's enum fi_wait_obj
  bool has_wait = false;   // the library has a wait object for it, so fi_trywait may be called
};
struct OfiEq : OfiWaits {
  std::shared_ptr<OfiFabric> fabric;
  OfiHandle h;
  [[nodiscard]] ofi::FidEq* get() const noexcept { return reinterpret_cast<ofi::FidEq*>(h.fid); }
};
struct OfiCntr : OfiWaits {
  std::shared_ptr<OfiDomain> domain;
  OfiHandle h;
  [[nodiscard]] ofi::FidCntr* get() const noexcept { return reinterpret_cast<ofi::FidCntr*>(h.fid); }
};
struct OfiMr {
  ~OfiMr();
  std::shared_ptr<OfiDomain> domain;
  OfiHandle h;
  nb::object keep;    // the exporters of the memory: a tuple
  nb::object buffer;  // the buffer, if there is one
  [[nodiscard]] ofi::FidMr* get() const noexcept { return reinterpret_cast<ofi::FidMr*>(h.fid); }
};

// For a completion queue's slots: drops an operation's references. Requires the GIL.
inline void ofi_drop(uint64_t owner) noexcept {
  Py_DECREF(reinterpret_cast<PyObject*>(owner));
}
void ofi_drop_all(ofi::Slots& slots) noexcept;
// True if the memory of operations may be given back: not in a forked child, nor at the end of the process, where
// threads of the library may still use it.
bool ofi_may_drop(const OfiHandle& handle) noexcept;

struct OfiCq : OfiWaits {
  ~OfiCq();
  std::shared_ptr<OfiDomain> domain;
  OfiHandle h;
  ofi::Slots slots;
  size_t silent = 0;  // operations under way that have no entry
  size_t large = 0;   // of many bytes
  int format = 0;
  bool polls = false;             // sread looks again and again
  uint64_t signals = 0;           // calls of cq.signal()
  std::deque<nic::CqEntry> side;  // read for other reasons, before the application asked; they own their contexts
  [[nodiscard]] ofi::FidCq* get() const noexcept { return reinterpret_cast<ofi::FidCq*>(h.fid); }
  // sread looks again and again, instead of waiting in the library.
  [[nodiscard]] bool looks() const noexcept { return polls || !has_wait || !domain->thread_safe; }
};
// Reads the queue to drop the references of operations without entries; keeps the entries of other operations.
void ofi_sweep(OfiCq& cq);
// Lets the library work for the endpoints of the queue, without taking an entry.
void ofi_progress(OfiCq& cq) noexcept;

struct OfiGroup;  // ofi_group.hpp

struct OfiEp {
  ~OfiEp();
  int shut() noexcept;
  void release_unready() noexcept;
  std::shared_ptr<OfiDomain> domain;
  std::vector<std::shared_ptr<OfiHandle>> unready;  // the objects that wait for enable(): see OfiHandle
  size_t iov_limit = 1, rma_iov_limit = 1, rx_iov_limit = 1;
  // Members that a plain call reads: two cache lines.
  std::shared_ptr<OfiCq> tx, rx;
  std::shared_ptr<OfiAv> av;
  OfiHandle h;
  bool enabled = false;
  bool connected = false;                   // FI_EP_MSG
  bool mr_local = false;                    // the domain's
  bool triggers = false;                    // FI_TRIGGER
  bool plain_tx = false, plain_rx = false;  // a queue reports every operation, and the flags ask for nothing else
  OfiEp* owner = this;                      // of its operations: of an alias, the original, which `h.bound` holds
  size_t inject_size = 0;
  // The library's tables, where they have every call; otherwise each call is looked up.
  const ofi::MsgOps* msg = nullptr;
  const ofi::RmaOps* rma = nullptr;
  const ofi::TaggedOps* tagged = nullptr;
  uint64_t selective = 0, tx_flags = 0, rx_flags = 0;
  uint64_t reserved_tag = 0;  // bits of tags that libfabric's own collectives use
  ofi::Slots own;             // of operations that no queue reports
  std::vector<std::weak_ptr<OfiEp>> aliases;
  std::vector<OfiGroup*> groups;            // open groups, which hold the endpoint
  std::vector<std::shared_ptr<void>> left;  // of closed groups: the library may use it until the endpoint is closed
  [[nodiscard]] ofi::FidEp* get() const noexcept { return reinterpret_cast<ofi::FidEp*>(h.fid); }
  // HOT. Open, enabled, and of this process.
  [[nodiscard]] bool usable() const noexcept {
    return ((h.fid != nullptr) & !h.closing & !h.forked() & enabled) != 0;  // one jump
  }
};
struct OfiPep {
  std::shared_ptr<OfiFabric> fabric;
  OfiHandle h;
  [[nodiscard]] ofi::FidPep* get() const noexcept { return reinterpret_cast<ofi::FidPep*>(h.fid); }
};

// The Python objects, which share the handles with each other.
template <typename T>
struct OfiCore {
  std::shared_ptr<T> box = std::make_shared<T>();
};

// True while another object of the library uses this object. Then libfabric refuses to close this object, and does not
// always survive the attempt (REFUSED_CLOSE_FREES of the table of quirks): the last user closes it.
template <typename T>
bool ofi_in_use(const OfiCore<T>& core) noexcept {
  return core.box.use_count() > 1;
}

// Raises BadState for a handle that is closed, or of the parent process.
template <typename T>
T& ofi_open(const OfiCore<T>& core, const char* call) {
  T& t = *core.box;
  if (t.h.fid == nullptr || t.h.closing) raise(fi_err::kEOPBADSTATE, call, ": the object is closed");
  if (t.h.forked()) {
    raise(fi_err::kEOPBADSTATE, call,
          ": the object belongs to the parent process: a forked child opens "
          "its own fabric");
  }
  return t;
}

// close() of an object. Raises the library's refusal.
template <Text kCall, typename T>
void ofi_close(OfiCore<T>& core) {
  if constexpr (requires { core.box->shut(); }) {
    ofi_check(kCall.text, core.box->shut());
  } else {
    ofi_check(kCall.text, core.box->h.shut());
  }
}

// The library's counter, which is open. Raises BadState.
const std::shared_ptr<OfiCntr>& ofi_counter(const CounterCore& core, const char* call);

// fi_..._bind: the object holds the other one until it is closed. Raises BadState, and the library's refusal.
template <typename T, typename U>
T& ofi_bind(const char* call, const OfiCore<T>& self, const std::shared_ptr<U>& other, uint64_t flags) {
  T& t = ofi_open(self, call);
  ofi_check(call, t.h.fid->ops->bind(t.h.fid, ofi_open(OfiCore<U>{other}, call).h.fid, flags));
  t.h.bound.push_back(other);
  return t;
}
// The same as a method of nanobind.
template <Text kCall, typename T, typename U>
void ofi_bound(OfiCore<T>& self, OfiCore<U>& other, uint64_t flags) {
  (void)ofi_bind(kCall.text, self, other.box, flags);
}

extern PyTypeObject* g_ofi_mr_type;
extern PyType_Slot g_ofi_ep_slots[];  // ofi_ep.cpp

// A text of the library for people, which some providers do not end within its bytes: any bytes are taken.
nb::str ofi_words(const char* words);
// Addresses: bytes, or text under FI_ADDR_STR; bytes that are no text are escaped as os.fsdecode() does.
nb::object ofi_address(const void* data, size_t length, bool text);
constexpr size_t kOfiAddressMax = 512;
// The address that f(room, &length) writes.
template <typename F>
nb::object ofi_address_by(bool text, F&& f) {
  std::array<char, kOfiAddressMax> room{};
  size_t length = room.size();
  f(room.data(), &length);
  return ofi_address(room.data(), std::min(length, room.size()), text);
}
std::string ofi_address_bytes(const nb::bytes& address, bool text);  // with a NUL after a text

// HOT. Calls the library through a table; -FI_ENOSYS: the provider has no such call.
template <typename Table, typename Entry, typename... Args>
auto ofi_call(const Table* table, Entry Table::* entry, Args... args) -> std::invoke_result_t<Entry, Args...> {
  const auto call = ofi::op(table, entry);
  return call == nullptr ? -fi_err::kENOSYS : call(args...);
}

// As above; raises the library's refusal, or NotSupported where it has no such call.
template <typename Table, typename Entry, typename... Args>
auto ofi_run(const char* name, const Table* table, Entry Table::* entry, Args... args)
    -> std::invoke_result_t<Entry, Args...> {
  const auto call = ofi::op(table, entry);
  if (call == nullptr) ofi_raise_missing(name);
  const auto r = call(args...);
  if (r < 0) ofi_raise(name, r);
  return r;
}
// As above, with the table and the struct of an object.
template <typename T, typename Table, typename Entry, typename... Args>
  requires requires(T& t) { t.get(); }
auto ofi_run(const char* name, T& object, Entry Table::* entry, Args... args) {
  return ofi_run(name, object.get()->ops, entry, object.get(), args...);
}

}  // namespace weft::bind
