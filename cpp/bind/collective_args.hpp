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

// False with an error set.
inline bool fail(int code, const char* method, const std::string& why) {
  set_error(code, std::string(method) + ": " + why);
  return false;
}
// The number of a group: coll_addr, or the `addr` of the object that it is.
bool to_coll_addr(const char* method, PyObject* coll_addr, uint64_t* number);
// The fi_addr of a root.
bool to_root_addr(const char* method, PyObject* root, uint64_t* name);

}  // namespace weft::bind
