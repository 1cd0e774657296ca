// cpp/array/element.cpp: see element.hpp.
#include "array/element.hpp"

namespace weft::array {

namespace {

using nic::AtomicOp;
using nic::Datatype;

constexpr NamedOp kOps[] = {
    {"sum", AtomicOp::sum},  {"prod", AtomicOp::prod}, {"min", AtomicOp::min},  {"max", AtomicOp::max},
    {"and", AtomicOp::band}, {"or", AtomicOp::bor},    {"xor", AtomicOp::bxor}, {"replace", AtomicOp::atomic_write}};

struct Known {
  char letter;
  int64_t bytes;
  ElementKind kind;
  Datatype datatype;
};
constexpr Known kKnown[] = {{'i', 1, ElementKind::integer, Datatype::int8},
                            {'i', 2, ElementKind::integer, Datatype::int16},
                            {'i', 4, ElementKind::integer, Datatype::int32},
                            {'i', 8, ElementKind::integer, Datatype::int64},
                            {'u', 1, ElementKind::natural, Datatype::uint8},
                            {'u', 2, ElementKind::natural, Datatype::uint16},
                            {'u', 4, ElementKind::natural, Datatype::uint32},
                            {'u', 8, ElementKind::natural, Datatype::uint64},
                            {'f', 2, ElementKind::real16, Datatype::float16},
                            {'f', 4, ElementKind::real32, Datatype::float32},
                            {'f', 8, ElementKind::real64, Datatype::float64},
                            {'c', 8, ElementKind::complex64, Datatype::float_complex},
                            {'c', 16, ElementKind::complex128, Datatype::double_complex}};

}  // namespace

ElementType element_type(char letter, int64_t bytes) noexcept {
  if (letter == 'b') return {.bytes = bytes, .kind = ElementKind::boolean};
  for (const Known& known : kKnown) {
    if (known.letter == letter && known.bytes == bytes) {
      return {.bytes = bytes, .kind = known.kind, .atomic = true, .datatype = known.datatype};
    }
  }
  return {.bytes = bytes};
}

const NamedOp* find_op(std::string_view name) noexcept {
  for (const NamedOp& known : kOps) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

}  // namespace weft::array
