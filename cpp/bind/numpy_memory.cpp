// cpp/bind/numpy_memory.cpp: NumPy's memory handler (NEP 49) over the NIC's segments, behind weft.allocator().
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION  // the first with handlers
#include <Python.h>
#include <numpy/arrayobject.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "bind/common.hpp"

namespace weft::bind {

namespace {

constexpr size_t kDiscardBytes = size_t{256} << 10;  // below, clearing costs less than the faults
constexpr char kCapsuleName[] = "mem_handler";       // NumPy looks for it

struct Handler {
  PyDataMem_Handler numpy;  // first: the capsule's pointer
  std::shared_ptr<NicBox> box;
  std::atomic<int64_t> live{0};  // number of allocations: a fork shares them with its child

  [[nodiscard]] mem::SegmentSet& segments() const { return box->host->nic().segments(); }
  [[nodiscard]] bool forked() const noexcept { return box->fork_generation != g_fork_generation; }
};

// NumPy calls these functions with or without the GIL, from any thread, and raises MemoryError for null.
void* allocate(void* context, size_t bytes) noexcept {
  auto& handler = *static_cast<Handler*>(context);
  if (bytes > mem::memory_bytes()) return nullptr;  // as malloc() refuses
  if (handler.forked()) return nullptr;  // the segments belong to the parent; the child leaves weft.allocator()
  try {
    void* address = handler.segments().allocate(bytes);
    handler.live.fetch_add(1, std::memory_order_relaxed);
    return address;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void release(void* context, void* address, size_t) noexcept {
  auto& handler = *static_cast<Handler*>(context);
  // In a forked child the pages belong to the parent, which frees them.
  if (address == nullptr || handler.forked()) return;
  handler.segments().free(static_cast<std::byte*>(address));
  handler.live.fetch_sub(1, std::memory_order_relaxed);
}

void* allocate_zeroed(void* context, size_t count, size_t size) noexcept {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return nullptr;
  void* address = allocate(context, bytes);
  if (address == nullptr) return nullptr;
  if (bytes >= kDiscardBytes) {  // its pages come back as zeros when they are touched, as calloc()'s
    static_cast<Handler*>(context)->segments().discard(static_cast<std::byte*>(address));
  } else {
    std::memset(address, 0, bytes);
  }
  return address;
}

void* reallocate(void* context, void* address, size_t bytes) noexcept {
  if (address == nullptr) return allocate(context, bytes);
  const auto& handler = *static_cast<Handler*>(context);
  void* moved = allocate(context, bytes);
  if (moved == nullptr) return nullptr;
  std::memcpy(moved, address, std::min(bytes, handler.segments().allocated(static_cast<std::byte*>(address))));
  release(context, address, 0);
  return moved;
}

void delete_handler(PyObject* capsule) noexcept {
  delete static_cast<Handler*>(PyCapsule_GetPointer(capsule, kCapsuleName));
}

void need_numpy() {
  if (_import_array() < 0) throw nb::python_error();
}

}  // namespace

void register_numpy_memory(Module& m) {
  m.about(
       "A NumPy memory handler (NEP 49) that allocates in the NIC's segments. Each array keeps the handler that made "
       "it.")
      .def<"numpy_memory_handler(nic: Nic) -> object">([](PyNic& nic) {
        need_numpy();
        auto handler = std::make_unique<Handler>();
        std::strcpy(handler->numpy.name, "weft");
        handler->numpy.version = 1;
        handler->numpy.allocator = {handler.get(), &allocate, &allocate_zeroed, &reallocate, &release};
        handler->box = box_of(nic);
        PyObject* capsule = PyCapsule_New(handler.get(), kCapsuleName, &delete_handler);
        if (capsule == nullptr) throw nb::python_error();
        (void)handler.release();
        return nb::steal(capsule);
      });
  m.about("The number of live arrays that a handler of numpy_memory_handler() has made.")
      .def<"numpy_memory_live(handler)">([](const nb::object& handler) {
        auto* found = static_cast<Handler*>(PyCapsule_GetPointer(handler.ptr(), kCapsuleName));
        if (found == nullptr) throw nb::python_error();
        return found->live.load(std::memory_order_relaxed);
      });
  m.about("Sets NumPy's memory handler in this context (None: NumPy's default). Returns the previous handler.")
      .def<"set_numpy_memory_handler(handler?: object | None) -> object">([](const nb::object& handler) {
        need_numpy();
        PyObject* before = PyDataMem_SetHandler(handler.is_none() ? nullptr : handler.ptr());
        if (before == nullptr) throw nb::python_error();
        return nb::steal(before);
      });
}

}  // namespace weft::bind
