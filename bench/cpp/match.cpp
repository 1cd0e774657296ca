// bench/cpp/match.cpp: the match unit: a receive posted and a message matched, with few and with many entries.
#include "nic/match.hpp"

#include <numeric>

#include "rows.hpp"

namespace weft::bench {

namespace {

using namespace weft::nic;

constexpr size_t kFew = 10, kMany = 100'000;
constexpr uint64_t kSource = 7;

struct Kind {
  const char* name;
  uint64_t ignore, source;
};
// The last bench ignores low bits of the tag: a communicator's messages with any tag.
constexpr Kind kKinds[] = {
    {"tag and source", 0, kSource}, {"tag, any source", 0, kAnySource}, {"masked tag", 0xff, kAnySource}};

// The tags of `depth` entries, in random order: a search touches cache lines that no earlier search has touched.
std::vector<uint64_t> shuffled(size_t depth) {
  std::vector<uint64_t> tags(depth);
  std::iota(tags.begin(), tags.end(), uint64_t{1});
  for (uint64_t& tag : tags) tag <<= 8;
  std::mt19937_64 random(1);
  std::shuffle(tags.begin(), tags.end(), random);
  return tags;
}

void post(MatchUnit& unit, const Kind& kind, uint64_t tag) {
  Receive r;
  r.what = {tag, kind.ignore, kind.source, true};
  r.length = 8;
  r.context = tag;
  Posted* const p = unit.post(r);
  Match m;
  if (p == nullptr) die("no receive");
  if (!unit.take_unexpected(p, &m)) return;
  unit.release(m.unexpected);
  if (unit.end_use(p)) unit.release(p);
}

// Matches one of `depth` listed receives and posts it again.
Timed posted(const Kind& kind, size_t depth) {
  MatchUnit unit({}, 1);
  const std::vector<uint64_t> tags = shuffled(depth);
  for (const uint64_t tag : tags) post(unit, kind, tag);
  size_t at = 0;
  return measure(5000, [&] {
    const uint64_t tag = tags[at];
    at = at + 1 == depth ? 0 : at + 1;
    Match m;
    if (!unit.match({tag, kSource, 8, 0, 0, 0, true}, &m)) die("no match");
    if (unit.end_use(m.posted)) unit.release(m.posted);
    post(unit, kind, tag);
  });
}

// Posts a receive for one of `depth` unexpected messages, and a new one arrives.
Timed unexpected(const Kind& kind, size_t depth) {
  MatchUnit unit({}, 1);
  const std::vector<uint64_t> tags = shuffled(depth);
  for (const uint64_t tag : tags) {
    if (unit.keep({tag, kSource, 8, 0, 0, 0, true}) == nullptr) die("no message");
  }
  // The first receives with a mask look through the messages until an index is made for the mask.
  for (int i = 0; i < 16; ++i) (void)unit.peek({tags[depth - 1], kind.ignore, kind.source, true});
  size_t at = 0;
  return measure(5000, [&] {
    const uint64_t tag = tags[at];
    at = at + 1 == depth ? 0 : at + 1;
    post(unit, kind, tag);
    const Arrival message{tag, kSource, 8, 0, 0, 0, true};
    Match m;
    if (unit.match(message, &m)) die("the message was not there");
    if (unit.keep(message) == nullptr) die("no message");
  });
}

}  // namespace

void bench_match() {
  for (const Kind& kind : kKinds) {
    for (const bool early : {true, false}) {
      const auto run = early ? posted : unexpected;
      const Timed few = run(kind, kFew);
      for (const size_t depth : {size_t{1}, kMany}) {
        const Timed t = run(kind, depth);
        std::string name = std::string("match ") + kind.name + (early ? ", posted " : ", unexpected ");
        add({name + std::to_string(depth), "ns", t.median, t.p99, "the same with 10", few.median, "<= 200 ns",
             t.median <= 200});
      }
    }
  }
}

}  // namespace weft::bench
