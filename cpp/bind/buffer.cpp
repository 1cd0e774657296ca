// cpp/bind/buffer.cpp: address and length of a Python object: the fast path of weft.buffers.
#define PY_ARRAY_UNIQUE_SYMBOL weft_numpy_api
#include "bind/common.hpp"

#include <numpy/arrayobject.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

namespace weft::bind {

namespace {
PyObject* g_buffer_hook = nullptr;
}  // namespace

PyTypeObject* g_mr_type = nullptr;
PyTypeObject* g_mr_slice_type = nullptr;
PyTypeObject* g_ndarray =
    nullptr;  // also of ofi_plain.hpp; set once the application has imported NumPy; the binding never imports it

namespace {

bool find_numpy() {
  PyObject* modules = PyImport_GetModuleDict();
  if (PyDict_GetItemString(modules, "numpy") == nullptr) return false;
  if (_import_array() < 0) {
    PyErr_Clear();
    return false;
  }
  g_ndarray = &PyArray_Type;
  return true;
}

PyTypeObject* g_ctypes_data = nullptr;  // _ctypes._CData, the base of every ctypes object

// Finds the base class of ctypes objects. weft.buffers imports ctypes before it registers its hook.
void find_ctypes() {
  PyObject* module = PyImport_ImportModule("_ctypes");
  PyObject* structure = module != nullptr ? PyObject_GetAttrString(module, "Structure") : nullptr;
  if (structure != nullptr) g_ctypes_data = reinterpret_cast<PyTypeObject*>(structure)->tp_base;
  PyErr_Clear();
  Py_XDECREF(structure);
  Py_XDECREF(module);
}

// HOT. True for elements that are or contain pointers to Python objects: a peer's write to them would crash the
// process.
inline bool holds_objects(PyArrayObject* array) {
  return PyDataType_REFCHK(PyArray_DESCR(array));
}

// HOT. The same for a memoryview. True also if the format does not tell: weft.buffers then decides, and makes the text
// of a refusal.
bool may_hold_objects(PyObject* memoryview) {
  const Py_buffer* seen = PyMemoryView_GET_BUFFER(memoryview);
  if (seen->format != nullptr && std::strchr(seen->format, 'O') != nullptr) return true;
  // ctypes gives unions and packed structures the format "B", independent of their fields.
  PyObject* base = PyMemoryView_GET_BASE(memoryview);
  return base != nullptr && !PyByteArray_CheckExact(base) && g_ctypes_data != nullptr &&
         PyObject_TypeCheck(base, g_ctypes_data);
}

bool too_short(size_t wanted, size_t found) {
  return set_error(fi_err::kEINVAL, "len is ", wanted, " but the buffer has ", found, " bytes");
}

bool read_only_error(PyObject* obj) {
  return set_error(fi_err::kEACCES, "the buffer (", Py_TYPE(obj)->tp_name,
                   ") is read-only and the call writes to it: give a writable one");
}

bool bare_pair(PyObject* tuple, Buf* out, PyObject* length_arg) {
  PyObject* first = PyTuple_GET_ITEM(tuple, 0);
  PyObject* second = PyTuple_GET_ITEM(tuple, 1);
  if (PyObject_TypeCheck(first, g_mr_type)) {  // (region, offset), with len=
    auto* core = nb::inst_ptr<MemoryRegionCore>(first);
    uint64_t offset = 0;
    if (!to_u64(second, &offset, "(region, offset)", "offset")) return false;
    uint64_t length = core->length - std::min(core->length, offset);
    if (offset > core->length)
      return set_error(fi_err::kEINVAL, "offset ", offset, " passes the end of the region of ", core->length, " bytes");
    if (core->region->closed()) return set_error(fi_err::kEOPBADSTATE, "the region given as buffer is closed");
    if (core->region->buffers().size() != 1) {
      return set_error(fi_err::kEINVAL, "(region, offset) needs a region of one buffer; this one has ",
                       core->region->buffers().size(), ": give the buffers themselves");
    }
    if (length_arg != nullptr && length_arg != Py_None) {
      uint64_t n = 0;
      if (!to_u64(length_arg, &n, "buffer", "len")) return false;
      if (n > length) return too_short(n, length);
      length = n;
    }
    out->data = reinterpret_cast<std::byte*>(core->region->buffers()[0].local_addr) + offset;
    out->length = length;
    out->readonly = core->readonly;
    out->iface = core->iface;
    out->owner = first;
    out->region = core;
    return true;
  }
  uint64_t address = 0, length = 0;
  if (!to_u64(first, &address, "(address, length)", "address") ||
      !to_u64(second, &length, "(address, length)", "length")) {
    return false;
  }
  if (length != 0 && length - 1 > ~address) {  // checks the last byte: the end may be 2**64
    char text[128];
    std::snprintf(text, sizeof(text), "%llu B from address 0x%llx pass the end of the address space",
                  static_cast<unsigned long long>(length), static_cast<unsigned long long>(address));
    return set_error(fi_err::kEINVAL, text);
  }
  out->data = reinterpret_cast<std::byte*>(address);
  out->length = length;
  out->owner = tuple;
  out->bare = true;
  return true;
}

}  // namespace

bool Buf::acquire(PyObject* obj, bool writable, PyObject* length_arg) {
  PyTypeObject* type = Py_TYPE(obj);
  if (type == g_mr_slice_type) {
    const auto* slice = nb::inst_ptr<MrSlice>(obj);
    if (slice->core->region->closed()) return set_error(fi_err::kEOPBADSTATE, "the region of this slice is closed");
    data = slice->data;
    length = slice->length;
    readonly = slice->core->readonly;
    bare = slice->core->bare;
    iface = slice->core->iface;
    owner = obj;
    region = slice->core;
  } else if (g_ndarray != nullptr && (type == g_ndarray || PyType_IsSubtype(type, g_ndarray)) &&
             PyArray_IS_C_CONTIGUOUS(reinterpret_cast<PyArrayObject*>(obj)) &&
             !holds_objects(reinterpret_cast<PyArrayObject*>(obj))) {
    auto* array = reinterpret_cast<PyArrayObject*>(obj);
    data = static_cast<std::byte*>(PyArray_DATA(array));
    length = static_cast<size_t>(PyArray_ITEMSIZE(array));
    for (int i = 0; i < PyArray_NDIM(array); ++i) length *= static_cast<size_t>(PyArray_DIM(array, i));
    readonly = !PyArray_ISWRITEABLE(array);
    owner = obj;
  } else if (PyBytes_CheckExact(obj)) {
    data = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(obj));
    length = static_cast<size_t>(PyBytes_GET_SIZE(obj));
    readonly = true;
    owner = obj;
  } else if (PyTuple_CheckExact(obj) && PyTuple_GET_SIZE(obj) == 2) {
    if (!bare_pair(obj, this, length_arg)) return false;
    if (owner != obj) length_arg = nullptr;  // (region, offset) has used the length
  } else if (PyObject_TypeCheck(obj, g_mr_type)) {
    auto* core = nb::inst_ptr<MemoryRegionCore>(obj);
    if (core->region->closed() || core->region->buffers().size() != 1)
      return set_error(fi_err::kEINVAL, "this region cannot be used as a buffer: it is closed or has several buffers");
    data = reinterpret_cast<std::byte*>(core->region->buffers()[0].local_addr);
    length = core->length;
    readonly = core->readonly;
    bare = core->bare;
    iface = core->iface;
    owner = obj;
    region = core;
  } else {
    if (g_ndarray == nullptr && find_numpy()) return acquire(obj, writable, length_arg);
    const bool plain = PyByteArray_CheckExact(obj) || (PyMemoryView_Check(obj) && !may_hold_objects(obj));
    if (plain && PyObject_GetBuffer(obj, &view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) {
      has_view = true;
      data = static_cast<std::byte*>(view.buf);
      length = static_cast<size_t>(view.len);
      readonly = view.readonly != 0;
      owner = obj;
    } else {
      // weft.buffers, in Python, handles the other protocols and makes the text of every refusal.
      PyErr_Clear();
      if (g_buffer_hook == nullptr) return type_error("%s is not a buffer", type->tp_name);
      PyObject* r = PyObject_CallFunctionObjArgs(g_buffer_hook, obj, writable ? Py_True : Py_False, nullptr);
      if (r == nullptr) return false;
      unsigned long long address = 0, n = 0;
      int ro = 0, device = 0;
      PyObject* keep = nullptr;
      if (!PyArg_ParseTuple(r, "KKpiO", &address, &n, &ro, &device, &keep)) {
        Py_DECREF(r);
        return false;
      }
      data = reinterpret_cast<std::byte*>(address);
      length = n;
      readonly = ro != 0;
      iface = static_cast<uint32_t>(device);
      Py_INCREF(keep);
      keepalive = keep;
      Py_DECREF(r);
      owner = obj;
    }
  }
  if (writable && readonly) [[unlikely]]
    return read_only_error(obj);
  if (length_arg != nullptr && length_arg != Py_None) [[unlikely]] {
    uint64_t n = 0;
    if (!to_u64(length_arg, &n, "buffer", "len")) return false;
    if (n > length) return too_short(n, length);
    length = n;
  }
  return true;
}

// ---- the type of elements ------------------------------------------------------------------------------------------

namespace {

constexpr uint8_t kBytes = 254, kOther = 255;

// How the libraries name an element type: NumPy by a number, many by a name, memoryview and array.array by a letter of
// the struct module, in this machine's sizes. Bytes (uint8) fit every datatype.
struct TypeNames {
  int numpy;  // -1: a type of ml_dtypes
  std::string_view name;
  char letter;
  nic::Datatype datatype;
};
static_assert(sizeof(long) == 8);
using nic::Datatype;
constexpr TypeNames kTypes[] = {
    {NPY_BYTE, "int8", 'b', Datatype::int8},
    {NPY_SHORT, "int16", 'h', Datatype::int16},
    {NPY_USHORT, "uint16", 'H', Datatype::uint16},
    {NPY_INT, "int32", 'i', Datatype::int32},
    {NPY_UINT, "uint32", 'I', Datatype::uint32},
    {NPY_LONG, "int64", 'l', Datatype::int64},
    {NPY_LONGLONG, "int64", 'q', Datatype::int64},
    {NPY_ULONG, "uint64", 'L', Datatype::uint64},
    {NPY_ULONGLONG, "uint64", 'Q', Datatype::uint64},
    {NPY_HALF, "float16", 'e', Datatype::float16},
    {NPY_FLOAT, "float32", 'f', Datatype::float32},
    {NPY_DOUBLE, "float64", 'd', Datatype::float64},
    {NPY_LONGDOUBLE, {}, 0, Datatype::long_double},
    {NPY_CFLOAT, "complex64", 0, Datatype::float_complex},
    {NPY_CDOUBLE, "complex128", 0, Datatype::double_complex},
    {NPY_CLONGDOUBLE, {}, 0, Datatype::long_double_complex},
    {-1, "bfloat16", 0, Datatype::bfloat16},
    {-1, "float8_e4m3fn", 0, Datatype::fp8_e4m3},
    {-1, "float8_e5m2", 0, Datatype::fp8_e5m2},
};
template <typename Wanted>
constexpr uint8_t datatype_where(uint8_t other, Wanted&& wanted) {
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes), wanted);
  return found == std::end(kTypes) ? other : static_cast<uint8_t>(found->datatype);
}

constexpr auto kOfNumpy = [] {
  std::array<uint8_t, NPY_NTYPES_LEGACY> all{};
  for (int type = 0; type < NPY_NTYPES_LEGACY; ++type) {
    const bool bytes = type == NPY_UBYTE || type == NPY_VOID || type == NPY_STRING;
    all[static_cast<size_t>(type)] =
        datatype_where(bytes ? kBytes : kOther, [=](const TypeNames& one) { return one.numpy == type; });
  }
  return all;
}();
// HOT.
uint8_t datatype_of_numpy(int type) {
  return static_cast<size_t>(type) < kOfNumpy.size() ? kOfNumpy[static_cast<size_t>(type)] : kOther;
}
uint8_t datatype_of_name(std::string_view name) {
  return datatype_where(name == "uint8" ? kBytes : kOther, [=](const TypeNames& one) { return one.name == name; });
}
uint8_t datatype_of_letter(std::string_view format) {
  return datatype_where(kBytes, [=](const TypeNames& one) { return format == std::string_view(&one.letter, 1); });
}

// The text of an attribute, "torch.float32" without the module's name; empty if there is none.
std::string attribute(PyObject* obj, const char* name) {
  const nb::object found = nb::steal(PyObject_GetAttrString(obj, name));
  const nb::object text = found.is_valid() ? nb::steal(PyObject_Str(found.ptr())) : nb::object();
  const char* words = text.is_valid() ? PyUnicode_AsUTF8(text.ptr()) : nullptr;
  const std::string all = words == nullptr ? "" : words;
  PyErr_Clear();
  return all.substr(all.rfind('.') + 1);
}

[[gnu::noinline]] bool check_datatype(const char* method, const char* name, PyObject* obj, uint64_t datatype) {
  PyTypeObject* type = Py_TYPE(obj);
  if (PyObject_TypeCheck(obj, g_mr_type) || PyTuple_Check(obj) || PyBytes_Check(obj) || PyByteArray_Check(obj)) {
    return true;
  }
  const bool numpy = g_ndarray != nullptr && PyType_IsSubtype(type, g_ndarray);
  std::string has;
  uint8_t found = kBytes;
  if (PyMemoryView_Check(obj)) {
    const char* format = PyMemoryView_GET_BUFFER(obj)->format;
    found = datatype_of_letter(format == nullptr ? "" : format);
    if (found != kBytes) has = call::datatype_name(found);
  } else if (has = attribute(obj, "dtype"); !has.empty()) {
    found = datatype_of_name(has);
    if (found == kOther && !numpy) found = kBytes;  // another library's name of a type
  } else if (const std::string letter = attribute(obj, "typecode"); !letter.empty()) {
    found = datatype_of_letter(letter);
    if (found != kBytes) has = call::datatype_name(found);
  }
  if (found == datatype || found == kBytes) return true;
  const uint64_t size = element_bytes(datatype);
  if (has == "bool" && size == 1) return true;
  return set_error(
      fi_err::kEINVAL, method, ": ", name, " has elements of type ", has, ", and the datatype is ",
      call::datatype_name(datatype), "\n  rule: elements are taken as they are in memory, never converted\n  try: ",
      (found == kOther ? std::string() : "datatype=fi." + call::datatype_name(found) + ", or "),
      "array.astype(fi.dtype_of(fi.", call::datatype_name(datatype), ")); array.view('u1') for the bytes as they are");
}

}  // namespace

bool fits_datatype(const char* method, const char* name, PyObject* obj, uint64_t datatype) {
  PyTypeObject* type = Py_TYPE(obj);
  if (type == g_mr_slice_type) return true;  // bytes of a region
  if (g_ndarray != nullptr && (type == g_ndarray || PyType_IsSubtype(type, g_ndarray))) [[likely]] {
    const PyArray_Descr* descr = PyArray_DESCR(reinterpret_cast<PyArrayObject*>(obj));
    const uint8_t found = datatype_of_numpy(descr->type_num);
    if (found == kBytes || (found == datatype && PyArray_ISNBO(descr->byteorder))) [[likely]]
      return true;
  }
  return check_datatype(method, name, obj, datatype);
}

bool datatype_of(const char* method, PyObject* array, uint64_t* out) {
  const nb::object dtype = nb::steal(PyObject_GetAttrString(array, "dtype"));
  const nb::object name = dtype.is_valid() ? nb::steal(PyObject_GetAttrString(dtype.ptr(), "name")) : nb::object();
  const char* text = name.is_valid() && PyUnicode_Check(name.ptr()) ? PyUnicode_AsUTF8(name.ptr()) : nullptr;
  PyErr_Clear();
  const std::string_view known = text == nullptr ? "" : text;
  const uint8_t found = known == "uint8" ? static_cast<uint8_t>(Datatype::uint8) : datatype_of_name(known);
  *out = found;
  if (found <= static_cast<uint8_t>(Datatype::float64)) return true;
  return type_error(
      "%s() needs the argument 'datatype' where the buffer is no array of an integer or floating-point dtype", method);
}

bool Buf::acquire_host(PyObject* obj, bool writable) {
  if (!acquire(obj, writable)) return false;
  if (iface == mem::kHmemSystem) return !bare || length == 0 || bare_is_there(*this, "a call", writable);
  return set_error(fi_err::kEINVAL, Py_TYPE(obj)->tp_name, " is device memory: give host memory");
}

bool bare_is_there(const Buf& buf, const char* method, bool writable) {
  if (mem::populate(reinterpret_cast<uint64_t>(buf.data), buf.length, writable)) return true;
  call::Why why;
  why.local = local_of(buf);
  why.use = writable ? call::LocalUse::result : call::LocalUse::source;
  why.set(nic::Refusal::no_page);
  return set_error(fi_err::kEFAULT, call::explain_local(method, why));
}

bool find_device(DomainBox& box, const Buf& buf, const char* method, std::optional<mem::DeviceMemory>* found) {
  static constexpr nic::RefusalErrnos kErrnos = nic::default_errnos();
  call::Why why;
  const auto r = call::find_device(*box.domain->nic(), box.config.hmem, local_of(buf), found, &why);
  if (r == nic::Refusal::none) return true;
  return set_error(kErrnos[static_cast<size_t>(r)], call::explain_local(method, why));
}

PyObject* Buf::hold() const {
  if (has_view) return PyMemoryView_FromObject(owner);
  PyObject* memory = region_memory();
  PyObject* o = keepalive != nullptr ? keepalive : memory != nullptr ? memory : owner;
  Py_INCREF(o);
  return o;
}

void register_buffers(Module& m) {
  m.about(
       "Registers the function (obj, writable) -> (address, nbytes, readonly, device, keepalive) of weft.buffers,\n"
       "which reads the buffer protocols that the binding itself does not read.")
      .def<"set_buffer_hook(f: Callable[[object, bool], tuple[int, int, bool, int, object]]) -> None">(
          [](nb::object f) {
            keep(g_buffer_hook, std::move(f));
            find_ctypes();
          });
  m.about(
       "Returns (address, nbytes, readonly, device, keepalive) of an object that data-path calls accept as a buffer.")
      .def<"describe_buffer(obj?: object, writable: bool = False) -> tuple[int, int, bool, int, object]">(
          [](nb::handle obj, bool writable) {
            Buf b;
            if (!b.acquire(obj.ptr(), writable)) throw nb::python_error();
            return nb::make_tuple(reinterpret_cast<uint64_t>(b.data), b.length, b.readonly, b.iface,
                                  nb::steal(b.hold()));
          });
}

}  // namespace weft::bind
