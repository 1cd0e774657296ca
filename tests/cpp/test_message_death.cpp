// tests/cpp/test_message_death.cpp: kill -9 of a process that sends and receives messages, at a random instant. Every
// send and every receive of the survivor ends, and what a receive reports as arrived is whole.
// WEFT_KILL_ROUNDS: the number of rounds (default 30); WEFT_SEED repeats a run.
#include "messaging.hpp"

#if !defined(WEFT_TEST_NO_FORK)

namespace {

using namespace weft;
using namespace weft::test;

constexpr size_t kMost = 200'000, kSlots = 16;
constexpr size_t kSizes[] = {0, 8, 152, 300, 5000, 20'000, 100'000, kMost};

// whole: the messages of 100,000 bytes are eager.
SideConfig config_of(Path path, bool whole) {
  SideConfig config = message_pair(path).a;
  config.host.shm.strict = path == Path::strict;
  config.host.shm.cma = path != Path::ring;
  config.cq_capacity = 256;
  config.ep.tx_size = 64;
  config.ep.messages.unexpected_max = 40;
  if (whole) config.ep.messages.eager_max = 100'000;
  return config;
}

// Sends and receives any messages, whose bytes follow from their tags.
struct Talk {
  Talk(Side& s, uint64_t to, uint64_t seed) : side(s), dest(to), random(seed), out(kSlots), in(kSlots) {
    for (auto& slot : in) slot.bytes.resize(kMost);
  }
  void step() {
    for (size_t i = 0; i < kSlots; ++i) {
      if (!out[i].busy && random() % 2 != 0) {
        const uint64_t tag = random() % 1000;
        out[i].bytes = text_of(kSizes[random() % std::size(kSizes)], static_cast<unsigned>(tag));
        const uint64_t flags = random() % 4 == 0 ? flag::kMatchComplete : 0;
        out[i].busy = send(*side.ep, dest, out[i].bytes.data(), out[i].bytes.size(),
                           {.tag = tag, .context = i + 1, .flags = flags})
                          .refusal == Refusal::none;
      }
      if (!in[i].busy && random() % 2 != 0) {
        in[i].busy =
            receive(*side.ep, in[i].bytes.data(), kMost, {.ignore = ~uint64_t{0}, .context = 100 + i}).refusal ==
            Refusal::none;
      }
    }
    take();
  }
  void take() {
    side.progress();
    while (const auto c = try_completion(side)) {
      const bool received = c->entry.context >= 100;
      auto& slot = received ? in[c->entry.context - 100] : out[c->entry.context - 1];
      slot.busy = false;
      if (c->error == 0 && received) {
        const auto whole = text_of(c->entry.len, static_cast<unsigned>(c->entry.tag));
        torn += !std::equal(whole.begin(), whole.end(), slot.bytes.begin());
        ++arrived;
      }
      // process_vm_* may find that the pages of a dying process are gone before the NIC notices the hang-up.
      if (c->error != 0 && c->status != Status::peer_gone && c->status != Status::no_endpoint &&
          c->status != Status::fault && c->status != Status::canceled) {
        ++strange;
        text = c->text;
      }
    }
  }
  [[nodiscard]] bool sending() const {
    return std::ranges::any_of(out, [](const auto& slot) { return slot.busy; });
  }
  struct Slot {
    std::vector<std::byte> bytes;
    bool busy = false;
  };
  Side& side;
  uint64_t dest;
  std::mt19937_64 random;
  std::vector<Slot> out, in;
  uint64_t arrived = 0, torn = 0, strange = 0;
  std::string text;
};

BOOST_AUTO_TEST_SUITE(message_death)

BOOST_AUTO_TEST_CASE(test_kill_of_a_talking_process_ends_every_send_and_receive) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  uint64_t arrived = 0;
  for (int round = 0; round < kill_rounds(30); ++round) {
    const Path paths[] = {Path::direct, Path::cma, Path::ring, Path::strict};
    const Path path = paths[round % 4];
    const bool whole = round / 4 % 2 != 0;
    BOOST_TEST_CONTEXT("WEFT_SEED=" << seed << ", round " << round << ", path " << path << (whole ? ", whole" : "")) {
      Child other([&](int fd) {
        Side side(config_of(path, whole));
        tell(fd, side.ep->address());
        Talk talk(side, side.av->insert(*hear<wire::EpAddress>(fd)), seed + static_cast<uint64_t>(round));
        for (;;) talk.step();
      });
      Side side(config_of(path, whole));
      const auto address = hear<wire::EpAddress>(other.fd());
      BOOST_REQUIRE(address);
      Talk talk(side, side.av->insert(*address), random());
      tell(other.fd(), side.ep->address());
      const uint64_t steps = 20 + random() % 300;
      for (uint64_t i = 0; i < steps; ++i) {
        talk.step();
        sched_yield();
      }
      other.kill(SIGKILL);
      side.check();
      other.wait();
      BOOST_REQUIRE_MESSAGE(poll_until([&] { return !talk.sending(); }, [&] { talk.take(); }),
                            "a send has not ended: " << side.state());
      for (size_t i = 0; i < kSlots; ++i) {
        if (talk.in[i].busy) (void)side.ep->cancel(100 + i);
      }
      BOOST_REQUIRE_MESSAGE(
          poll_until([&] { return std::ranges::none_of(talk.in, [](const auto& s) { return s.busy; }); },
                     [&] { talk.take(); }),
          "a receive has not ended: " << side.state());
      BOOST_TEST(talk.torn == 0U);
      BOOST_TEST(talk.strange == 0U, talk.text);
      BOOST_TEST(side.ep->outstanding() == 0U);
      // Where nothing was under way, only the hang-up tells of the death.
      BOOST_TEST(poll_until([&] { return side.ep->port()->context().statistics().flows == 0U; }, [&] { talk.take(); }));
      BOOST_TEST(side.nic().table().live_count() == 0U);
      arrived += talk.arrived;
    }
  }
  BOOST_TEST(arrived > 0U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

#endif
