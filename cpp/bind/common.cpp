// cpp/bind/common.cpp: errors and forks.
#include "bind/common.hpp"

#include <pthread.h>

#include "bind/held.hpp"
#include "bind/held_error.hpp"

namespace weft::bind {

// ---- errors --------------------------------------------------------------------------------------------------------

namespace {
PyObject* g_error_factory = nullptr;
}  // namespace

Failed set_error(int fi_code, std::span<const Part> parts) {
  std::string message;
  for (const Part& part : parts) message += part.text;
  if (g_error_factory == nullptr) {
    PyErr_Format(PyExc_OSError, "[fi %d] %s", fi_code, message.c_str());
    return {};
  }
  PyObject* e = PyObject_CallFunction(g_error_factory, "is", fi_code, message.c_str());
  if (e == nullptr) return {};
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(e)), e);
  Py_DECREF(e);
  return {};
}

// ---- forks ---------------------------------------------------------------------------------------------------------

int g_fork_generation = 0;

namespace {
std::vector<host::HostNic*>& living() {
  static std::vector<host::HostNic*> nics;
  return nics;
}
void before() {
  for (host::HostNic* nic : living()) nic->before_fork();
  held_pages().before_fork();
}
void in_parent() {
  held_pages().after_fork_in_parent();
  for (host::HostNic* nic : living()) nic->after_fork_in_parent();
}
void in_child() {
  ++g_fork_generation;
  held_pages().after_fork_in_child();
  for (host::HostNic* nic : living()) nic->after_fork_in_child();
  living().clear();
}
// Never destroyed: threads may read it during exit.
const std::shared_ptr<link::Routes>& g_routes = *new std::shared_ptr<link::Routes>(std::make_shared<link::Routes>());
// Registered as the library is loaded, so before count_forks(): a fork takes this lock after the NIC's.
[[maybe_unused]] const int g_routes_at_fork =
    pthread_atfork([] { g_routes->before_fork(); }, [] { g_routes->after_fork(); }, [] { g_routes->after_fork(); });
}  // namespace

const std::shared_ptr<link::Routes>& routes() noexcept {
  return g_routes;
}

void count_forks() {
  static const int registered = pthread_atfork(before, in_parent, in_child);
  (void)registered;
}

void watch_forks(host::HostNic* nic) {
  count_forks();
  living().push_back(nic);
}

void unwatch_forks(host::HostNic* nic) noexcept {
  std::erase(living(), nic);
}

void DomainBox::drain_now() {
  // Destructors may call back, so the list is not the box's meanwhile. Its memory is used again: receives release an
  // object with each message.
  std::vector<uint64_t> objects = std::exchange(released, {});
  domain->take_released(&objects);
  for (const uint64_t cookie : objects) Py_DECREF(reinterpret_cast<PyObject*>(cookie));
  released.swap(objects);
  if (!domain->has_news()) [[likely]]
    return;
  static constexpr const char* kNames[] = {"match_mode", "no_id", "stopped"};
  for (const auto& [pid, what] : domain->take_news()) tell(pid, kNames[static_cast<size_t>(what)]);
}

bool DomainBox::tell(uint32_t pid, const char* what) {
  if (!on_news.is_valid() || closed) return false;
  const HeldError error;  // an error that is set belongs to the call that drains
  const nb::object callback = on_news;
  PyObject* done = PyObject_CallFunction(callback.ptr(), "Is", pid, what);
  const bool yes = done != nullptr && PyObject_IsTrue(done) == 1;
  if (done == nullptr) PyErr_WriteUnraisable(callback.ptr());
  Py_XDECREF(done);
  return yes;
}

PyObject* none_or(PyObject* o) {
  PyObject* r = o != nullptr ? o : Py_None;
  Py_INCREF(r);
  return r;
}

void register_errors(Module& m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& e) {
      set_error(e.fi_code(), e.what());
    }
  });
  m.about("Registers the function (FI_ code, message) -> exception that makes every exception raised here.")
      .def<"set_error_factory(f: Callable[[int, str], BaseException]) -> None">(
          [](nb::object f) { keep(g_error_factory, std::move(f)); });
}

}  // namespace weft::bind
