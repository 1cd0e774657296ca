// tests/cpp/test_replay.cpp: a fabric of 64 NICs in one process, driven by one seed: two runs are equal.
//
// One thread makes every call. Time is a number that the driver moves; frames arrive after times from the seed; NICs,
// endpoints, regions and connections close and reopen in the middle of traffic. Every call's result, every frame that
// arrives and every completion is a line of the history, with its time.
//
// WEFT_REPLAY_STEPS: how long a run is. WEFT_SEED: another fabric. A difference shows where the two histories part.
#include <cinttypes>
#include <cstdarg>
#include <set>

#include "every_path.hpp"
#include "memory_link.hpp"
#include "messaging.hpp"

using namespace weft;
using namespace weft::test;

namespace {

constexpr uint32_t kNics = 64;
constexpr uint64_t kKey = 42;
constexpr uint32_t kPid = 7;  // of a NIC's first endpoint; the second has the next one
constexpr size_t kRegionBytes = 32 * 1024, kBufferBytes = 20 * 1024, kBuffers = 24, kOfReceives = 8;

bool shares_tables(uint32_t a, uint32_t b) {
  return (a ^ b) % 3 != 0;
}

class History {
 public:
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    lines.emplace_back(text);
  }
  std::vector<std::string> lines;
};

// A NIC with a domain, a queue, an address vector that has every NIC's endpoints, two endpoints and two regions: one in
// memory that peers map, and one in memory that they reach by cma_copy() or by frames.
class Node {
 public:
  Node(MemoryFabric& fabric, uint32_t number, uint64_t seed, History& history)
      : number_(number),
        history_(history),
        clock_(fabric.clock),
        random_(seed),
        memory_(std::make_shared<NicMemory>(number + 1)),
        self_(memory_->table, waiter_),
        wire_(std::make_unique<MemoryLink>(fabric, number, memory_, shares_tables)) {
    nic::Nic::Parts parts;
    parts.clock = &clock_;
    parts.random = &random_;
    parts.waiter = &waiter_;
    parts.table = &memory_->table;
    parts.segments = &memory_->segments;
    parts.devices = &devices_;
    parts.links = {&self_, wire_.get()};
    if (number % 4 == 0) {  // every frame waits once more, and flows overtake each other
      delays_ = std::make_unique<DelayingLink>(*wire_, clock_, random_.next(), 30'000);
      wire_->wrap_in(*delays_);
      parts.links.back() = delays_.get();
    }
    nic_ = std::make_unique<nic::Nic>(parts, limits());
    nic::DomainConfig config;
    config.nic = number;
    domain_ = std::make_unique<nic::Domain>(nic_.get(), config);
    cq_ = std::make_shared<nic::CompletionQueue>(256);
    av_ = std::make_shared<nic::AddressVector>(domain_.get());
    for (uint32_t i = 0; i < 2 * kNics; ++i) av_->insert({i / 2, kPid + i % 2, 1, 0});
    own_.resize(kRegionBytes);
    buffers_.resize(kBuffers * kBufferBytes);
    for (auto& b : buffers_) b = static_cast<std::byte>(random_.next());
    mapped_ = memory_->segments.allocate(kRegionBytes);
    for (uint32_t i = 0; i < kBuffers; ++i) free_.insert(i);
    for (uint32_t i = 0; i < 2; ++i) {
      open_endpoint(i);
      open_region(i);
    }
  }
  ~Node() {
    for (auto& ep : eps_) ep->close();
    read_queue();
    std::string why;
    for (auto& region : regions_) region->close(&why);
    eps_ = {};
    av_.reset();
    domain_.reset();
    nic_.reset();
    delays_.reset();
    wire_.reset();
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // One call from the seed.
  void act(Seeded& seed) {
    const auto what = seed.below(100);
    nic::Endpoint& ep = *eps_[seed.below(2)];
    const uint64_t dest = seed.below(8) == 0 ? seed.below(2) + 2 * number_ : seed.below(2 * kNics);
    if (what < 18) {
      access(seed, ep, OpKind::write, dest);
    } else if (what < 32) {
      access(seed, ep, OpKind::read, dest);
    } else if (what < 46) {
      atomic(seed, ep, dest);
    } else if (what < 68) {
      send_message(seed, ep, dest);
    } else if (what < 94) {
      post_receive(seed, static_cast<uint32_t>(seed.below(2)));
    } else if (what < 96) {
      const auto i = static_cast<uint32_t>(seed.below(2));
      log("close endpoint %u", i);
      close_endpoint(i);
      open_endpoint(i);
    } else if (what < 98) {
      const auto i = static_cast<uint32_t>(seed.below(2));
      std::string why;
      const bool closed = regions_[i]->close(&why);
      log("close region %u: %d %s", i, closed, why.c_str());
      open_region(i);
    } else if (!wire_->connections().empty()) {
      const auto& all = wire_->connections();
      const auto peer = all[seed.below(all.size())];
      log("hang up on %u", peer->to);
      wire_->hang_up(*peer, Status::peer_gone);
    }
  }
  size_t progress() {
    const size_t n = nic_->progress();
    read_queue();
    return n;
  }
  void read_queue() {
    for (;;) {
      CqEntry entry;
      CqError error;
      bool error_waits = false;
      const nic::DomainLock guard(domain_.get());
      if (cq_->read(&entry, 1, &error_waits) == 0 && (!error_waits || !cq_->read_error(&entry, &error))) return;
      const auto buffer = taken_.find(entry.context);
      if (buffer == taken_.end()) {
        strange_.push_back("a completion of a context that is not under way: " + std::to_string(entry.context));
        return;
      }
      const auto content = std::span(buffers_).subspan(buffer->second * kBufferBytes, kBufferBytes);
      log("done %" PRIu64 ": flags %" PRIx64 ", %" PRIu64 " bytes, data %" PRIu64 ", tag %" PRIu64
          ", error %d, status %d, %" PRIu64 " cut, content %016" PRIx64 " %s",
          entry.context, entry.flags, entry.len, entry.data, entry.tag, error.err, static_cast<int>(error.status),
          error.olen, digest(content), error.text.c_str());
      if (error.status == Status::protocol) strange_.push_back("a peer broke the protocol: " + error.text);
      free_.insert(buffer->second);
      taken_.erase(buffer);
    }
  }
  void close_endpoints() {
    close_endpoint(0);
    close_endpoint(1);
  }
  void log_state() {
    log("own %016" PRIx64 ", mapped %016" PRIx64, digest(own_), digest({mapped_, kRegionBytes}));
    const auto s = nic_->statistics();
    log("direct %" PRIu64 ", cma %" PRIu64 ", framed %" PRIu64 ", failed %" PRIu64 ", served %" PRIu64, s.direct_ops,
        s.cma_ops, s.framed_ops, s.failed_ops, s.frames_served);
    log("%s", nic_->snapshot().substr(0, 400).c_str());
  }
  [[nodiscard]] size_t under_way() const { return taken_.size(); }
  // Besides messages, which may wait for their counterpart for ever, and accesses that wait for messages.
  [[nodiscard]] size_t accesses_under_way() const {
    return static_cast<size_t>(
        std::ranges::count_if(taken_, [&](const auto& one) { return !messages_.contains(one.first); }));
  }
  [[nodiscard]] const std::vector<std::string>& strange() const noexcept { return strange_; }
  [[nodiscard]] nic::NicStatistics statistics() { return nic_->statistics(); }
  [[nodiscard]] uint64_t overtaken() const noexcept { return delays_ ? delays_->overtaken() : 0; }

 private:
  static nic::Limits limits() {
    nic::Limits l;
    l.mr_count_max = 1024;
    return l;
  }
  template <typename... Args>
  void log(const char* format, Args... args) {
    char text[480];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    std::snprintf(text, sizeof(text), format, args...);
#pragma GCC diagnostic pop
    history_.add("%" PRIu64 " NIC %u: %s", clock_.now_ns(), number_, text);
  }
  void open_endpoint(uint32_t i) {
    nic::EndpointConfig config;
    config.vni = 1;
    config.caps = flag::kRma | flag::kAtomic | flag::kRead | flag::kWrite | flag::kRemoteRead | flag::kRemoteWrite |
                  flag::kMsg | flag::kTagged | flag::kSend | flag::kRecv;
    config.messages.eager_max = 4096;
    config.messages.unexpected_max = 4;  // more are refused, and sent again
    config.messages.stop_ns = 40'000;
    eps_[i] = domain_->make_endpoint(config);
    eps_[i]->bind_cq(cq_, flag::kSend | flag::kRecv);
    eps_[i]->bind_av(av_);
    eps_[i]->enable(number_, kPid + i);
  }
  // Its operations end with entries; receives that have taken no message end without.
  void close_endpoint(uint32_t i) {
    eps_[i]->close();
    read_queue();
    for (const uint64_t context : std::exchange(receives_[i], {})) {
      const auto buffer = taken_.find(context);
      if (buffer == taken_.end()) continue;
      log("dropped %" PRIu64, context);
      free_.insert(buffer->second);
      taken_.erase(buffer);
    }
  }
  void open_region(uint32_t i) {
    const iovec all{i == 0 ? mapped_ : own_.data(), kRegionBytes};
    regions_[i] =
        domain_->register_region(std::span(&all, 1), mem::kRemoteRead | mem::kRemoteWrite, kKey + i, false, true);
  }
  // A buffer and a context for a call; null: all are in use.
  std::byte* take_buffer(bool receives) {
    if (free_.empty() || (receives && taken_.size() >= kBuffers - kOfReceives)) return nullptr;
    const uint32_t buffer = *free_.begin();
    free_.erase(free_.begin());
    taken_.emplace(++context_, buffer);
    return buffers_.data() + buffer * kBufferBytes;
  }
  void note(const char* what, uint64_t dest, size_t bytes, const PostResult& result) {
    log("%s %" PRIu64 " to %" PRIu64 ", %zu bytes: refusal %d, number %" PRIx64, what, context_, dest, bytes,
        static_cast<int>(result.refusal), result.op_id);
    if (result.refusal == Refusal::none) return;
    free_.insert(taken_.at(context_));
    taken_.erase(context_);
  }
  static size_t length(Seeded& seed) {
    constexpr size_t kMost[] = {8, 64, 256, 3000, kBufferBytes};
    return 1 + seed.below(kMost[seed.below(5)]);
  }
  void access(Seeded& seed, nic::Endpoint& ep, OpKind kind, uint64_t dest) {
    std::byte* const local = take_buffer(false);
    if (local == nullptr) return;
    const size_t bytes = length(seed);
    Access a;
    a.kind = kind;
    a.dest = dest;
    a.local = {{local, bytes}};
    // Some accesses pass the end of the region, and some ask for a key that does not exist.
    a.remote = {{seed.below(kRegionBytes - kBufferBytes / 2), bytes, kKey + (seed.one_in(12) ? 2 : seed.below(2))}};
    a.flags = seed.one_in(8) ? flag::kFence : 0;
    a.context = context_;
    if (a.flags != 0) messages_.insert(context_);  // a fence waits for messages
    note(kind == OpKind::write ? "write" : "read", dest, bytes, post(ep, a));
  }
  void atomic(Seeded& seed, nic::Endpoint& ep, uint64_t dest) {
    std::byte* const local = take_buffer(false);
    if (local == nullptr) return;
    const size_t count = seed.one_in(4) ? 1 + seed.below(64) : 1;
    const iovec operand{local, 8 * count}, compare{local + 1024, 8 * count}, result{local + 2048, 8 * count};
    const wire::RmaRange at{8 * seed.below(512), 8 * count, kKey + seed.below(2)};
    constexpr AtomicOp kOps[] = {AtomicOp::sum, AtomicOp::bxor, AtomicOp::max, AtomicOp::atomic_write};
    const auto family = static_cast<AtomicFamily>(seed.below(3));
    const AtomicOp op = family == AtomicFamily::compare ? AtomicOp::cswap : kOps[seed.below(4)];
    note("atomic", dest, 8 * count,
         ep.post_atomic(atomic_of(dest, family, op, Datatype::uint64, &operand,
                                  family == AtomicFamily::compare ? &compare : nullptr,
                                  family == AtomicFamily::base ? nullptr : &result, &at, context_)));
  }
  void send_message(Seeded& seed, nic::Endpoint& ep, uint64_t dest) {
    std::byte* const local = take_buffer(false);
    if (local == nullptr) return;
    const size_t bytes = length(seed);
    Send how;
    how.tag = seed.below(3);
    how.tagged = !seed.one_in(4);
    how.context = context_;
    how.data = seed.below(100);
    how.flags = seed.one_in(4) ? flag::kRemoteCqData : seed.one_in(6) ? flag::kDeliveryComplete : 0;
    messages_.insert(context_);
    note("send", dest, bytes, send(ep, dest, local, bytes, how));
  }
  void post_receive(Seeded& seed, uint32_t i) {
    std::byte* const local = take_buffer(true);
    if (local == nullptr) return;
    Recv how;
    how.tag = seed.below(3);
    how.ignore = seed.one_in(2) ? ~uint64_t{0} : 0;
    how.tagged = !seed.one_in(4);
    how.context = context_;
    messages_.insert(context_);
    receives_[i].insert(context_);
    note("receive", 0, kBufferBytes, receive(*eps_[i], local, seed.one_in(10) ? 100 : kBufferBytes, how));
  }

  const uint32_t number_;
  History& history_;
  VirtualClock& clock_;
  Seeded random_;
  NoWaiter waiter_;
  std::shared_ptr<NicMemory> memory_;
  mem::Devices devices_;
  link::SelfLink self_;
  std::unique_ptr<MemoryLink> wire_;
  std::unique_ptr<DelayingLink> delays_;
  std::unique_ptr<nic::Nic> nic_;
  std::unique_ptr<nic::Domain> domain_;
  std::shared_ptr<nic::CompletionQueue> cq_;
  std::shared_ptr<nic::AddressVector> av_;
  std::array<std::shared_ptr<nic::Endpoint>, 2> eps_;
  std::array<std::shared_ptr<nic::MemoryRegion>, 2> regions_;
  std::vector<std::byte> own_, buffers_;
  std::byte* mapped_ = nullptr;
  std::set<uint32_t> free_;
  std::map<uint64_t, uint32_t> taken_;  // by context: the buffer
  std::set<uint64_t> messages_;
  std::array<std::set<uint64_t>, 2> receives_;  // by endpoint
  uint64_t context_ = 0;
  std::vector<std::string> strange_;
};

struct Told {
  History history;
  std::vector<std::string> strange;
  size_t unfinished = 0;
  uint64_t direct = 0, cma = 0, framed = 0, failed = 0, overtaken = 0, restarts = 0;
};

Told run(uint64_t seed, uint64_t steps) {
  Told told;
  VirtualClock clock;
  Seeded random(seed);
  MemoryFabric fabric(clock, random.next());
  fabric.heard = [&](uint32_t nic, const std::string& what) {
    told.history.add("%" PRIu64 " NIC %u hears %s", clock.now_ns(), nic, what.c_str());
  };
  std::vector<std::unique_ptr<Node>> nodes;
  const auto make = [&](uint32_t i) { return std::make_unique<Node>(fabric, i, random.next(), told.history); };
  const auto add_up = [&](Node& node) {
    const auto s = node.statistics();
    told.direct += s.direct_ops;
    told.cma += s.cma_ops;
    told.framed += s.framed_ops;
    told.failed += s.failed_ops;
    told.overtaken += node.overtaken();
    told.strange.insert(told.strange.end(), node.strange().begin(), node.strange().end());
  };
  for (uint32_t i = 0; i < kNics; ++i) nodes.push_back(make(i));
  for (uint64_t step = 0; step < steps; ++step) {
    const auto at = static_cast<uint32_t>(random.below(kNics));
    if (random.one_in(800)) {
      told.history.add("NIC %u starts again", at);
      add_up(*nodes[at]);
      nodes[at].reset();
      nodes[at] = make(at);
      ++told.restarts;
    }
    nodes[at]->act(random);
    nodes[random.below(kNics)]->progress();
    nodes[random.below(kNics)]->progress();
    clock.pass(random.below(2'000));
  }
  // Accesses end by themselves, and messages when their endpoints close.
  const auto progress_until_none = [&](size_t (Node::*count)() const) {
    size_t left = 1;
    for (int round = 0; round < 5'000 && left != 0; ++round) {
      left = 0;
      for (const auto& node : nodes) {
        node->progress();
        left += (*node.*count)();
      }
      clock.pass(20'000);
    }
    return left;
  };
  told.unfinished = progress_until_none(&Node::accesses_under_way);
  for (const auto& node : nodes) node->close_endpoints();
  told.unfinished += progress_until_none(&Node::under_way);
  for (const auto& node : nodes) {
    node->log_state();
    add_up(*node);
  }
  return told;
}

uint64_t replay_steps() {
  const char* text = std::getenv("WEFT_REPLAY_STEPS");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : 12'000;
}

void expect_equal(const Told& a, const Told& b) {
  const auto& one = a.history.lines;
  const auto& two = b.history.lines;
  const auto [at, other] = std::ranges::mismatch(one, two);
  if (at == one.end() && other == two.end()) return;
  std::string text = "the histories part at line " + std::to_string(at - one.begin()) + " of " +
                     std::to_string(one.size()) + " and " + std::to_string(two.size());
  for (auto before = at - std::min<ptrdiff_t>(at - one.begin(), 3); before != at; ++before)
    text += "\n both " + *before;
  if (at != one.end()) text += "\n first  " + *at;
  if (other != two.end()) text += "\n second " + *other;
  BOOST_ERROR(text);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(replay)

/// Nothing in a NIC depends on the machine's time, its random numbers, or addresses of memory.
BOOST_AUTO_TEST_CASE(test_fabric_of_64_nics_run_twice_from_one_seed_does_the_same) {
  const uint64_t seed = test_seed(), steps = replay_steps();
  BOOST_TEST_CONTEXT("WEFT_SEED=" << seed) {
    const Told first = run(seed, steps);
    for (const std::string& what : first.strange) BOOST_ERROR(what);
    BOOST_TEST(first.unfinished == 0U);
    // The run was worth comparing.
    for (const uint64_t n : {first.direct, first.cma, first.framed, first.failed, first.overtaken, first.restarts}) {
      BOOST_TEST(n != 0U);
    }
    BOOST_TEST_MESSAGE(first.history.lines.size()
                       << " events: direct " << first.direct << ", cma " << first.cma << ", framed " << first.framed
                       << ", failed " << first.failed << ", overtaken " << first.overtaken << ", restarts "
                       << first.restarts);
    const std::vector<std::byte> elsewhere(3'333'333);  // so that the second run's objects have other addresses
    expect_equal(first, run(seed, steps));
    BOOST_TEST((run(seed + 1, steps / 8).history.lines != run(seed, steps / 8).history.lines));
  }
}

BOOST_AUTO_TEST_SUITE_END()
