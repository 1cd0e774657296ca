// cpp/bind/ofi_plain.hpp: the arguments of plain calls: given by position, exact ints, a NumPy array or bytes.
//
// HOT: all of it. A plain call is read in place, without a call of Python and almost without jumps: many calls of the
// library make a system call, after which each jump and each cache line of ours costs several times as much. Whatever
// is not plain returns false, before anything is done, and is left to the general path, which also makes the errors.
// Measured beside a method that reads no arguments: bench/bench_ofi.py.
#pragma once

#define PY_ARRAY_UNIQUE_SYMBOL weft_numpy_api  // buffer.cpp has it
#define NO_IMPORT_ARRAY
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include "bind/ep.hpp"
#include "bind/ofi_ep.hpp"
#include "bind/params.hpp"

#include <numpy/arrayobject.h>

#include <string_view>

namespace weft::bind {

extern PyTypeObject* g_ndarray;  // buffer.cpp; null until NumPy is imported

// A number of an exact int. False: not such an int, or outside 0 to 2**64 - 1. Wide: it is mostly above 2**30.
template <bool Wide = false>
[[gnu::always_inline]] inline bool plain_number(PyObject* o, uint64_t* out) {
  return PyLong_CheckExact(o) && int_number<Wide>(o, out);
}

// The memory of an exact NumPy array without Python objects, or of bytes where nothing is written to them.
[[gnu::always_inline]] inline bool plain_buffer(PyObject* o, bool writable, std::byte** data, size_t* length) {
  if (Py_TYPE(o) == g_ndarray) [[likely]] {
    auto* array = reinterpret_cast<PyArrayObject*>(o);
    const int wanted = NPY_ARRAY_C_CONTIGUOUS | (writable ? NPY_ARRAY_WRITEABLE : 0);
    PyArray_Descr* descr = PyArray_DESCR(array);
    if ((PyArray_FLAGS(array) & wanted) != wanted ||
        static_cast<unsigned>(descr->type_num) >= static_cast<unsigned>(NPY_OBJECT)) [[unlikely]] {
      return false;
    }
    size_t n;
    if (PyArray_RUNTIME_VERSION >= NPY_2_0_API_VERSION) [[likely]] {
      n = static_cast<size_t>(reinterpret_cast<_PyArray_DescrNumPy2*>(descr)->elsize);
    } else {
      n = static_cast<size_t>(PyDataType_ELSIZE(descr));
    }
    for (int i = 0; i < PyArray_NDIM(array); ++i) n *= static_cast<size_t>(PyArray_DIM(array, i));
    *data = static_cast<std::byte*>(PyArray_DATA(array));
    *length = n;
    return true;
  }
  if (writable || !PyBytes_CheckExact(o)) return false;
  *data = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(o));
  *length = static_cast<size_t>(PyBytes_GET_SIZE(o));
  return true;
}

// The descriptor of a region that is open.
[[gnu::always_inline]] inline bool plain_desc(PyObject* o, void** out) {
  if (o == Py_None) [[likely]]
    return true;
  if (!PyObject_TypeCheck(o, g_ofi_mr_type)) return false;
  const OfiMr& mr = *nb::inst_ptr<OfiCore<OfiMr>>(o)->box;
  if (mr.h.fid == nullptr) return false;
  *out = mr.get()->mem_desc;
  return true;
}

// A call's use of its one buffer: sends it, receives to it, reads remote memory to it, or copies it before
// the call returns.
enum class OfiKind : uint8_t { sends, receives, fetches, injects };

// The values of a call with one buffer.
struct OfiCall {
  std::byte* data = nullptr;
  size_t length = 0;
  void* desc = nullptr;
  ofi::Addr peer = ~uint64_t{0};
  uint64_t tag = 0, ignore = 0, addr = 0, key = 0, value = 0;  // value: remote data
};

consteval int peer_of(const auto& names) {
  return std::max(names.at("dest_addr"), names.at("src_addr"));
}

// The argument of the library's call that has the place of the parameter `at`.
constexpr uint64_t OfiCall::* place_of(std::string_view name) {
  return name == "tag"      ? &OfiCall::tag
         : name == "ignore" ? &OfiCall::ignore
         : name == "addr"   ? &OfiCall::addr
         : name == "key"    ? &OfiCall::key
         : name == "data"   ? &OfiCall::value
                            : &OfiCall::peer;
}
template <typename M, size_t at>
[[gnu::always_inline]] inline auto argument(const OfiCall& c, void* context) {
  constexpr std::string_view kName = M::kNames.name(at);
  if constexpr (kName == "desc" || kName == "context") {
    return kName == "desc" ? c.desc : context;
  } else {
    constexpr auto kNumber = place_of(kName);
    return c.*kNumber;
  }
}

constexpr OfiKind kind_of(Form form, std::string_view does) {
  return form == Form::inject ? OfiKind::injects
         : does == "recv"     ? OfiKind::receives
         : does == "read"     ? OfiKind::fetches
                              : OfiKind::sends;
}

// Reads the numbers of a call, and checks that the endpoint may make it. False with an error set.
template <typename M>
bool ofi_numbers(const OfiEp& ep, const BufferArgs& a, bool receives, OfiCall* c) {
  constexpr const auto& n = M::kNames;
  constexpr const char* method = M::kName;
  if (n.at("tag") >= 0 && a.tag == nullptr) return type_error("%s() needs the argument 'tag'", method);
  const auto take = [](PyObject* o, uint64_t* out, const char* name) {
    return o == nullptr || plain_number(o, out) || to_u64(o, out, method, name);
  };
  const bool place = n.at("key") < 0 || (a.addr != nullptr && a.key != nullptr)
                         ? take(a.addr, &c->addr, "addr") && take(a.key, &c->key, "key")
                         : target_ok(method, a.addr, a.key, &c->addr, &c->key);
  return place && take(a.peer, &c->peer, n.name(static_cast<size_t>(peer_of(n)))) && take(a.tag, &c->tag, "tag") &&
         take(a.ignore, &c->ignore, "ignore") && take(a.data, &c->value, "data") &&
         ofi_ready(ep, method, c->peer, receives) && ofi_tag(ep, method, c->tag, &c->ignore);
}

// Reads the plain arguments of a method M. *context: borrowed, or null.
template <typename M>
[[gnu::always_inline]] inline bool plain_call(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, OfiCall* c,
                                              PyObject** context) {
  constexpr const auto& names = M::kNames;
  constexpr int kDesc = names.at("desc"), kContext = names.at("context"), kPeer = peer_of(names);
  // A receive may be from anyone; the other numbers, but for `ignore`, are necessary.
  constexpr int kNeeded =
      1 + std::max({0, M::kKind == OfiKind::receives ? 0 : kPeer, names.at("tag"), names.at("key"), names.at("data")});
  if (kwnames != nullptr || nargs < kNeeded || nargs > static_cast<Py_ssize_t>(names.positional)) [[unlikely]]
    return false;
  if (!plain_buffer(args[0], M::kKind == OfiKind::receives || M::kKind == OfiKind::fetches, &c->data, &c->length))
      [[unlikely]] {
    return false;
  }
  const auto take = [&]<int At>(std::integral_constant<int, At>, uint64_t* out) __attribute__((always_inline)) {
    constexpr bool kWide = At == names.at("addr");
    if constexpr (At < 0) {
      return true;
    } else if constexpr (At < kNeeded) {
      return plain_number<kWide>(args[At], out);
    } else {
      return At >= nargs || plain_number(args[At], out);
    }
  };
#define WEFT_TAKE(at, out) take(std::integral_constant<int, at>(), out)
  if (!WEFT_TAKE(kPeer, &c->peer) || !WEFT_TAKE(names.at("addr"), &c->addr) || !WEFT_TAKE(names.at("key"), &c->key) ||
      !WEFT_TAKE(names.at("tag"), &c->tag) || !WEFT_TAKE(names.at("ignore"), &c->ignore) ||
      !WEFT_TAKE(names.at("data"), &c->value)) [[unlikely]] {
    return false;
  }
#undef WEFT_TAKE
  if constexpr (kDesc >= 0) {
    if ((kDesc < kNeeded || kDesc < nargs) && !plain_desc(args[kDesc], &c->desc)) [[unlikely]]
      return false;
  }
  if constexpr (kContext >= 0) *context = kContext < nargs && args[kContext] != Py_None ? args[kContext] : nullptr;
  return true;
}

// For calls.inl: libfabric's tables by their names there.
#define WEFT_OPS_msg MsgOps
#define WEFT_OPS_tagged TaggedOps

}  // namespace weft::bind
