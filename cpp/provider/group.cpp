// cpp/provider/group.cpp: joining collective groups (fi_join_collective), and the groups of C programs (struct fid_mc).
#include "provider/group.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

#include "call/collective.hpp"
#include "link/routes.hpp"
#include "nic/av.hpp"
#include "provider/network.hpp"

namespace weft::provider {

namespace {

constexpr uint64_t kCollectiveFlag = uint64_t{1} << 6;  // FI_COLLECTIVE
constexpr uint32_t kFormatStr = 9, kJoinComplete = 6;
constexpr const char* kJoin = "fi_join_collective";

// ---- the multicast address of member 0 ------------------------------------------------------------------------------

// Runs a task of the group's lease, "ask" or "leave", and waits for its end. Empty: the group ends.
Record run_task(const Group& g, const char* task) {
  Record question = question_about("group", g.lease);
  Record first = question;
  first.add("task", std::string_view(task));
  auto pause = std::chrono::microseconds(100);
  constexpr std::chrono::microseconds kPauseMax(20'000);
  for (Record answer = Helper::of_process().ask(first);; answer = Helper::of_process().ask(question)) {
    if (answer.has("errno") || answer.flag("done")) return answer;
    if (answer.flag("idle")) (void)Helper::of_process().ask(first);  // another helper, since the last was killed
    if (g.ends.load(std::memory_order_relaxed) && task[0] == 'a') return {};
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kPauseMax);
  }
}

// The asker of a group: a thread, because the answer may take seconds.
void ask_for_address(Group* g) noexcept {
  try {
    const Record answer = run_task(*g, "ask");
    if (!answer.has("errno") && !answer.flag("done")) return;
    const bool died = answer.has("errno");
    const auto error = static_cast<uint16_t>(died ? static_cast<uint64_t>(g->other_errno) : answer.number("error"));
    if (error != 0) {
      const Guard guard(g->ep->eq->lock);
      g->refusal = answer.text(died ? "text" : "text_of_error");
    } else {
      Record has;  // a helper that is started anew is told of the address
      has.add("ask", std::string_view("group"));
      has.add("of", g->lease);
      has.add("task", std::string_view("have"));
      has.add("multicast", answer.number("multicast"));
      (void)Helper::of_process().ask(has);
    }
    g->group->supply(static_cast<uint16_t>(answer.number("multicast")), static_cast<uint32_t>(answer.number("root")),
                     error);
  } catch (const std::bad_alloc&) {
    g->group->supply(0, 0, static_cast<uint16_t>(g->other_errno));
  }
}

// ---- messages of the NIC --------------------------------------------------------------------------------------------

void report_joined(Eq& eq, Group& g) REQUIRES(eq.lock) {
  g.joined = true;
  Eq::Event event;
  event.number = kJoinComplete;
  event.fid = &g.fid->fid;
  event.whole = true;
  event.entry = bytes_of(ofi::EqEntry{&g.fid->fid, g.fid->fid.context, 0});
  eq.post(std::move(event));
}

std::string reason_of(const Group& g, const nic::Group::Look& look) {
  if (look.error == 0) return look.text;
  if (!g.refusal.empty()) return g.refusal;
  for (const auto& [number, text] : g.meanings) {
    if (number == look.error) return text;
  }
  return "error " + std::to_string(look.error) + " of the join";
}

void report_failed(Eq& eq, Group& g) REQUIRES(eq.lock) {
  const nic::Group::Look look = g.group->look();
  const std::string text = "join_collective: " + reason_of(g, look);
  const int number = look.error != 0 ? look.error : g.other_errno;
  g.failed = true;
  g.group->close();
  --g.ep->uses;
  --g.set->uses;
  Eq::Event event;
  event.number = kJoinComplete;
  event.fid = &g.fid->fid;
  event.failed = true;
  event.entry =
      bytes_of(ofi::EqErrEntry{&g.fid->fid, g.fid->fid.context, kJoinComplete, g.failed_err, number, nullptr, 0});
  event.err_data = text;
  eq.post(std::move(event));
  if_explained(front_of(g), Subject::ep_ctrl, [&] { explain(front_of(g), Subject::ep_ctrl, kJoin, text); });
}

// ---- life -----------------------------------------------------------------------------------------------------------

void end_asker(Group& g) {
  g.ends.store(true, std::memory_order_relaxed);
  if (g.asker.joinable()) g.asker.join();
}

// Gives the multicast address back. The number of the manager's error, which fi_close returns as it is, positive.
int give_address_back(const Group& g) {
  if (g.lease == 0 || g.failed) return 0;
  const Record answer = run_task(g, "leave");
  const int error = answer.has("errno") ? g.other_errno : static_cast<int>(answer.number("error"));
  if (error != 0) {
    explain(front_of(g), Subject::ep_ctrl, "fi_close",
            "fi_close: the group is closed, but its multicast address was not given back\n  " +
                std::string(answer.text(answer.has("errno") ? "text" : "text_of_error")));
  }
  return error;
}

int group_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<McShell*>(fid);
  Group& g = shell->of;
  if (g.forked()) return 0;  // the parent's
  return guarded(front_of(g), Subject::ep_ctrl, "fi_close", [&] {
    {
      const Guard closing(*g.joins);
      if (g.ep != nullptr) {
        const Guard guard(g.ep->eq->lock);  // from here on no message starts the asker, or makes an event
        std::erase(g.ep->groups, &g);
        (void)take_unread(*g.ep->eq, fid);
      }
      end_asker(g);  // it uses the endpoint
    }
    if (!g.failed) {
      g.group->close();
      g.domain->forget_released();
      --g.ep->uses;
      --g.set->uses;
    }
    const int error = give_address_back(g);
    delete shell;
    return error;
  });
}

ofi::FidOps g_mc_fid_ops = fid_ops(group_close);

// ---- the join -------------------------------------------------------------------------------------------------------

// A member, as policyhost/groups.py reads it.
struct Member {
  uint32_t nic, pid;
  uint16_t vni, in_use;
  uint32_t host;  // the same for members of one host
};
static_assert(sizeof(Member) == 16);

// Numbers for the hosts of members; a number of a NIC here is its own host, as the text of its address has it.
class Hosts {
 public:
  explicit Hosts(const Domain& domain) : domain_(domain) {}
  uint32_t number(uint32_t nic) {
    if (domain_.addr_format != kFormatStr) return 0;  // addresses of cxi name no host
    if (nic < wire::kRemoteNic) return nic;
    const auto route = domain_.host->routes().find(nic);
    if (!route) return nic;
    const auto found = std::ranges::find(seen_, route->host.ip);
    if (found == seen_.end()) seen_.push_back(route->host.ip);
    return wire::kRemoteNic + static_cast<uint32_t>(found - seen_.begin());
  }

 private:
  const Domain& domain_;
  std::vector<decltype(wire::HostAddress::ip)> seen_;
};

// The NIC's number for the helper, which has no table of this process's routes.
uint32_t nic_for_policy(const Domain& domain, uint32_t nic) {
  return domain.addr_format == kFormatStr ? nic : domain.fabric_base | nic_in_fabric(domain, nic);
}

// The members' addresses, which the question gets too.
std::vector<wire::EpAddress> add_members(Record* question, const Ep& ep, const AvSet& set) {
  std::vector<wire::EpAddress> members;
  std::string bytes;
  Hosts hosts(*ep.domain);
  bool unknown = false;
  for (const uint64_t name : set.members.addresses()) {
    const auto found = set.av->av->lookup(name);
    members.push_back(found.value_or(wire::EpAddress{}));
    const wire::EpAddress& a = members.back();
    const Member member{nic_for_policy(*ep.domain, a.nic), a.pid, a.vni, uint16_t{found.has_value()},
                        hosts.number(a.nic)};
    bytes.append(reinterpret_cast<const char*>(&member), sizeof(member));
    if (!found && !unknown) question->add("unknown", name);
    unknown |= !found;
  }
  question->add("members", std::string_view(bytes));
  return members;
}

nic::GroupConfig config_of(const Ep& ep, const AvSet& set, std::vector<wire::EpAddress> members, const Record& answer) {
  nic::GroupConfig config;
  config.member = static_cast<uint32_t>(answer.number("member"));
  config.members = std::move(members);
  config.names = set.members.addresses();
  if (answer.flag("one_endpoint")) {
    const wire::EpAddress own{ep.nic, static_cast<uint32_t>(ep.pid), ep.vni, 0};
    std::ranges::fill(config.members, own);
    for (size_t i = 0; i < config.names.size(); ++i) config.names[i] = i;
  }
  config.name = config.names.at(config.member);
  config.key = answer.number("key");
  config.join_radix = static_cast<uint32_t>(answer.number("join_radix"));
  config.radix = static_cast<uint32_t>(answer.number("radix"));
  config.block = static_cast<uint32_t>(answer.number("block"));
  config.asks = answer.flag("asks");
  call::take_rules(*ep.ep, &config);
  return config;
}

int join(Ep& ep, AvSet& set, ofi::Addr coll_addr, uint64_t flags, ofi::FidMc** out, void* context) {
  const Front& front = front_of(ep);
  Record question = question_about("join", ep.lease);
  question.add("coll_addr", coll_addr, "flags", flags);
  question.add("enabled", uint64_t{ep.ep->enabled()});
  question.add("has_eq", uint64_t{ep.eq != nullptr});
  question.add("other_vector", uint64_t{ep.av != set.av});
  question.add("own.nic", uint64_t{nic_for_policy(*ep.domain, ep.nic)});
  question.add("own.pid", ep.pid < 0 ? uint64_t{0} : static_cast<uint64_t>(ep.pid));
  question.add("own.vni", uint64_t{ep.vni});
  if (set.comm_key) question.add("comm_key", std::string_view(*set.comm_key));
  std::vector<wire::EpAddress> members = add_members(&question, ep, set);
  auto shell = std::make_unique<McShell>();
  const Record answer = Helper::of_process().ask(question);
  if (const int r = refused(front, Subject::ep_ctrl, kJoin, answer); r != 0) return r;
  Group& g = shell->of;
  g.lease.take(answer);
  g.front = front;
  g.domain = ep.domain;
  g.fid = &shell->fid;
  g.ep = &ep;
  g.joins = ep.joins;
  g.set = &set;
  g.failed_err = static_cast<int>(static_cast<int64_t>(answer.number("failed_err")));
  g.other_errno = static_cast<int>(answer.number("other_errno"));
  for (const Record& one : answer.all("meaning")) g.meanings.emplace_back(one.number("number"), one.text("text"));
  nic::GroupConfig config = config_of(ep, set, std::move(members), answer);
  shell->fid.fid = {kClassMc, context, &g_mc_fid_ops};
  const Guard guard(ep.eq->lock);  // nobody reads messages of the group before it is known
  ep.groups.reserve(ep.groups.size() + 1);
  g.group = ep.ep->join(std::move(config));
  shell->fid.addr = g.group->address();
  ep.groups.push_back(&g);
  ++ep.uses;
  ++set.uses;
  *out = &shell.release()->fid;
  return 0;
}

}  // namespace

int join_group(ofi::FidEp* fid, const void* address, uint64_t flags, ofi::FidMc** out, void* context) {
  Ep& ep = of(whole(fid));
  const Front& front = front_of(ep);
  if (ep.forked()) return refuse_forked(ep, kJoin);
  if ((flags & kCollectiveFlag) == 0) {
    return refuse(front, Subject::ep_ctrl, "fi_join", fi_err::kENOSYS,
                  "fi_join: there are no multicast groups of datagrams here\n  try: fi_join_collective");
  }
  const auto* const to = static_cast<const ofi::CollectiveAddr*>(address);
  if (to == nullptr || to->set == nullptr || out == nullptr) {
    return refuse(front, Subject::ep_ctrl, kJoin, fi_err::kEINVAL,
                  "fi_join_collective: the set, or the place of the group, is NULL");
  }
  AvSet& set = of(const_cast<ofi::FidAvSet*>(to->set));
  return guarded(front, Subject::ep_ctrl, kJoin,
                 [&] { return join(ep, set, to->coll_addr, flags & ~kCollectiveFlag, out, context); });
}

void on_group(Eq& eq, Ep& ep, const nic::CmEvent& message) {
  const auto found = std::ranges::find_if(
      ep.groups, [&](const Group* g) { return !g->failed && g->group->address() == message.connection; });
  if (found == ep.groups.end()) return;
  Group& g = **found;
  if (message.kind == nic::CmKind::group_agreed) {
    try {
      g.asker = std::thread(ask_for_address, &g);
    } catch (const std::system_error&) {
      g.group->supply(0, 0, static_cast<uint16_t>(g.other_errno));
    }
  } else if (message.kind == nic::CmKind::group_joined) {
    report_joined(eq, g);
  } else {
    report_failed(eq, g);
  }
}

void leave_failed_groups(Ep& ep) {
  if (ep.eq == nullptr) return;
  const Guard closing(*ep.joins);
  std::vector<Group*> left;
  {
    const Guard guard(ep.eq->lock);
    left.swap(ep.groups);
    for (const Group* g : left) (void)take_unread(*ep.eq, &g->fid->fid);
  }
  for (Group* g : left) {
    end_asker(*g);
    g->ep = nullptr;
    g->group.reset();
  }
}

}  // namespace weft::provider
