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
  static constexpr auto kParams = std::to_array<Param<CollectiveArgs>>({{"buf", &CollectiveArgs::buf},
                                                                        {"count", &CollectiveArgs::count},
                                                                        {"desc", &CollectiveArgs::desc},
                                                                        {"result", &CollectiveArgs::result},
                                                                        {"result_desc", &CollectiveArgs::result_desc},
                                                                        {"coll_addr", &CollectiveArgs::group},
                                                                        {"root_addr", &CollectiveArgs::root},
                                                                        {"datatype", &CollectiveArgs::datatype},
                                                                        {"op", &CollectiveArgs::op},
                                                                        {"flags", &CollectiveArgs::flags},
                                                                        {"context", &CollectiveArgs::context}});
};

// Defines the methods of fi_collective(3) by barrier(), broadcast() and reduce().
#define WEFT_COLLECTIVE_METHODS(prefix)                                                                            \
  WEFT_METHOD(prefix##barrier, CollectiveArgs, "barrier", "coll_addr context|flags", barrier(self, M::kName, a))   \
  WEFT_METHOD(prefix##barrier2, CollectiveArgs, "barrier2", "coll_addr flags context", barrier(self, M::kName, a)) \
  WEFT_METHOD(prefix##broadcast, CollectiveArgs, "broadcast",                                                      \
              "buf! count desc coll_addr root_addr datatype flags context", broadcast(self, M::kName, a))          \
  WEFT_METHOD(prefix##reduce, CollectiveArgs, "reduce",                                                            \
              "buf! count desc result result_desc coll_addr root_addr datatype op flags context",                  \
              reduce(self, M::kName, true, a))                                                                     \
  WEFT_METHOD(prefix##allreduce, CollectiveArgs, "allreduce",                                                      \
              "buf! count desc result result_desc coll_addr datatype op flags context",                            \
              reduce(self, M::kName, false, a))

}  // namespace weft::bind
