// cpp/bind/atomic_args.hpp: the parameters of fi_atomic(3)'s calls, which those of a real libfabric's endpoints have
// too.
#pragma once

#include "bind/arglist.hpp"
#include "bind/params.hpp"

namespace weft::bind {

// The arguments of a call with one buffer of each kind; null where absent.
struct OneAtomic {
  PyObject *buf = nullptr, *desc = nullptr;
  PyObject *compare = nullptr, *compare_desc = nullptr;
  PyObject *result = nullptr, *result_desc = nullptr;
  PyObject *dest = nullptr, *addr = nullptr, *key = nullptr;
  PyObject *datatype = nullptr, *op = nullptr;
  PyObject *context = nullptr, *count = nullptr;
  static constexpr auto kParams = std::to_array<Param<OneAtomic>>({{"buf", &OneAtomic::buf},
                                                                   {"desc", &OneAtomic::desc},
                                                                   {"compare", &OneAtomic::compare},
                                                                   {"compare_desc", &OneAtomic::compare_desc},
                                                                   {"result", &OneAtomic::result},
                                                                   {"result_desc", &OneAtomic::result_desc},
                                                                   {"dest_addr", &OneAtomic::dest},
                                                                   {"addr", &OneAtomic::addr},
                                                                   {"key", &OneAtomic::key},
                                                                   {"datatype", &OneAtomic::datatype},
                                                                   {"op", &OneAtomic::op},
                                                                   {"context", &OneAtomic::context},
                                                                   {"count", &OneAtomic::count}});
};

// The arguments of a call with lists; null where absent. The ranges are in `rma`, or addr and key describe the only
// one.
struct ListAtomic {
  PyObject *iov = nullptr, *iov_count = nullptr, *desc = nullptr;
  PyObject *comparev = nullptr, *compare_desc = nullptr;
  PyObject *resultv = nullptr, *result_desc = nullptr;
  PyObject *dest = nullptr, *addr = nullptr, *key = nullptr;
  PyObject *rma = nullptr, *rma_count = nullptr;
  PyObject *datatype = nullptr, *op = nullptr;
  PyObject *context = nullptr, *data = nullptr;
  PyObject *msg = nullptr, *flags = nullptr;
  static constexpr auto kParams = std::to_array<Param<ListAtomic>>({{"iov", &ListAtomic::iov},
                                                                    {"desc", &ListAtomic::desc},
                                                                    {"comparev", &ListAtomic::comparev},
                                                                    {"compare_desc", &ListAtomic::compare_desc},
                                                                    {"resultv", &ListAtomic::resultv},
                                                                    {"result_desc", &ListAtomic::result_desc},
                                                                    {"dest_addr", &ListAtomic::dest},
                                                                    {"addr", &ListAtomic::addr},
                                                                    {"key", &ListAtomic::key},
                                                                    {"datatype", &ListAtomic::datatype},
                                                                    {"op", &ListAtomic::op},
                                                                    {"context", &ListAtomic::context},
                                                                    {"msg", &ListAtomic::msg},
                                                                    {"flags", &ListAtomic::flags}});
};

// The fields of an fi.MsgAtomic, as owned references.
struct AtomicFields {
  AtomicFields(PyObject* msg, const char* type)
      : attrs{Attr(msg, "msg_iov", type),  Attr(msg, "iov_count", type),
              Attr(msg, "rma_iov", type),  Attr(msg, "rma_iov_count", type),
              Attr(msg, "addr", type),     Attr(msg, "desc", type),
              Attr(msg, "context", type),  Attr(msg, "data", type),
              Attr(msg, "datatype", type), Attr(msg, "op", type)} {}
  // False: a Python error is set.
  bool read(ListAtomic* a) const {
    PyObject** const to[] = {&a->iov,  &a->iov_count, &a->rma,  &a->rma_count, &a->dest,
                             &a->desc, &a->context,   &a->data, &a->datatype,  &a->op};
    for (size_t i = 0; i < std::size(to); ++i) {
      if ((*to[i] = attrs[i].value) == nullptr) return false;
    }
    return true;
  }
  Attr attrs[10];
};

// Defines the methods of fi_atomic(3): `one` has their buffers in OneAtomic a, and `list` in ListAtomic a.
#define WEFT_ATOMIC_METHODS(prefix, Family, one, list, message)                                                      \
  WEFT_METHOD(prefix##atomic, OneAtomic, "atomic", "buf! desc dest_addr! addr key datatype! op! context|count",      \
              one(self, M::kName, Family::base, a, false))                                                           \
  WEFT_METHOD(prefix##inject_atomic, OneAtomic, "inject_atomic", "buf! dest_addr! addr key datatype! op!|count",     \
              one(self, M::kName, Family::base, a, true))                                                            \
  WEFT_METHOD(prefix##fetch_atomic, OneAtomic, "fetch_atomic",                                                       \
              "buf! desc result! result_desc dest_addr! addr key datatype! op! context|count",                       \
              one(self, M::kName, Family::fetch, a, false))                                                          \
  WEFT_METHOD(prefix##compare_atomic, OneAtomic, "compare_atomic",                                                   \
              "buf! desc compare! compare_desc result! result_desc dest_addr! addr key datatype! op! context|count", \
              one(self, M::kName, Family::compare, a, false))                                                        \
  WEFT_METHOD(prefix##atomicv, ListAtomic, "atomicv", "iov! desc dest_addr! addr key datatype! op! context",         \
              list(self, M::kName, Family::base, a))                                                                 \
  WEFT_METHOD(prefix##fetch_atomicv, ListAtomic, "fetch_atomicv",                                                    \
              "iov! desc resultv! result_desc dest_addr! addr key datatype! op! context",                            \
              list(self, M::kName, Family::fetch, a))                                                                \
  WEFT_METHOD(prefix##compare_atomicv, ListAtomic, "compare_atomicv",                                                \
              "iov! desc comparev! compare_desc resultv! result_desc dest_addr! addr key datatype! op! context",     \
              list(self, M::kName, Family::compare, a))                                                              \
  WEFT_METHOD(prefix##atomicmsg, ListAtomic, "atomicmsg", "msg! flags", message(self, M::kName, Family::base, a))    \
  WEFT_METHOD(prefix##fetch_atomicmsg, ListAtomic, "fetch_atomicmsg", "msg! resultv! result_desc flags",             \
              message(self, M::kName, Family::fetch, a))                                                             \
  WEFT_METHOD(prefix##compare_atomicmsg, ListAtomic, "compare_atomicmsg",                                            \
              "msg! comparev! compare_desc resultv! result_desc flags", message(self, M::kName, Family::compare, a))

}  // namespace weft::bind
