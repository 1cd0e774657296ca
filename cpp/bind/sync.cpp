// cpp/bind/sync.cpp: locks, semaphores, events, barriers and queues of cpp/sync as Python types, and calls on objects
// that this process does not map (nic/parking.hpp).
//
// HOT: the uncontended calls: one look at the owner's region entry, then one or two locked instructions. Everything
// else goes to a Python method of the subclass (weft.share), which maps the object first, waits, or asks the owner's
// NIC. Benchmark: bench/bench_coordination.py.
#include <algorithm>

#include "bind/asking.hpp"
#include "bind/params.hpp"
#include "bind/signatures.hpp"
#include "bind/wait.hpp"
#include "bind/with.hpp"

namespace weft::bind {

// HOT. An object whose __init__() has not run has no C++ part: it is like one that is not mapped.
SyncCore* core_of(PyObject* self) {
  static SyncCore none;
  return nb::inst_ready(self) ? nb::inst_ptr<SyncCore>(self) : &none;
}

namespace {

using sync::Call;
using sync::Op;
using sync::Outcome;

// As forward(), for a call that takes something: an exception that ends the Python method undoes the take.
PyObject* forward_taking(PyObject* self, PyObject* name, PyObject* const* args = nullptr, Py_ssize_t nargs = 0,
                         PyObject* kwnames = nullptr) {
  Deed deed(core_of(self), self);
  PyObject* found = forward(self, name, args, nargs, kwnames);
  if (found == nullptr) deed.undo();
  return found;
}
// As forward(), for a call that gives something back. The call must happen, whatever signal handlers raise: an
// exception raised before the call has reached the object is raised again afterwards.
PyObject* forward_giving(PyObject* self, PyObject* name, PyObject* const* args = nullptr, Py_ssize_t nargs = 0,
                         PyObject* kwnames = nullptr) {
  constexpr int kAttempts = 4;
  Deed deed(core_of(self), self);
  PyObject* found = forward(self, name, args, nargs, kwnames);
  if (found != nullptr || deed.posted()) return found;
  const HeldError error;
  for (int i = 1; i < kAttempts && found == nullptr && !deed.posted(); ++i) {
    found = forward(self, name, args, nargs, kwnames);
    PyErr_Clear();
  }
  Py_XDECREF(found);
  return nullptr;
}

// ---- locks ---------------------------------------------------------------------------------------------------------

bool take(SyncCore* c) noexcept {
  return c->ready() && sync::take_lock(*c->object.head, c->mine);
}
// With the GIL, before the Python method is called: the method takes longer than the wait.
bool take_soon(SyncCore* c) noexcept {
  return c->ready() && sync::take_soon(*c->object.head, c->mine);
}
bool release(SyncCore* c) noexcept {
  if (!c->ready() || !sync::release_lock(*c->object.head, c->mine)) return false;
  c->tell();
  return true;
}

// HOT.
PyObject* lock_acquire(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (take(core_of(self)) || take_soon(core_of(self))) [[likely]] {
    if (nargs == 0 && kwnames == nullptr) [[likely]]
      Py_RETURN_TRUE;
    // The arguments are checked all the same.
    PyObject* fine = forward(self, interned<"_check_timeout">(), args, nargs, kwnames);
    if (fine != nullptr) {
      Py_DECREF(fine);
      Py_RETURN_TRUE;
    }
    (void)release(core_of(self));
    return nullptr;
  }
  return forward_taking(self, interned<"_acquire">(), args, nargs, kwnames);
}
PyObject* lock_try_acquire(PyObject* self, PyObject*) {
  if (take(core_of(self))) [[likely]]
    Py_RETURN_TRUE;
  return forward_taking(self, interned<"_try_acquire">());
}
PyObject* lock_recover(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return forward_taking(self, interned<"_recover">(), args, nargs, kwnames);
}
PyObject* lock_release(PyObject* self, PyObject*) {
  if (release(core_of(self))) [[likely]]
    Py_RETURN_NONE;
  return forward_giving(self, interned<"_release">());
}
PyObject* lock_enter(PyObject* self) {
  if (!take(core_of(self)) && !take_soon(core_of(self))) [[unlikely]] {
    PyObject* taken = forward_taking(self, interned<"_acquire">());
    if (taken == nullptr) return nullptr;
    Py_DECREF(taken);
  }
  Py_INCREF(self);
  return self;
}
PyObject* lock_exit(PyObject* self) {
  return lock_release(self, nullptr);
}

// ---- semaphores ----------------------------------------------------------------------------------------------------

// A permit that needs the guard.
[[gnu::noinline]] bool take_guarded(SyncCore* c) noexcept {
  Call call = c->call(Op::take);
  if (sync::step(c->object, call, c->box->host->world()) != Outcome::done) return false;
  c->seat = call.seat;
  c->tag = call.tag;
  if (call.changed) c->tell();
  return true;
}
[[gnu::noinline]] bool give_guarded(SyncCore* c) noexcept {
  Call call = c->call(Op::release);
  call.a = 1;
  return sync::step(c->object, call, c->box->host->world()) == Outcome::done;
}

// HOT.
PyObject* semaphore_acquire(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  SyncCore* c = core_of(self);
  if (nargs == 0 && kwnames == nullptr && c->ready()) [[likely]] {
    if (sync::take_permit(*c->object.head, c->seat, c->tag, c->mine) || take_guarded(c)) [[likely]]
      Py_RETURN_TRUE;
  }
  return forward_taking(self, interned<"_acquire">(), args, nargs, kwnames);
}
PyObject* semaphore_try_acquire(PyObject* self, PyObject*) {
  return forward_taking(self, interned<"_try_acquire">());
}
PyObject* semaphore_release(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  SyncCore* c = core_of(self);
  if (nargs == 0 && kwnames == nullptr && c->ready()) [[likely]] {
    if (sync::give_permit(*c->object.head, c->seat, c->tag, c->mine) || give_guarded(c)) [[likely]] {
      c->tell();
      Py_RETURN_NONE;
    }
  }
  return forward_giving(self, interned<"_release">(), args, nargs, kwnames);
}
PyObject* semaphore_enter(PyObject* self) {
  PyObject* taken = semaphore_acquire(self, nullptr, 0, nullptr);
  if (taken == nullptr) return nullptr;
  Py_DECREF(taken);
  Py_INCREF(self);
  return self;
}
PyObject* semaphore_exit(PyObject* self) {
  return semaphore_release(self, nullptr, 0, nullptr);
}

// ---- events --------------------------------------------------------------------------------------------------------

PyObject* event_is_set(PyObject* self, PyObject*) {
  SyncCore* c = core_of(self);
  if (c->ready()) [[likely]]
    return PyBool_FromLong(sync::event_is_set(*c->object.head));
  return forward(self, interned<"_is_set">());
}
PyObject* event_set(PyObject* self, PyObject*) {
  SyncCore* c = core_of(self);
  if (c->ready()) [[likely]] {
    sync::set_event(*c->object.head);
    c->tell();
    Py_RETURN_NONE;
  }
  return forward(self, interned<"_set">());
}
PyObject* event_clear(PyObject* self, PyObject*) {
  SyncCore* c = core_of(self);
  if (c->ready()) [[likely]] {
    sync::clear_event(*c->object.head);
    Py_RETURN_NONE;
  }
  return forward(self, interned<"_clear">());
}
PyObject* event_wait(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  SyncCore* c = core_of(self);
  if (nargs == 0 && kwnames == nullptr && c->ready() && sync::event_is_set(*c->object.head)) [[likely]]
    Py_RETURN_TRUE;
  return forward(self, interned<"_wait">(), args, nargs, kwnames);
}

// ---- queues --------------------------------------------------------------------------------------------------------

constexpr uint64_t kBytes = 0, kPickle = 1;  // types of records; others are Python's
PyObject *g_dumps = nullptr, *g_loads = nullptr;

bool find_pickle() {
  if (g_loads != nullptr) return true;
  const nb::object module = nb::steal(PyImport_ImportModule("pickle"));
  if (!module.is_valid()) return false;
  g_dumps = PyObject_GetAttrString(module.ptr(), "dumps");
  g_loads = PyObject_GetAttrString(module.ptr(), "loads");
  return g_dumps != nullptr && g_loads != nullptr;
}

// Scratch memory for records that are copied under the guard: no Python object is made meanwhile.
std::byte* scratch() {
  thread_local const std::unique_ptr<std::byte[]> memory(new std::byte[sync::kCopyUnderGuard]);
  return memory.get();
}

PyObject* record_of(const Call& call) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(call.out), static_cast<Py_ssize_t>(call.length));
}

// A record of another type comes from memory that another process has overwritten.
PyObject* load(uint64_t type, const nb::object& bytes) {
  if (type == kBytes) return nb::object(bytes).release().ptr();
  if (type != kPickle) {
    return type_error("get: the item is a record of %zd bytes, not a pickled object; it is lost",
                      PyBytes_GET_SIZE(bytes.ptr()));
  }
  return find_pickle() ? PyObject_CallOneArg(g_loads, bytes.ptr()) : nullptr;
}
// The object of the record that a deed has. If a signal handler raised while code of the object's class ran, the record
// is not lost: a record that a second attempt can load is given back.
PyObject* deliver(Deed& deed) {
  const KeptItem item = deed.item();
  PyObject* found = load(item.type, item.bytes);
  if (found != nullptr) return found;
  const HeldError error;
  PyObject* again = load(item.type, item.bytes);
  PyErr_Clear();
  if (again == nullptr) deed.forget_item();  // no attempt will ever succeed
  Py_XDECREF(again);
  return nullptr;
}

PyObject* queue_put(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  SyncCore* c = core_of(self);
  if (nargs != 1 || kwnames != nullptr || c->records || !c->ready()) {
    return forward_taking(self, interned<"_put">(), args, nargs, kwnames);
  }
  nb::object pickled;
  PyObject* bytes = args[0];
  if (!PyBytes_CheckExact(bytes)) {
    if (!find_pickle()) return nullptr;
    static PyObject* const protocol = PyLong_FromLong(5);
    PyObject* const given[] = {args[0], protocol};
    pickled = nb::steal(PyObject_Vectorcall(g_dumps, given, 2, nullptr));
    if (!pickled.is_valid()) return nullptr;
    bytes = pickled.ptr();
  }
  const uint64_t length = static_cast<uint64_t>(PyBytes_GET_SIZE(bytes));
  if (length <= sync::kCopyUnderGuard && c->ready()) [[likely]] {
    Call call = c->call(Op::put);
    call.a = bytes == args[0] ? kBytes : kPickle;
    call.in = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(bytes));
    call.in_bytes = length;
    if (sync::step(c->object, call, c->box->host->world()) == Outcome::done) [[likely]] {
      c->tell();
      Py_RETURN_NONE;
    }
  }
  if (bytes == args[0]) return forward_taking(self, interned<"_put">(), args, nargs, kwnames);
  PyObject* const given[] = {bytes};
  return forward_taking(self, interned<"_put_pickled">(), given, 1);
}
PyObject* queue_get(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  SyncCore* c = core_of(self);
  Deed deed(c, self);
  PyObject* found = nullptr;
  if (nargs == 0 && kwnames == nullptr && !c->records && c->kept.empty() && c->ready()) [[likely]] {
    Call call = c->call(Op::get);
    call.out = scratch();
    call.out_bytes = sync::kCopyUnderGuard;
    if (sync::step(c->object, call, c->box->host->world()) == Outcome::done) [[likely]] {
      c->tell();
      // Read from a bytes object: `out` is the thread's scratch memory, which code run by loads() may use.
      nb::object bytes = nb::steal(record_of(call));
      if (!bytes.is_valid()) return nullptr;
      deed.note_item(call.value3, std::move(bytes));
      found = deliver(deed);
      if (found == nullptr) deed.undo();
      return found;
    }
  }
  // The Python method delivers arrays; other items are loaded here.
  found = forward(self, interned<"_get">(), args, nargs, kwnames);
  if (found != nullptr && !c->records && deed.item().bytes.is_valid()) {
    Py_DECREF(found);
    found = deliver(deed);
  }
  if (found == nullptr) deed.undo();
  return found;
}

// As multiprocessing's.
PyObject* queue_put_nowait(PyObject* self, PyObject* item) {
  static PyObject* const now = PyLong_FromLong(0);
  PyObject* const given[] = {item, now};
  return queue_put(self, given, 2, nullptr);
}
PyObject* queue_get_nowait(PyObject* self, PyObject*) {
  static PyObject* const now = PyLong_FromLong(0);
  PyObject* const given[] = {now};
  return queue_get(self, given, 1, nullptr);
}

// ---- any call ------------------------------------------------------------------------------------------------------

constexpr uint32_t kLost = 100, kClosedHere = 101;  // further outcomes: the owner's share, this handle

// One call on a mapped object, which waits at most `timeout` seconds. Not a nanobind function: see ReleasedGil.
PyObject* sync_wait_for(PyObject* self, PyObject* (&a)[5]) {
  uint64_t op = 0, first = 0, second = 0, deadline = kForever;
  if (!to_u64(a[0], &op, "wait", "op") || !to_u64(a[1], &first, "wait", "a") || !to_u64(a[2], &second, "wait", "b")) {
    return nullptr;
  }
  SyncCore* c = core_of(self);
  Deed* const deed = Deed::of(c);
  const auto result = [&](uint32_t outcome, const Call& call, PyObject* payload = nullptr) {
    if (deed != nullptr && outcome == static_cast<uint32_t>(Outcome::done)) {
      deed->note(call.op, nullptr, call.a, call.value, call.value2, call.value3, 0);
    }
    PyObject* found = Py_BuildValue("(IKKKKO)", outcome, call.value, call.value2, call.value3, call.state,
                                    payload != nullptr ? payload : Py_None);
    Py_XDECREF(payload);
    return found;
  };
  if (c->object.head == nullptr || c->box->fork_generation != g_fork_generation) return result(kLost, {});
  Buf data;
  const bool gets = op == static_cast<uint64_t>(Op::get);
  const bool given = a[3] != nullptr && a[3] != Py_None;
  if (given && !data.acquire(a[3], gets)) return nullptr;
  if (a[4] != nullptr && a[4] != Py_None) {
    const double seconds = PyFloat_AsDouble(a[4]);
    if (seconds == -1.0 && PyErr_Occurred()) return nullptr;
    deadline = seconds < 1e9 ? now_ns() + static_cast<uint64_t>(std::max(seconds, 0.0) * 1e9) : kForever;
  }
  const auto box = c->box;
  const auto keep = c->keep;
  const sync::Object object = c->object;
  sync::World& world = box->host->world();
  if (deed != nullptr) deed->note_posted();
  Call call = c->call(static_cast<Op>(op));
  call.a = first;
  call.b = second;
  nb::object room;  // a record that does not fit the scratch memory
  if (gets) {
    call.out = given ? data.data : scratch();
    call.out_bytes = given ? data.length : sync::kCopyUnderGuard;
  } else if (given) {
    call.in = data.data;
    call.in_bytes = data.length;
  }
  sync::Slices slices;
  for (;;) {
    Outcome outcome = Outcome::again;
    bool last = false;
    if (!keep->current()) return result(kLost, call);
    if (c->closing.load(std::memory_order_relaxed)) return result(kClosedHere, call);
    {
      const ReleasedGil released;
      const uint64_t now = deadline == kForever ? 0 : now_ns();
      last = now >= deadline;
      outcome =
          last ? sync::last_look(object, call, world) : sync::wait_slice(object, call, world, slices, deadline - now);
    }
    if (outcome == Outcome::too_long && gets && !given) {
      room = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(call.value)));
      if (!room.is_valid()) return nullptr;
      call.out = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(room.ptr()));
      call.out_bytes = call.value;
      continue;
    }
    if (call.changed) c->tell();
    if (outcome == Outcome::done && call.seat != nullptr && c->object.head == object.head) {
      c->seat = call.seat;
      c->tag = call.tag;
    }
    if (outcome == Outcome::busy) outcome = Outcome::again;
    if (outcome != Outcome::again || last) {
      if (outcome == Outcome::again && object.kind == sync::Kind::barrier && call.state != 0) {
        outcome = sync::leave(object, call, world);
      }
      PyObject* payload = nullptr;
      if (outcome == Outcome::done && gets && !given) {
        const bool fits = room.is_valid() && static_cast<uint64_t>(PyBytes_GET_SIZE(room.ptr())) == call.length;
        payload = fits ? room.release().ptr() : record_of(call);
        if (payload == nullptr) return nullptr;
      }
      if (outcome == Outcome::done && gets && deed != nullptr) {
        deed->note_item(call.value3, payload != nullptr ? nb::borrow(payload) : nb::steal(record_of(call)));
        if (PyErr_Occurred()) PyErr_Clear();
      }
      if (outcome == Outcome::done && gets) call.value = call.length;
      return result(static_cast<uint32_t>(outcome), call, payload);
    }
    if (PyErr_CheckSignals() != 0) {
      if (object.kind == sync::Kind::barrier && call.state != 0) (void)sync::leave(object, call, world);
      return nullptr;
    }
  }
}

PyMethodDef g_core_methods[] = {
    {"_ask",
     method<parsed<sync_ask, "_ask",
                   "array! who! op! flags! a! b! data! room! timeout! patience! state! leaves! also!">>(),
     kFast,
     "One call that the NIC of the array's owner does. who: (pid, start, token). Returns as _wait_for; the outcome "
     "102\n"
     "means that no lane is idle, 103 that the lane has an error, 104 that no answer came; the lane is then the last."},
    {"_wait_for", method<parsed<sync_wait_for, "_wait_for", "op! a b data timeout">>(), kFast,
     "One call on the mapped object: op is a number of sync::Op. Waits at most timeout seconds (None: no\n"
     "limit). Returns (outcome, value, value2, value3, state, bytes or None)."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef g_lock_methods[] = {
    {"acquire", method<lock_acquire>(), kFast,
     "Wait until this process has the lock.\n\n"
     "timeout   seconds; None: no limit.\n"
     "block, blocking   as multiprocessing's and threading's: True or False, which may also come first, then "
     "timeout.\n\n"
     "Returns True. Raises TimedOut, which names the holder, or with block or blocking returns False; OwnerDied\n"
     "(nothing is taken)."},
    {"try_acquire", method<lock_try_acquire>(), METH_NOARGS,
     "Take the lock if it is free. Returns whether it was. Raises OwnerDied."},
    {"recover", method<lock_recover>(), kFast,
     "Acquire the lock, also after the death of its holder.\n\n"
     "timeout   seconds; None: no limit.\n\n"
     "Returns True if the last holder died, and nobody has recovered the lock since: what it protects may be\n"
     "half-changed. False: as acquire(). Raises TimedOut."},
    {"release", method<lock_release>(), METH_NOARGS,
     "Release the lock. Raises NotPermitted if another process holds it, or nobody does."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef g_semaphore_methods[] = {
    {"acquire", method<semaphore_acquire>(), kFast,
     "Wait for a permit, and take it.\n\n"
     "timeout   seconds; None: no limit.\n"
     "block, blocking   see Lock.acquire.\n\n"
     "Returns True. Raises TimedOut, or with block or blocking returns False; NoSpace\n"
     "(too many processes have permits)."},
    {"try_acquire", method<semaphore_try_acquire>(), METH_NOARGS,
     "Take a permit if there is one. Returns whether it did."},
    {"release", method<semaphore_release>(), kFast, "Give n permits back."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef g_event_methods[] = {
    {"is_set", method<event_is_set>(), METH_NOARGS, "Whether the event is set."},
    {"set", method<event_set>(), METH_NOARGS, "Set the event, and wake all who wait for it."},
    {"clear", method<event_clear>(), METH_NOARGS, "Clear the event."},
    {"wait", method<event_wait>(), kFast,
     "Wait until the event is set.\n\n"
     "timeout   seconds; None: no limit.\n\n"
     "Returns True. Raises TimedOut."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef g_queue_methods[] = {
    {"_take_kept", method<queue_take_kept>(), METH_NOARGS,
     "The first item that was got and not delivered: (type, bytes), or None."},
    {"_keep", method<queue_keep>(), METH_FASTCALL, "Keeps an item for the next get() of this handle."},
    {"put", method<queue_put>(), kFast,
     "Append an item; waits while the queue is full.\n\n"
     "timeout   seconds; None: no limit.\n"
     "block     as multiprocessing's: False is timeout=0. It may also come first, then timeout.\n\n"
     "Raises TimedOut (it is a queue.Full, too), MessageTooLong (more bytes than a slot has), TypeError and ValueError "
     "(not an item\n"
     "of the queue's dtype and shape)."},
    {"get", method<queue_get>(), kFast,
     "Take the first item; waits while the queue is empty.\n\n"
     "timeout   seconds; None: no limit.\n"
     "out       where to put an array: writable, C-contiguous, of the queue's dtype and shape.\n"
     "block     as in put.\n\n"
     "Raises TimedOut, which is a queue.Empty, too."},
    {"put_nowait", method<queue_put_nowait>(), METH_O, "put(item, timeout=0)."},
    {"get_nowait", method<queue_get_nowait>(), METH_NOARGS, "get(timeout=0)."},
    {nullptr, nullptr, 0, nullptr}};

// Maps the object at a peer's address. 0: mapped; a Status: refused; -1: loads and stores do not reach the memory; -2:
// there is no such object.
int map_object(SyncCore& c, EndpointCore& ep, uint64_t dest, uint64_t key, uint64_t addr, uint64_t length) {
  const auto window = ep.ep->window(dest, key, addr, length, mem::kRemoteRead | mem::kRemoteWrite);
  if (window.status != Status::ok) return static_cast<int>(window.status);
  if (window.pointer == nullptr || reinterpret_cast<uintptr_t>(window.pointer) % kCacheLine != 0) return -1;
  const auto object = sync::open(window.pointer, length);
  if (!object) return -2;
  c.keep.reset();
  c.box = ep.box->nic;
  c.keep = window.keep;
  c.object = *object;
  c.seat = nullptr;
  c.mine = sync::holder_word(c.box->host->world().self(), false);
  c.parked = &c.keep->peer().table.header().parked;
  c.closing.store(false, std::memory_order_relaxed);
  return 0;
}

}  // namespace

void register_sync(Module& m) {
  Class<SyncCore>(m, "SyncCore", nb::type_slots(method_slots<"SyncCore", g_core_methods>()),
                  "An object of cpp/sync; see weft.share.")
      .def(nb::init<>())
      .about(
          "Maps the object. Returns 0; the number of a Status; -1 if loads and stores do not reach the memory; -2 if\n"
          "there is no such object.")
      .def<"_map(ep, dest, key, addr, length)">(
          [](SyncCore& c, EndpointCore& ep, uint64_t dest, uint64_t key, uint64_t addr, uint64_t length) {
            return map_object(c, ep, dest, key, addr, length);
          })
      .about("Ends the use through this handle; a thread that waits notices it after its slice.")
      .def<"_unmap">([](SyncCore& c) { c.closing.store(true, std::memory_order_relaxed); })
      .about("The object is mapped by this process.")
      .def_prop<"_mapped">(
          [](const SyncCore& c) { return c.object.head != nullptr && c.box->fork_generation == g_fork_generation; })
      .about("The mapped object can be used.")
      .def_prop<"_current">([](const SyncCore& c) { return c.ready(); })
      .about("put() and get() go through Python.")
      .def_prop<"_records">([](const SyncCore& c) { return c.records; }, [](SyncCore& c, bool on) { c.records = on; })
      .about("Items that were got and not delivered.")
      .def_prop<"_kept_items">([](const SyncCore& c) { return c.kept.size(); });
  Class<LockCore, SyncCore> lock(m, "LockCore", nb::type_slots(method_slots<"LockCore", g_lock_methods>()),
                                 "See weft.Lock.");
  lock.def(nb::init<>());
  Class<SemaphoreCore, SyncCore> semaphore(
      m, "SemaphoreCore", nb::type_slots(method_slots<"SemaphoreCore", g_semaphore_methods>()), "See weft.Semaphore.");
  semaphore.def(nb::init<>());
  if (!make_with(reinterpret_cast<PyTypeObject*>(lock.ptr()), lock_enter, lock_exit) ||
      !make_with(reinterpret_cast<PyTypeObject*>(semaphore.ptr()), semaphore_enter, semaphore_exit)) {
    throw nb::python_error();
  }
  Class<EventCore, SyncCore>(m, "EventCore", nb::type_slots(method_slots<"EventCore", g_event_methods>()),
                             "See weft.Event.")
      .def(nb::init<>());
  Class<BarrierCore, SyncCore>(m, "BarrierCore", "See weft.Barrier.").def(nb::init<>());
  Class<QueueCore, SyncCore>(m, "QueueCore", nb::type_slots(method_slots<"QueueCore", g_queue_methods>()),
                             "See weft.Queue.")
      .def(nb::init<>());
  m.about("Bytes of an object; None for numbers that no object has.")
      .def<"sync_bytes(kind, n, item, form_bytes=0)">(
          [](uint32_t kind, uint64_t n, uint64_t item, uint64_t form_bytes) {
            return sync::bytes_of(static_cast<sync::Kind>(kind), n, item, form_bytes);
          });
  m.about(
       "Makes an object in zeroed memory, which is aligned to 64 bytes. form: of a queue, a text that says what its\n"
       "records are.")
      .def<"sync_create(memory, kind, n, item, pid_namespace, form=b'')">(
          [](nb::handle memory, uint32_t kind, uint64_t n, uint64_t item, uint32_t pid_namespace,
             const nb::bytes& form) {
            Buf buf;
            if (!buf.acquire(memory.ptr(), true)) throw nb::python_error();
            const std::span text{static_cast<const std::byte*>(form.data()), form.size()};
            const auto bytes = sync::bytes_of(static_cast<sync::Kind>(kind), n, item, text.size());
            if (!bytes || *bytes > buf.length || reinterpret_cast<uintptr_t>(buf.data) % kCacheLine != 0) {
              raise(fi_err::kEINVAL, "sync_create: the memory does not fit the object");
            }
            (void)sync::create(buf.data, static_cast<sync::Kind>(kind), n, item, pid_namespace, text);
          });
  m.about("Ends an object of this process: threads that wait for it, of any process, are woken.")
      .def<"sync_close(memory)">([](nb::handle memory) {
        Buf buf;
        if (!buf.acquire(memory.ptr(), true)) throw nb::python_error();
        const auto object = sync::open(buf.data, buf.length);
        if (!object) return;
        struct Nobody final : sync::World {
          [[nodiscard]] sync::Who self() const noexcept override { return {}; }
          [[nodiscard]] bool gone(sync::Who) noexcept override { return false; }
          [[nodiscard]] uint64_t now_ns() noexcept override { return 0; }
          void fence_all() noexcept override {}
        } world;
        Call call;
        call.op = Op::close;
        (void)sync::step(*object, call, world);
      });
  m.about(
       "Posts a call on an object in a peer's memory (wire/call.hpp), which the peer's NIC executes. Completes when "
       "the\n"
       "answer has come. Raises Again, MessageTooLong, BadState.")
      .def<"post_call(ep, dest, addr, key, request, answer, context?)">(
          [](EndpointCore& ep, uint64_t dest, uint64_t addr, uint64_t key, nb::handle request, nb::handle answer,
             nb::handle context) {
            if (!usable(&ep, "post_call")) throw nb::python_error();
            Buf in, out;
            if (!in.acquire(request.ptr(), false) || !out.acquire(answer.ptr(), true)) throw nb::python_error();
            if (out.length != in.length) raise(fi_err::kEINVAL, "post_call: the answer is as long as the request");
            const nic::CallArgs call{.dest = dest, .addr = addr, .key = key, .request = {in.data, in.length}};
            if (!post_call(&ep, "post_call", call, out, context.ptr())) throw nb::python_error();
          });
}

}  // namespace weft::bind
