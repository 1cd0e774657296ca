// cpp/bind/elements_value.cpp: from Python numbers to elements and back, as NumPy converts them, and local arrays.
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "bind/elements.hpp"

namespace weft::bind {

namespace {

template <typename T>
bool put(T value, std::byte* out) {
  std::memcpy(out, &value, sizeof(T));
  return true;
}

// A Python float, or an integer that has at most 64 bits.
bool real_of(PyObject* value, double* out) {
  if (PyFloat_CheckExact(value) || PyArray_IsScalar(value, Double)) {
    *out = PyFloat_AS_DOUBLE(value);  // np.float64 is a float
    return true;
  }
  if (!PyLong_CheckExact(value)) return false;
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return false;
  *out = static_cast<double>(n);
  return true;
}

// False: the number becomes infinite, of which NumPy warns.
bool narrow(double from, float* to) {
  *to = static_cast<float>(from);
  return !std::isinf(*to) || std::isinf(from);
}

bool store_integer(const Place& p, PyObject* value, std::byte* out) {
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return false;
  switch (p.item) {
    case 1:
      return n == static_cast<int8_t>(n) && put(static_cast<int8_t>(n), out);
    case 2:
      return n == static_cast<int16_t>(n) && put(static_cast<int16_t>(n), out);
    case 4:
      return n == static_cast<int32_t>(n) && put(static_cast<int32_t>(n), out);
    default:
      return put(static_cast<int64_t>(n), out);
  }
}

bool store_natural(const Place& p, PyObject* value, std::byte* out, bool wraps) {
  int overflow = 0;
  const long long signed_n = PyLong_AsLongLongAndOverflow(value, &overflow);
  auto n = static_cast<uint64_t>(signed_n);
  if (overflow > 0 && p.item == 8) {
    n = PyLong_AsUnsignedLongLong(value);
    if (n == ~uint64_t{0} && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return false;
    }
  } else if (overflow != 0 || (signed_n < 0 && !wraps)) {
    return false;
  }
  const bool wrapped = overflow == 0 && signed_n < 0;
  switch (p.item) {
    case 1:
      return (wrapped || n == static_cast<uint8_t>(n)) && put(static_cast<uint8_t>(n), out);
    case 2:
      return (wrapped || n == static_cast<uint16_t>(n)) && put(static_cast<uint16_t>(n), out);
    case 4:
      return (wrapped || n == static_cast<uint32_t>(n)) && put(static_cast<uint32_t>(n), out);
    default:
      return put(n, out);
  }
}

}  // namespace

void learn_dtype(Place* p) {
  const int type = p->descr->type_num;
  const bool builtin = type < NPY_NTYPES_LEGACY && PyArray_ISNBO(p->descr->byteorder);
  p->scalar =
      builtin && !PyTypeNum_ISFLEXIBLE(type) && type != NPY_OBJECT && static_cast<size_t>(p->item) <= kValueBytesMax;
  if (!p->scalar) return;
  using nic::Datatype;
  const auto set = [&](ValueKind kind, Datatype datatype) {
    p->value = kind;
    p->datatype = datatype;
    p->atomic = true;
  };
  const npy_intp size = p->item;
  switch (p->descr->kind) {
    case 'b':
      p->value = ValueKind::boolean;
      break;
    case 'i':
      set(ValueKind::integer, size == 1   ? Datatype::int8
                              : size == 2 ? Datatype::int16
                              : size == 4 ? Datatype::int32
                                          : Datatype::int64);
      break;
    case 'u':
      set(ValueKind::natural, size == 1   ? Datatype::uint8
                              : size == 2 ? Datatype::uint16
                              : size == 4 ? Datatype::uint32
                                          : Datatype::uint64);
      break;
    case 'f':
      if (size == 2) set(ValueKind::real16, Datatype::float16);
      if (size == 4) set(ValueKind::real32, Datatype::float32);
      if (size == 8) set(ValueKind::real64, Datatype::float64);
      break;
    case 'c':
      if (size == 8) set(ValueKind::complex64, Datatype::float_complex);
      if (size == 16) set(ValueKind::complex128, Datatype::double_complex);
      break;
    default:  // dates, times, long doubles: read here, written by NumPy
      break;
  }
}

bool store_value(const Place& p, PyObject* value, std::byte* out, bool wraps) {
  double real = 0;
  float single = 0;
  switch (p.value) {
    case ValueKind::none:
      return false;
    case ValueKind::boolean:
      if (PyBool_Check(value)) return put<uint8_t>(value == Py_True ? 1 : 0, out);
      break;
    case ValueKind::integer:
      if (PyLong_CheckExact(value)) [[likely]]
        return store_integer(p, value, out);
      break;
    case ValueKind::natural:
      if (PyLong_CheckExact(value)) [[likely]]
        return store_natural(p, value, out, wraps);
      break;
    case ValueKind::real16:
      if (real_of(value, &real)) {
        const uint16_t bits = nic::encode_float16(real);
        return (std::isinf(real) || (bits & 0x7fff) != 0x7c00) && put(bits, out);
      }
      break;
    case ValueKind::real32:
      if (real_of(value, &real)) return narrow(real, &single) && put(single, out);
      break;
    case ValueKind::real64:
      if (real_of(value, &real)) return put(real, out);
      break;
    case ValueKind::complex64:
    case ValueKind::complex128: {
      Py_complex z{0, 0};
      if (PyComplex_CheckExact(value)) {
        z = PyComplex_AsCComplex(value);
      } else if (!real_of(value, &z.real)) {
        break;
      }
      if (p.value == ValueKind::complex128) return put(z, out);
      std::array<float, 2> parts;
      return narrow(z.real, &parts[0]) && narrow(z.imag, &parts[1]) && put(parts, out);
    }
  }
  // A NumPy scalar of the array's own type.
  if (Py_TYPE(value) != p.descr->typeobj) return false;
  PyArray_ScalarAsCtype(value, out);
  return true;
}

PyObject* load_value(const Place& p, const std::byte* from) {
  return PyArray_Scalar(const_cast<std::byte*>(from), p.descr, nullptr);
}

std::byte* same_array(const Place& p, PyObject* object, const Picked& s, bool writable) {
  if (!PyArray_CheckExact(object)) return nullptr;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  PyArray_Descr* const descr = PyArray_DESCR(array);
  if (PyArray_NDIM(array) != s.dims || !PyArray_IS_C_CONTIGUOUS(array)) return nullptr;
  if (descr != p.descr && !PyArray_EquivTypes(descr, p.descr)) return nullptr;
  if (writable && !PyArray_ISWRITEABLE(array)) return nullptr;
  for (int i = 0; i < s.dims; ++i) {
    if (PyArray_DIM(array, i) != s.shape[i]) return nullptr;
  }
  return static_cast<std::byte*>(PyArray_DATA(array));
}

PyTypeObject* g_copy_type = nullptr;

// ---- memory of arrays
// ------------------------------------------------------------------------------------------------------------------
// NumPy keeps no freed blocks of 1 KiB and more, and malloc with free takes longer than the copy (35 ns and 20 ns for
// 4 KiB). Arrays that t[a:b] returns have their elements in a Block, which is their base; the last few blocks of each
// size stay here for the next array.

namespace {

constexpr uint64_t kBlockUnit = 1024, kBlockUnitsMax = 16;
constexpr uint32_t kBlocksKept = 4;  // of each size: 540 KiB together

struct alignas(kCacheLine) Block {
  PyObject ob_base;
  Block* next;  // while no array has it
  uint64_t units;
  // The memory follows.
  [[nodiscard]] std::byte* memory() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
};

// Under the GIL, or the seam.
struct Kept {
  Block* first = nullptr;
  uint32_t count = 0;
} g_kept[kBlockUnitsMax + 1];
PyTypeObject* g_block_type = nullptr;

void block_dealloc(PyObject* self) {
  auto* block = reinterpret_cast<Block*>(self);
  Kept& kept = g_kept[block->units];
  if (kept.count < kBlocksKept) {
    block->next = std::exchange(kept.first, block);
    ++kept.count;
  } else {
    std::free(block);
  }
}

bool make_block_type() {
  static PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("The memory of an array that t[key] returned.")},
                                {Py_tp_dealloc, slot<block_dealloc>()},
                                {0, nullptr}};
  static PyType_Spec spec{"weft._nic.Block", sizeof(Block), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                          slots};
  g_block_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));  // kept forever
  return g_block_type != nullptr;
}

// HOT. A new reference. The block holds none to its type, which lives forever.
Block* new_block(uint64_t bytes) {
  if (g_block_type == nullptr && !make_block_type()) return nullptr;
  const uint64_t units = (bytes + kBlockUnit - 1) / kBlockUnit;
  Kept& kept = g_kept[units];
  Block* block = kept.first;
  if (block != nullptr) [[likely]] {
    kept.first = block->next;
    --kept.count;
  } else {
    block = static_cast<Block*>(std::aligned_alloc(kCacheLine, sizeof(Block) + units * kBlockUnit));
    if (block == nullptr) {
      PyErr_NoMemory();
      return nullptr;
    }
    block->units = units;
  }
  std::memset(&block->ob_base, 0, sizeof(PyObject));
  PyObject_Init(&block->ob_base, g_block_type);
  Py_DECREF(g_block_type);
  return block;
}

}  // namespace

PyObject* new_array(const Place& p, const Picked& s, bool read_only) {
  PyTypeObject* type = read_only && g_copy_type != nullptr ? g_copy_type : &PyArray_Type;
  Block* block = nullptr;
  if (const uint64_t bytes = s.bytes(); read_only && bytes >= kBlockUnit && bytes <= kBlockUnit * kBlockUnitsMax) {
    block = new_block(bytes);
    if (block == nullptr) return nullptr;
  }
  Py_INCREF(p.descr);
  PyObject* found =
      PyArray_NewFromDescr(type, p.descr, s.dims, s.shape, nullptr, block != nullptr ? block->memory() : nullptr,
                           block != nullptr ? NPY_ARRAY_CARRAY_RO : 0, nullptr);
  if (found == nullptr) {
    if (block != nullptr) Py_DECREF(&block->ob_base);
    return nullptr;
  }
  if (block != nullptr && PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(found), &block->ob_base) < 0) {
    Py_DECREF(found);
    return nullptr;
  }
  if (read_only) PyArray_CLEARFLAGS(reinterpret_cast<PyArrayObject*>(found), NPY_ARRAY_WRITEABLE);
  return found;
}

}  // namespace weft::bind
