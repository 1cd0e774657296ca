// cpp/bind/elements_value.cpp: from Python numbers to elements and back, as NumPy converts them, and local arrays.
#include <cstdlib>
#include <cstring>
#include <utility>

#include "bind/elements.hpp"

namespace weft::bind {

namespace {

// HOT. False: no number that becomes an element without NumPy.
bool to_number(PyObject* value, array::Number* out) {
  using Kind = array::Number::Kind;
  if (PyLong_CheckExact(value)) [[likely]] {
    int overflow = 0;
    out->kind = Kind::integer;
    out->bits = static_cast<uint64_t>(PyLong_AsLongLongAndOverflow(value, &overflow));
    if (overflow == 0) [[likely]]
      return true;
    if (overflow < 0) return false;
    out->kind = Kind::large;
    out->bits = PyLong_AsUnsignedLongLong(value);
    if (out->bits != ~uint64_t{0} || PyErr_Occurred() == nullptr) return true;
    PyErr_Clear();
    return false;
  }
  if (PyFloat_CheckExact(value) || PyArray_IsScalar(value, Double)) {
    out->kind = Kind::real;
    out->real = PyFloat_AS_DOUBLE(value);  // np.float64 is a float
    return true;
  }
  if (PyBool_Check(value)) {
    out->kind = Kind::boolean;
    out->bits = value == Py_True ? 1 : 0;
    return true;
  }
  if (!PyComplex_CheckExact(value)) return false;
  const Py_complex z = PyComplex_AsCComplex(value);
  *out = {.kind = Kind::complex, .real = z.real, .imag = z.imag};
  return true;
}

}  // namespace

void learn_dtype(Place* p) {
  const int type = p->descr->type_num;
  const int64_t bytes = PyDataType_ELSIZE(p->descr);
  p->type.bytes = bytes;
  p->scalar = type < NPY_NTYPES_LEGACY && PyArray_ISNBO(p->descr->byteorder) && !PyTypeNum_ISFLEXIBLE(type) &&
              type != NPY_OBJECT && static_cast<size_t>(bytes) <= kElementBytesMax;
  if (p->scalar) p->type = array::element_type(p->descr->kind, bytes);
}

bool store_value(const Place& p, PyObject* value, std::byte* out, bool wraps) {
  array::Number number;
  if (p.type.kind == array::ElementKind::none) return false;
  if (to_number(value, &number) && array::store(p.type, number, out, wraps)) [[likely]]
    return true;
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

// ---- memory of arrays ---------------------------------------------------------------------------------------------
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
