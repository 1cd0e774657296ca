// cpp/call/collective.hpp: the calls of fi_collective(3): checked by the endpoint's rules, then posted, or folded
// without a network (FI_MORE). Also what an endpoint's provider decides of each group.
//
// A call takes three steps, because only a member that receives the result needs a buffer for it: check(),
// check_result() if `receives`, post(). Where `folds`, there is only check(), and then fold() in place of the rest.
//
// HOT: no step allocates memory unless it refuses; a refusal's text is made by explain(), for those who read it.
#pragma once

#include <memory>
#include <string>

#include "call/call.hpp"
#include "nic/group.hpp"

namespace weft::call {

enum class CollectiveKind : uint8_t { barrier, broadcast, reduce, allreduce };

// `endpoint`: the refusal in CollectiveWhy::of_endpoint.
enum class CollectiveFault : uint8_t {
  none,
  endpoint,
  flags,
  reduction_flags,
  no_buffer,
  no_result_of_root,
  too_short,
  datatype,
  pair,
  count,
  accumulator,
  fold,
  no_group,
  root,
  busy,
  not_joined,
  closed,
};

// A refusal and the values that its text needs.
struct CollectiveWhy {
  CollectiveFault fault = CollectiveFault::none;
  Why of_endpoint;
  uint64_t asked = 0, limit = 0, element = 0;
  const char* what = "";  // the argument
  std::string text;       // of a fold

  CollectiveFault set(CollectiveFault f) noexcept { return fault = f; }
  CollectiveFault set(CollectiveFault f, uint64_t found, uint64_t allowed = 0) noexcept {
    asked = found, limit = allowed;
    return fault = f;
  }
  CollectiveFault set(Refusal r) noexcept {
    of_endpoint.set(r);
    return fault = CollectiveFault::endpoint;
  }
};

// The length of a buffer of which the caller gave only the address and a count.
constexpr uint64_t kLongEnough = ~uint64_t{0};

struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  bool has_buf = false;
  Local buf;                      // all but a barrier; a broadcast's other members receive into it
  uint64_t count = kAllElements;  // kAllElements: all of buf
  uint64_t datatype = 0, op = 0, flags = 0, coll_addr = 0, root_addr = 0;
  // Set by check().
  bool is_root = false, receives = false, folds = false;
  std::shared_ptr<nic::Group> group;
  nic::ReduceArgs args;  // the caller adds context and cookies

  // FI_CXI_PRE_REDUCED: buf is an accumulator, which tells operation and datatype.
  [[nodiscard]] bool pre_reduced(const nic::Endpoint& ep) const noexcept {
    return ep.config().accelerated && (flags & nic::flag::kPreReduced) != 0;
  }
};

[[nodiscard]] CollectiveFault check(const nic::Endpoint& ep, Collective& c, CollectiveWhy* why);
[[nodiscard]] CollectiveFault check_result(const nic::Endpoint& ep, Collective& c, Local result, bool has_result,
                                           CollectiveWhy* why);
[[nodiscard]] CollectiveFault post(Collective& c, CollectiveWhy* why) noexcept;
// A reduction with FI_MORE: into the accumulator `result`; null: there is none.
[[nodiscard]] CollectiveFault fold(const nic::Endpoint& ep, const Collective& c, std::byte* result, CollectiveWhy* why);

[[nodiscard]] int code_of(const nic::Endpoint& ep, const CollectiveWhy& why) noexcept;
[[nodiscard]] std::string explain(nic::Endpoint& ep, const char* method, const CollectiveWhy& why);

// Completes a group's configuration by the rules of the endpoint's provider.
void take_rules(const nic::Endpoint& ep, nic::GroupConfig* group);

}  // namespace weft::call
