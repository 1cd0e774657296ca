// cpp/bind/reduction.cpp: the reduction unit without a network: queries, and folds into accumulators.
#include "bind/reduction.hpp"

#include <limits>
#include <optional>
#include <string>

#include "nic/reduction.hpp"

namespace weft::bind {

namespace {

template <typename T>
bool fits(uint64_t number) noexcept {
  return number <= std::numeric_limits<T>::max();
}

std::optional<nic::ReduceOp> opcode(uint64_t op, uint64_t datatype, bool general, bool prefer_numbers = false) {
  if (!fits<uint16_t>(op) || !fits<uint16_t>(datatype)) return std::nullopt;
  const auto type = static_cast<nic::Datatype>(datatype);
  const auto number = static_cast<uint16_t>(op);
  return general ? nic::general_reduce_op(number, type) : nic::reduce_op(number, type, prefer_numbers);
}

bool refuse(const char* method, const std::string& why) {
  set_error(fi_err::kEINVAL, std::string(method) + ": " + why);
  return false;
}

bool has_room(const char* method, const char* name, const Buf& buf, size_t bytes) {
  if (buf.length >= bytes) return true;
  return refuse(method, std::string(name) + " has " + std::to_string(buf.length) + " bytes; " + std::to_string(bytes) +
                            " are needed");
}

constexpr const char* kNoAccumulator =
    "these 64 bytes are no accumulator\n  try: zeros before the first call, and no other writes to them";

std::optional<nic::Partial> source(const char* method, const Buf& buf, uint64_t count, uint64_t datatype, uint64_t op,
                                   bool general, bool prefer_numbers) {
  const auto found = opcode(op, datatype, general, prefer_numbers);
  if (!found) {
    refuse(method, "operation " + std::to_string(op) + " on datatype " + std::to_string(datatype) +
                       " is no reduction here\n  try: Domain.query_collective, which knows the supported pairs");
    return std::nullopt;
  }
  const auto type = static_cast<nic::Datatype>(datatype);
  const auto bytes = nic::payload_bytes(*found, type, count);
  if (!bytes) {
    refuse(method, "count " + std::to_string(count) + " of datatype " + std::to_string(datatype) +
                       "\n  rule: at least 1, at most 32 bytes; exactly 1 for MINMAXLOC and REPSUM");
    return std::nullopt;
  }
  if (!has_room(method, "buf", buf, *bytes)) return std::nullopt;
  return nic::contribution(*found, type, buf.data, count);
}

}  // namespace

bool fold_buffers(const char* method, PyObject* buf, PyObject* result, uint64_t count, uint64_t datatype, uint64_t op,
                  bool pre_reduced, bool general, bool prefer_numbers) {
  if (buf == Py_None || result == Py_None) return refuse(method, "buf and result are needed, not None");
  Buf from, into;
  if (!from.acquire_host(buf, false) || !into.acquire_host(result, true)) return false;
  if (!has_room(method, "result", into, nic::kReduceAccumulatorBytes)) return false;
  if (pre_reduced && !has_room(method, "buf", from, nic::kReduceAccumulatorBytes)) return false;
  if ((from.bare && !bare_is_there(from, method, false)) || (into.bare && !bare_is_there(into, method, true))) {
    return false;
  }
  const auto partial =
      pre_reduced ? nic::pre_reduced(from.data) : source(method, from, count, datatype, op, general, prefer_numbers);
  if (!partial) return pre_reduced ? refuse(method, std::string("buf: ") + kNoAccumulator) : false;
  if (!nic::fold(into.data, *partial)) return refuse(method, std::string("result: ") + kNoAccumulator);
  return true;
}

void register_reduction(Module& m) {
  m.def(
      "reduction_bytes",
      [](uint64_t op, uint64_t datatype, uint64_t count, bool general) -> std::optional<size_t> {
        const auto found = opcode(op, datatype, general);
        if (!found) return std::nullopt;
        return nic::payload_bytes(*found, static_cast<nic::Datatype>(datatype), count).value_or(0);
      },
      nb::arg("op"), nb::arg("datatype"), nb::arg("count"), nb::arg("general") = false,
      "Bytes of user data of a reduction; 0 if it cannot have that many elements; None if the NIC has no such\n"
      "operation on the datatype. general: operations of the general provider.");
  m.def(
      "fold",
      [](nb::handle buf, nb::handle result, uint64_t count, uint64_t datatype, uint64_t op, bool pre_reduced,
         bool general, bool prefer_numbers) {
        if (!fold_buffers("fold", buf.ptr(), result.ptr(), count, datatype, op, pre_reduced, general, prefer_numbers)) {
          throw nb::python_error();
        }
      },
      nb::arg("buf").none(), nb::arg("result").none(), nb::arg("count"), nb::arg("datatype"), nb::arg("op"),
      nb::arg("pre_reduced") = false, nb::arg("general") = false, nb::arg("prefer_numbers") = false,
      "Folds count elements of buf into the accumulator result (64 bytes, zeroed first): a reduction with FI_MORE.\n"
      "pre_reduced: buf is an accumulator too; count, datatype and op are then not read. prefer_numbers: MIN, MAX and\n"
      "MINMAXLOC of a NaN and a number are the number.");
  m.def(
      "unfold",
      [](nb::handle accumulator, nb::handle out, uint64_t count, uint64_t datatype) -> std::optional<int> {
        Buf from, into;
        if (!from.acquire_host(accumulator.ptr(), false) || !into.acquire_host(out.ptr(), true)) {
          throw nb::python_error();
        }
        if (!has_room("unfold", "accumulator", from, nic::kReduceAccumulatorBytes)) throw nb::python_error();
        const auto partial = nic::pre_reduced(from.data);
        if (!partial) return std::nullopt;
        const auto type = static_cast<nic::Datatype>(datatype);
        const auto bytes = fits<uint16_t>(datatype) ? nic::payload_bytes(partial->op, type, count) : std::nullopt;
        if (!bytes) {
          refuse("unfold", "count " + std::to_string(count) + " of datatype " + std::to_string(datatype) +
                               " does not fit the accumulator's operation");
          throw nb::python_error();
        }
        if (!has_room("unfold", "out", into, *bytes)) throw nb::python_error();
        nic::result(*partial, type, into.data, count);
        return static_cast<int>(partial->status);
      },
      nb::arg("accumulator"), nb::arg("out"), nb::arg("count"), nb::arg("datatype"),
      "Writes what an accumulator holds as count elements to out, and returns its status (enum ReduceStatus of\n"
      "nic/reduction.hpp). None: the accumulator is empty, or no accumulator.");
}

}  // namespace weft::bind
