// cpp/provider/group.hpp: collective groups of C programs: sets of addresses (fi_av_set(3)) and memberships (struct
// fid_mc).
//
// A set is kept here, by call/av_set.hpp; the policy helper checks its attributes, and decides what a join joins.
// Member 0 of a group with a multicast address has a lease of the helper for it. Asking for the address may take
// seconds and blocks no call of the program: a thread of the group asks.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "call/av_set.hpp"
#include "nic/group.hpp"
#include "provider/objects.hpp"

namespace weft::provider {

constexpr ofi::Addr kAddrNotAvail = ~uint64_t{0};

struct AvSet : Object {
  Domain* domain = nullptr;
  Av* av = nullptr;
  call::AddressSet members;
  std::optional<std::string> comm_key;
  bool fixed = false;  // while a group uses it
  int member_errno = 0, vector_errno = 0, joined_errno = 0;
};

// An endpoint's membership. The event queue's lock guards what its messages change: ep, joined, failed, refusal.
struct Group : Object {
  Front front{};  // of the domain, which may be closed before the group of a failed join
  Domain* domain = nullptr;
  ofi::FidMc* fid = nullptr;
  Ep* ep = nullptr;  // null: the join has failed, and the endpoint is closed; also under *joins
  std::shared_ptr<Joins> joins;
  AvSet* set = nullptr;
  std::shared_ptr<nic::Group> group;
  int failed_err = 0, other_errno = 0;
  std::vector<std::pair<uint64_t, std::string>> meanings;  // of a failed join's prov_errno
  bool joined = false, failed = false;
  std::string refusal;  // why this member got no multicast address
  std::thread asker;
  std::atomic<bool> ends{false};  // the asker stops
};

using AvSetShell = Shell<ofi::FidAvSet, AvSet>;
using McShell = Shell<ofi::FidMc, Group>;

inline const Front& front_of(const Group& group) noexcept {
  return group.front;
}

int open_av_set(ofi::FidAv*, ofi::AvSetAttr*, ofi::FidAvSet**, void* context);
// fi_join_collective: the join of fi_cm(3)'s table.
int join_group(ofi::FidEp*, const void* address, uint64_t flags, ofi::FidMc**, void* context);
// A message of the NIC about a group.
void on_group(Eq& eq, Ep& ep, const nic::CmEvent& message) REQUIRES(eq.lock);
// The endpoint closes; the groups that it has left are of failed joins.
void leave_failed_groups(Ep& ep);

int query_collective(ofi::FidDomain*, int collective, ofi::CollectiveAttr*, uint64_t flags);

}  // namespace weft::provider
