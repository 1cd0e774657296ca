// cpp/bind/reduction.cpp: the folds of call/fold.hpp for Python.
#include "bind/reduction.hpp"

#include <optional>
#include <string>

#include "call/fold.hpp"

namespace weft::bind {

namespace {

// True if `why` is empty; otherwise false with an error set.
bool done(const char* method, const std::string& why) {
  if (why.empty()) return true;
  set_error(fi_err::kEINVAL, std::string(method) + ": " + why);
  return false;
}

std::span<std::byte> span_of(const Buf& b) {
  return {b.data, b.length};
}

}  // namespace

bool fold_buffers(const char* method, PyObject* buf, PyObject* result, uint64_t count, uint64_t datatype, uint64_t op,
                  bool pre_reduced, bool general, bool prefer_numbers) {
  if (buf == Py_None || result == Py_None) return done(method, "buf and result are needed, not None");
  Buf from, into;
  if (!from.acquire_host(buf, false) || !into.acquire_host(result, true)) return false;
  if ((from.bare && !bare_is_there(from, method, false)) || (into.bare && !bare_is_there(into, method, true))) {
    return false;
  }
  const call::Reduction reduction{
      .op = op, .datatype = datatype, .count = count, .general = general, .prefer_numbers = prefer_numbers};
  return done(method, call::fold(span_of(from), span_of(into), reduction, pre_reduced));
}

void register_reduction(Module& m) {
  m.about(
       "Bytes of user data of a reduction; 0 if it cannot have that many elements; None if the NIC has no such\n"
       "operation on the datatype. general: operations of the general provider.")
      .def<"reduction_bytes(op, datatype, count, general=False)">(
          [](uint64_t op, uint64_t datatype, uint64_t count, bool general) -> std::optional<size_t> {
            return call::Reduction{.op = op, .datatype = datatype, .count = count, .general = general}.bytes();
          });
  m.about(
       "Folds count elements of buf into the accumulator result (64 bytes, zeroed first): a reduction with FI_MORE.\n"
       "pre_reduced: buf is an accumulator too; count, datatype and op are then not read. prefer_numbers: MIN, MAX "
       "and\n"
       "MINMAXLOC of a NaN and a number are the number.")
      .def<"fold(buf?, result?, count, datatype, op, pre_reduced=False, general=False, prefer_numbers=False)">(
          [](nb::handle buf, nb::handle result, uint64_t count, uint64_t datatype, uint64_t op, bool pre_reduced,
             bool general, bool prefer_numbers) {
            if (!fold_buffers("fold", buf.ptr(), result.ptr(), count, datatype, op, pre_reduced, general,
                              prefer_numbers)) {
              throw nb::python_error();
            }
          });
  m.about(
       "Writes what an accumulator holds as count elements to out, and returns its status (enum ReduceStatus of\n"
       "nic/reduction.hpp). None: the accumulator is empty, or no accumulator.")
      .def<"unfold(accumulator, out, count, datatype)">(
          [](nb::handle accumulator, nb::handle out, uint64_t count, uint64_t datatype) -> std::optional<int> {
            Buf from, into;
            if (!from.acquire_host(accumulator.ptr(), false) || !into.acquire_host(out.ptr(), true)) {
              throw nb::python_error();
            }
            int status = -1;
            if (!done("unfold", call::unfold(span_of(from), span_of(into), count, datatype, &status))) {
              throw nb::python_error();
            }
            return status < 0 ? std::nullopt : std::optional(status);
          });
}

}  // namespace weft::bind
