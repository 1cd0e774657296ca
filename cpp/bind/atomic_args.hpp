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
  using P = OneAtomic;
  static constexpr auto kParams =
      params<P>("buf", &P::buf, "desc", &P::desc, "compare", &P::compare, "compare_desc", &P::compare_desc, "result",
                &P::result, "result_desc", &P::result_desc, "dest_addr", &P::dest, "addr", &P::addr, "key", &P::key,
                "datatype", &P::datatype, "op", &P::op, "context", &P::context, "count", &P::count);
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
  using P = ListAtomic;
  static constexpr auto kParams =
      params<P>("iov", &P::iov, "desc", &P::desc, "comparev", &P::comparev, "compare_desc", &P::compare_desc, "resultv",
                &P::resultv, "result_desc", &P::result_desc, "dest_addr", &P::dest, "addr", &P::addr, "key", &P::key,
                "datatype", &P::datatype, "op", &P::op, "context", &P::context, "msg", &P::msg, "flags", &P::flags);
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

// The arguments of a call of a form.
template <Form form>
using AtomicArgsFor = std::conditional_t<form == Form::one || form == Form::inject, OneAtomic, ListAtomic>;

}  // namespace weft::bind
