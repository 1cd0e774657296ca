// tests/cpp/group_support.hpp: collective groups for tests: members that are Sides of one process, or endpoints of one
// Side.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "fabric.hpp"
#include "nic/group.hpp"

namespace weft::nic {
inline std::ostream& operator<<(std::ostream& out, ReduceRefusal r) {
  return out << "reduce refusal " << static_cast<int>(r);
}
}  // namespace weft::nic

namespace weft::test {

using nic::Group;
using nic::GroupConfig;
using nic::Partial;
using nic::ReduceArgs;
using nic::ReduceOp;
using nic::ReduceRefusal;
using nic::ReduceStatus;
using GroupState = nic::Group::State;

inline ReduceArgs sum_of(int64_t value, int64_t* out, uint64_t context = 1) {
  ReduceArgs a;
  a.mine = nic::contribution(ReduceOp::int_sum, Datatype::int64, &value, 1);
  a.out = out;
  a.out_bytes = sizeof(*out);
  a.context = context;
  return a;
}
inline ReduceArgs barrier(uint64_t context = 1) {
  ReduceArgs a;
  a.mine = nic::contribution(ReduceOp::barrier, Datatype::uint8, nullptr, 0);
  a.context = context;
  return a;
}

enum class Over : uint8_t { self, shm, strict, tcp };
constexpr Over kOver[] = {Over::self, Over::shm, Over::strict, Over::tcp};
constexpr const char* name_of(Over over) {
  constexpr const char* kNames[] = {"self", "shm", "strict", "tcp"};
  return kNames[static_cast<size_t>(over)];
}

// `count` members. self: endpoints of one NIC; otherwise a NIC each, without engine threads. pid: of the first
// endpoint.
class Members {
 public:
  explicit Members(uint32_t count, Over over = Over::self, bool engine = false, std::optional<uint32_t> pid = {}) {
    for (uint32_t i = 0; i < count; ++i) {
      SideConfig c;
      c.host.engine_thread = engine;
      c.host.shm_link = over != Over::tcp;
      c.host.shm.strict = over == Over::strict;
      c.listen = over == Over::tcp;
      if (pid) c.pid = *pid + i;
      if (over == Over::self && i != 0) c.shared = sides[0]->host;
      sides.push_back(std::make_unique<Side>(c));
    }
    groups.resize(count);
  }
  [[nodiscard]] uint32_t count() const { return static_cast<uint32_t>(sides.size()); }
  // The set as member i sees it.
  [[nodiscard]] std::vector<wire::EpAddress> set() const {
    std::vector<wire::EpAddress> all;
    for (const auto& side : sides) {
      wire::EpAddress a = side->ep->address();
      if (const auto at = side->host->tcp().listening()) a.nic = routes()->number({*at, a.nic});
      all.push_back(a);
    }
    return all;
  }
  std::shared_ptr<Group> join(uint32_t i, GroupConfig c = {}) {
    c.members = set();
    c.member = i;
    if (c.key == 0) c.key = 77;
    return groups[i] = sides[i]->ep->join(std::move(c));
  }
  void join_all(const GroupConfig& c = {}) {
    for (uint32_t i = 0; i < count(); ++i) join(i, c);
    BOOST_REQUIRE_MESSAGE(await([&] { return all_are(GroupState::joined); }), states());
  }
  [[nodiscard]] bool all_are(GroupState state) const {
    return std::ranges::all_of(groups, [&](const auto& g) { return !g || g->look().state == state; });
  }
  void progress() const {
    for (const auto& side : sides) {
      if (side) side->progress();
    }
  }
  template <typename Done>
  bool await(Done&& done) const {
    return poll_until(done, [&] { progress(); });
  }
  // The next completion of a member.
  [[nodiscard]] Completion next(uint32_t i) const {
    std::optional<Completion> c;
    BOOST_REQUIRE_MESSAGE(await([&] { return (c = try_completion(*sides[i])).has_value(); }),
                          "member " << i << ": " << states());
    return *c;
  }
  [[nodiscard]] std::string states() const {
    std::string text;
    for (const auto& g : groups) {
      if (!g) {
        text += " -";
        continue;
      }
      const auto l = g->look();
      text += " " + std::to_string(static_cast<int>(l.state)) + ":" + std::to_string(l.done) + "/" +
              std::to_string(l.posted) + (l.text.empty() ? "" : " (" + l.text + ")");
    }
    return text;
  }

  std::vector<std::unique_ptr<Side>> sides;
  std::vector<std::shared_ptr<Group>> groups;
};

}  // namespace weft::test
