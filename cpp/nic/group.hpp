// cpp/nic/group.hpp: a collective group: members that reduce their data together, arranged as a tree.
//
// Contributions go up the tree and the result comes down, one frame a hop (wire::Reduce), each sent without an answer.
// Two members, and up to four of one block, need no tree: each sends its contribution to all others.
// Whichever thread makes progress combines them, so no application code runs. A member has eight slots: eight
// reductions may be under way, and since every member starts the same sequence, a frame names its reduction by number.
//
// A join has two rounds, each up and down. The first, on the join's tree, finds out that every member has joined; the
// second, on the group's own tree, agrees on the multicast address and on errors. A frame to a member that has not
// joined is dropped: a member that joins asks its children to repeat their frames. So no frame is kept, and a peer that
// lies or floods costs nothing but time.
//
// A member that is lost (its process or endpoint ended, or it left) ends the group: its neighbours notice, and tell
// theirs. Every reduction that has completed anywhere completes everywhere: a result is passed on before the news of a
// loss, and members that exchange wait for what the others have sent. A process that ends before its frames have gone
// out, or a connection that breaks, may part them. The domain's lock guards all. Design: docs/design/collectives.md.
// Source: fi_collective(3); fi_cxi(7) "Collectives (accelerated)".
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "link/link.hpp"
#include "nic/reduction.hpp"
#include "nic/route.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class Nic;
class Domain;
class Endpoint;
class Groups;

constexpr uint32_t kReductionsMax = 8;  // fi_cxi(7): concurrent reductions of a group
constexpr uint32_t kGroupRadixMax = 64;
constexpr uint32_t kExchangeMax = 4;  // members

// The neighbours of one member in the tree over members 0 to count - 1, whose root is 0. The members of a block, which
// follow each other, hang below the block's first: only these first members have neighbours in other blocks.
struct Tree {
  uint32_t parent = 0;  // of member 0: itself
  std::vector<uint32_t> children;
  uint32_t below = 1;  // members in the subtree, this one included

  // radix: most children within a block, 1 to kGroupRadixMax; between blocks at most kBlockRadix. block: 1 to count.
  static Tree of(uint32_t member, uint32_t count, uint32_t radix, uint32_t block);
  static constexpr uint32_t kBlockRadix = 4;
};

struct GroupConfig {
  std::vector<wire::EpAddress> members;  // in the order that all members use
  std::vector<uint64_t> names;           // sorted: how calls name the members (root_addr)
  uint64_t name = 0;                     // this one's
  uint32_t member = 0;                   // this one's number
  uint64_t key = 0;                      // the same for every member of this join, another for other sets
  uint32_t join_radix = 2;               // the same for every member
  uint32_t radix = 16, block = 0;        // of the group's own tree; member 0 decides. block 0: all members
  bool asks = false;                     // member 0: waits for supply() before the join ends
  uint64_t completion_flags = 0;         // of the completions of reductions
  // The provider's errors. always: every failure has the code `failed_err`; otherwise a lost member gives the code of
  // its status.
  int failed_err = 256;  // FI_EOTHER
  bool always = false;
};

// One call of fi_reduce, fi_allreduce, fi_broadcast or fi_barrier.
struct ReduceArgs {
  Partial mine;          // this member's contribution
  void* out = nullptr;   // null: no result is wanted
  size_t out_bytes = 0;  // of the result; at most kReducePayloadBytes, and 8 for a reproducible sum
  uint64_t flags = 0, context = 0;
  std::span<const uint64_t> cookies;  // objects that the reduction needs; Domain::take_released() returns them
};

enum class ReduceRefusal : uint8_t { none, closed, not_joined, all_busy, cq_full };

#define WEFT_GROUP_STATES(X)                                   \
  X(queued, 0, "an earlier join of the same set is under way") \
  X(gathering, 1, "waits for members")                         \
  X(agreed, 2, "all have joined; the join has not ended yet")  \
  X(joined, 3, "reductions are made")                          \
  X(broken, 4, "a member is lost, or the join has failed")     \
  X(closed, 5, "by the application")
WEFT_ENUM(GroupState, uint8_t, WEFT_GROUP_STATES, "The states of a member's group.");

class Group {
 public:
  using State = GroupState;
  static constexpr size_t kCookiesMax = 4;
  static constexpr uint16_t kMulticastNone = 0xffff;

  // The calls of applications; they take the domain's lock.
  ReduceRefusal post(const ReduceArgs& args) noexcept;
  // Member 0 of a group that asks, once all members have joined: the multicast address, and the number of the member at
  // its root; or an error, which then is every member's. Ignored later.
  void supply(uint16_t multicast, uint32_t root, uint16_t error);
  void close() noexcept;

  struct Look {  // a snapshot for observers
    State state = State::queued;
    uint64_t number = 0;
    uint16_t multicast = kMulticastNone;
    uint32_t root = 0;
    uint16_t error = 0;             // of the join
    Status status = Status::ok;     // broken: why
    uint32_t lost = 0;              // broken: the member that was lost
    uint32_t posted = 0, done = 0;  // reductions
    uint64_t frames = 0, ignored = 0;
    uint32_t radix = 0, block = 0, children = 0;
    std::string text;  // broken: the explanation
  };
  [[nodiscard]] Look look() const;
  [[nodiscard]] const GroupConfig& config() const noexcept { return config_; }
  // The number by which calls name the group; the same number is never given again in this process.
  [[nodiscard]] uint64_t address() const noexcept { return address_; }
  Group(Endpoint* ep, GroupConfig config);

 private:
  friend class Groups;
  struct Edge {  // to a neighbour
    uint32_t member = 0;
    bool child = false, equal = false;  // equal: another member that exchanges, neither child nor parent
    bool fresh = false;                 // resolved by this join
    bool heard = false;                 // child: it has joined, and all below it; equal: it has found this member
    bool known = false;                 // a frame of it has arrived
    std::shared_ptr<Route> route;
    std::shared_ptr<link::Peer> peer;    // null: being resolved
    std::shared_ptr<link::Peer> caller;  // meanwhile: says that it is the neighbour
    uint64_t in = 0;                     // the number of the peer from which its frames come; 0: none came
    uint32_t ep_index = 0, ep_generation = 0;
    uint32_t next = 0;          // child, or a member that exchanges: the next reduction to hear of
    Status ended = Status::ok;  // exchange: why nothing more comes of this member
    uint32_t lost = 0;          // then: which member is lost
  };
  struct Tier {
    std::vector<Edge> edges;
    Edge* parent = nullptr;  // null: this member is the root
    uint32_t children = 0, equals = 0, heard = 0, below = 1;
    uint32_t asked = 0;  // the parent's attempt; 0: it has not called
    bool said = false;
  };
  struct Slot {
    Partial partial;
    ReduceOp op{};
    uint8_t cookie_count = 0;
    bool wants = false;
    uint32_t heard = 0;
    size_t out_bytes = 0;
    void* out = nullptr;
    uint64_t context = 0;
    std::array<uint64_t, kCookiesMax> cookies{};
  };

  void begin();
  void build(uint8_t tier, const Tree& tree);
  void resolve(uint8_t tier, Edge& edge, bool again);
  void adopt(uint8_t tier, Edge& edge);
  void call(uint8_t tier, const Edge& edge);
  void say(uint8_t tier);
  void all_gathered(uint64_t number, uint32_t radix, uint32_t block);
  void end_join(uint64_t value, uint16_t error);
  void fail_join(uint16_t error);
  void on_route(const Route& route, Status status);
  void on_peer_down(const link::Peer& peer);
  void on_frame(Edge& edge, const wire::Frame& frame, std::span<const std::byte> payload);
  void note_caller(Edge& edge, std::shared_ptr<link::Peer> peer, const wire::Reduce& said, uint32_t pid);
  Edge* edge_of(link::Peer& peer, const wire::Frame& frame);
  void on_part(Edge& edge, const wire::Frame& frame, std::span<const std::byte> payload);
  void on_result(const wire::Frame& frame, std::span<const std::byte> payload);
  void exchange();
  void settle();
  void end(Edge& edge, Status status, uint32_t member) noexcept;
  void advance();
  void finish(const Partial& partial);
  void complete(Slot& slot, const Partial& partial);
  void fail(uint64_t context, ReduceStatus why, Status status, std::string text) noexcept;
  void lose(Status status, uint32_t member, const Edge* teller = nullptr, bool quiet = false) noexcept;
  void fail_reductions(Status status) noexcept;
  void leave() noexcept;
  struct Said {  // fields of wire::Reduce
    uint64_t value = 0;
    uint32_t sequence = 0, block = 0;
    uint16_t error = 0;
  };
  void send(const Edge& edge, uint8_t tier, wire::ReduceWhat what, const Said& said,
            std::span<const std::byte> payload = {}, Status status = Status::ok) noexcept;
  void report(bool agreed) noexcept;
  [[nodiscard]] std::string describe_loss() const;
  [[nodiscard]] uint64_t own_number() const noexcept;
  [[nodiscard]] bool has_number() const noexcept { return state_ >= State::agreed && state_ <= State::broken; }
  [[nodiscard]] bool joining() const noexcept { return state_ == State::gathering || state_ == State::agreed; }
  // False: no frame means anything to the group. A broken group may wait for contributions that are on their way.
  [[nodiscard]] bool listens() const noexcept {
    return state_ != State::queued && (state_ != State::broken || done_ != posted_);
  }
  // Of a member to a reduction: at most 16 ahead of our completions, because the member is at most 8 ahead of our
  // contributions, and those are at most 8 ahead of our completions.
  Partial& contribution_of(uint32_t member, uint32_t sequence) noexcept {
    assert(exchanges_ && member < count_ && "a member of a group that exchanges");
    return contributions_[size_t{sequence % (2 * kReductionsMax)} * count_ + member];
  }
  Slot& slot_of(uint32_t sequence) noexcept { return slots_[sequence % kReductionsMax]; }

  Endpoint* ep_;
  Domain* domain_;
  GroupConfig config_;
  uint64_t address_;
  uint32_t count_;
  State state_ = State::queued;
  uint64_t number_ = 0;
  uint32_t attempt_ = 0;  // counts joins; `up` repeats it, so that a frame of an earlier join does not count
  std::array<Tier, 2> tiers_;
  uint32_t posted_ = 0, sent_ = 0, done_ = 0;
  std::array<Slot, kReductionsMax> slots_{};
  bool exchanges_ = false;
  std::vector<Partial> contributions_;  // exchange: what has come of the others
  uint16_t multicast_ = kMulticastNone, join_error_ = 0;
  uint32_t mcast_root_ = 0;
  bool supplied_ = false;
  Status broken_ = Status::ok;
  uint32_t lost_ = 0;
  uint64_t frames_ = 0, ignored_ = 0;
};

// The groups of one endpoint, and the failed joins of which not every neighbour has heard.
class Groups {
 public:
  Groups(Endpoint* ep, Domain* domain) noexcept : ep_(ep), domain_(domain) {}
  // These require the domain's lock.
  void add(const std::shared_ptr<Group>& group);
  [[nodiscard]] std::shared_ptr<Group> find(uint64_t address) const noexcept;
  void on_frame(link::Peer& peer, const wire::Frame& frame, std::span<const std::byte> payload) noexcept;
  void on_route(const Route& route, Status status) noexcept;
  void on_peer_down(const link::Peer& peer) noexcept;
  void close_all() noexcept;

 private:
  friend class Group;
  // A neighbour that had not joined when this endpoint's join failed: it is told when it joins.
  struct Untold {
    uint64_t key;
    uint32_t member, neighbour, lost;
    uint32_t pid;
    uint16_t vni;
    Status status;
  };
  static constexpr size_t kUntoldMax = 4096;
  // A member that has called this endpoint, which has not joined yet.
  struct Caller {
    std::weak_ptr<link::Peer> peer;
    wire::Reduce body;
    uint32_t pid;
    uint16_t vni;
  };
  static constexpr size_t kCallersMax = 4096;
  void remove(Group* group) noexcept;
  void start_queued() noexcept;
  void take_callers(Group& group);
  void remember_untold(const Group& group) noexcept;
  bool tell_untold(link::Peer& peer, const wire::Frame& frame) noexcept;
  void tell_lost(const std::shared_ptr<link::Peer>& peer, const wire::Reduce& said, uint16_t vni, Status status,
                 uint32_t lost) noexcept;

  Endpoint* ep_;
  Domain* domain_;
  uint32_t attempts_ = 0;
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<Untold> untold_;
  std::vector<Caller> callers_;
};

}  // namespace weft::nic
