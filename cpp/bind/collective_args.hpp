// cpp/bind/collective_args.hpp: the parameters of fi_collective(3)'s calls, which those of a real libfabric have too.
#pragma once

#include "bind/params.hpp"

namespace weft::bind {

// Null where absent.
struct CollectiveArgs {
  PyObject *buf = nullptr, *count = nullptr, *desc = nullptr;
  PyObject *result = nullptr, *result_desc = nullptr;
  PyObject *group = nullptr, *root = nullptr;
  PyObject *datatype = nullptr, *op = nullptr, *flags = nullptr, *context = nullptr;
  using P = CollectiveArgs;
  static constexpr auto kParams =
      params<P>("buf", &P::buf, "count", &P::count, "desc", &P::desc, "result", &P::result, "result_desc",
                &P::result_desc, "coll_addr", &P::group, "root_addr", &P::root, "datatype", &P::datatype, "op", &P::op,
                "flags", &P::flags, "context", &P::context);
};

}  // namespace weft::bind
