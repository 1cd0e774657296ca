// tests/cpp/test_match_model.cpp: the match unit against a model that compares everything in turn: random masks,
// sources, sizes, cancels, peeks, claims and buffers for several messages. WEFT_SEED repeats a run with another seed,
// WEFT_MATCH_MESSAGES says how many messages there are.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "nic/match.hpp"

namespace {

using namespace weft::nic;

// -----------------------------------------------------------------------------------------------------------

bool matches(const Pattern& p, const Arrival& m) {
  return p.tagged == m.tagged && (p.source == kAnySource || p.source == m.source) &&
         (!p.tagged || ((p.tag ^ m.tag) & ~p.ignore) == 0);
}

// The rules, by comparing everything in turn.
struct Model {
  struct Buffer {
    Receive receive;
    uint64_t used = 0;
    uint32_t under_way = 0;
    bool open = true;
  };
  struct Taken {
    std::shared_ptr<Buffer> buffer;
    uint64_t offset, stored, cut;
    bool last;
  };
  std::deque<std::shared_ptr<Buffer>> posted;
  std::deque<Arrival> unexpected;
  std::vector<std::pair<uint64_t, Arrival>> claimed;

  static Taken put(const std::shared_ptr<Buffer>& b, uint64_t length) {
    const uint64_t room = b->receive.length - b->used, stored = std::min(room, length), left = room - stored;
    const bool last = !b->receive.multi || stored < length || left == 0 || left < b->receive.min_left;
    const Taken taken{b, b->used, stored, length - stored, last};
    b->used += stored;
    ++b->under_way;
    b->open = !last;
    return taken;
  }
  std::optional<Taken> arrive(const Arrival& m) {
    const auto it = std::find_if(posted.begin(), posted.end(), [&](auto& b) { return matches(b->receive.what, m); });
    if (it == posted.end()) return unexpected.push_back(m), std::nullopt;
    const Taken taken = put(*it, m.length);
    if (taken.last) posted.erase(it);
    return taken;
  }
  std::deque<Arrival>::iterator find(const Pattern& what) {
    return std::find_if(unexpected.begin(), unexpected.end(), [&](const Arrival& m) { return matches(what, m); });
  }
};

// A thousand steps of each of these in turn: the lists grow and drain.
constexpr struct {
  int posts, arrivals;  // in 100 steps; the rest are cancels, peeks, claims, discards and ends
} kPhases[] = {{40, 40}, {60, 25}, {20, 65}, {25, 60}, {65, 20}, {45, 40}};

class Trial {
 public:
  explicit Trial(uint64_t seed) : random_(seed), unit_({}, random_()) {
    while (masks_.size() < 24) masks_.push_back(random_() & random_());
  }

  void run(uint64_t messages) {
    for (uint64_t step = 0; messages_ < messages && !failed_; ++step) {
      const auto& phase = kPhases[step / 1000 % std::size(kPhases)];
      // Few masks at first, so that they are hashed; then many, so that some are not.
      mask_count_ = step / 6000 % 2 == 0 ? 4 : masks_.size();
      // Short lists most of the time: the model compares everything in turn.
      const size_t most = step / 1000 % 16 == 15 ? 600 : 60;
      if (model_.posted.size() > most) cancel();
      if (model_.unexpected.size() > most) receive_any();
      const auto what = static_cast<int>(random_() % 100);
      if (what < phase.posts) {
        post_any();
      } else if (what < phase.posts + phase.arrivals) {
        arrive();
      } else {
        other();
      }
      if (step % 97 == 0) unit_.check();
      if (step % 997 == 0) compare_lists();
    }
    compare_lists();
    while (!ends_.empty()) end_one();
    for (Posted* p : unit_.listed()) {
      unit_.cancel(p);
      if (p->under_way == 0) unit_.release(p);
    }
    check(unit_.statistics().posted_used == 0, "receives were not released");
  }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] uint64_t messages() const { return messages_; }
  [[nodiscard]] MatchUnit::Statistics statistics() const { return unit_.statistics(); }
  uint64_t deepest = 0, unhashed = 0;

 private:
  struct Use {
    Posted* posted;
    std::shared_ptr<Model::Buffer> buffer;
  };

  void check(bool holds, const char* what) {
    if (holds || failed_) return;
    failed_ = true;
    BOOST_ERROR(what << ", after " << messages_ << " messages");
  }
  uint64_t below(uint64_t n) { return random_() % n; }
  Pattern pattern() {
    static constexpr uint64_t kPlain[] = {0, 0, 0, 3};
    Pattern p;
    p.tagged = below(4) != 0;
    p.tag = tag();
    const uint64_t i = below(mask_count_);
    p.ignore = below(3) != 0 ? kPlain[below(4)] : i == 0 ? ~uint64_t{0} : masks_[i];
    p.source = below(2) == 0 ? kAnySource : below(kSources);
    return p;
  }
  // A few low bits and a few high bits, which some masks ignore.
  uint64_t tag() { return below(12) | below(3) << 60; }
  uint64_t length() { return below(8) == 0 ? below(200) : below(40); }

  void post_any() {
    Receive r;
    r.what = pattern();
    r.length = below(64);
    r.context = below(20) == 0 ? 7 : ++serial_ + 100;  // some share a context
    if (below(8) == 0) {
      r.multi = true;
      r.length = below(1000);
      r.min_left = below(3) * 30;
    }
    post(r);
  }

  void post(const Receive& r) {
    const auto buffer = std::make_shared<Model::Buffer>(Model::Buffer{r});
    Posted* const p = unit_.post(r);
    check(p != nullptr, "post() refused");
    if (failed_) return;
    while (buffer->open) {
      const auto expected = model_.find(r.what);
      Match m;
      const bool found = unit_.take_unexpected(p, &m);
      check(found == (expected != model_.unexpected.end()), "a receive found what it should not, or missed a message");
      if (!found || failed_) break;
      check(m.unexpected->cookie == expected->cookie, "a receive took another message");
      check(m.posted == p, "a message was given to another receive");
      compare(m, Model::put(buffer, expected->length));
      unit_.release(m.unexpected);
      model_.unexpected.erase(expected);
      ends_.push_back({p, buffer});
    }
    if (buffer->open) model_.posted.push_back(buffer);
  }

  void arrive() {
    ++messages_;
    Arrival message;
    message.tagged = below(4) != 0;
    message.tag = message.tagged ? tag() : 0;
    message.source = below(kSources);
    message.length = length();
    message.cookie = ++serial_;
    const auto expected = model_.arrive(message);
    Match m;
    const bool found = unit_.match(message, &m);
    check(found == expected.has_value(), "a message found what it should not, or missed a receive");
    if (failed_) return;
    if (!found) {
      check(unit_.keep(message) != nullptr, "keep() refused");
      return;
    }
    check(m.posted->context == expected->buffer->receive.context, "a message went to another receive");
    check(m.unexpected == nullptr, "a message that has just arrived was called unexpected");
    compare(m, *expected);
    ends_.push_back({m.posted, expected->buffer});
  }

  void compare(const Match& m, const Model::Taken& t) {
    check(m.offset == t.offset && m.stored == t.stored && m.cut == t.cut, "the bytes go elsewhere");
    check(m.last == t.last, "a buffer was retired too early or too late");
  }

  void end_one() {
    const size_t i = below(ends_.size());
    const Use use = ends_[i];
    ends_[i] = ends_.back();
    ends_.pop_back();
    const bool expected = --use.buffer->under_way == 0 && !use.buffer->open;
    const bool last = unit_.end_use(use.posted);
    check(last == expected, "a buffer ended too early or too late");
    if (last) unit_.release(use.posted);
  }

  void cancel() {
    const uint64_t context =
        below(3) == 0 || model_.posted.empty() ? 7 : model_.posted[below(model_.posted.size())]->receive.context;
    const auto it = std::find_if(model_.posted.begin(), model_.posted.end(),
                                 [&](auto& b) { return b->receive.context == context; });
    Posted* const p = unit_.cancel(context);
    check((p != nullptr) == (it != model_.posted.end()), "cancel() found what it should not, or missed a receive");
    if (p == nullptr || failed_) return;
    check(p->tag == ((*it)->receive.what.tagged ? (*it)->receive.what.tag : 0), "cancel() took a later receive");
    check(p->under_way == (*it)->under_way, "messages under way are counted wrong");
    (*it)->open = false;
    if (p->under_way == 0) unit_.release(p);
    model_.posted.erase(it);
  }

  // Posts a receive for one of the unexpected messages.
  void receive_any() {
    const Arrival& m = model_.unexpected[below(model_.unexpected.size())];
    Receive r;
    r.what = {m.tag, 0, below(2) == 0 ? kAnySource : m.source, m.tagged};
    r.context = ++serial_ + 100;
    post(r);
  }

  void other() {
    switch (below(6)) {
      case 0:
        cancel();
        break;
      case 1:
      case 2: {
        const Pattern what = pattern();
        const auto expected = model_.find(what);
        Unexpected* const u = unit_.peek(what);
        check((u != nullptr) == (expected != model_.unexpected.end()), "peek() saw what it should not, or missed it");
        if (u == nullptr || failed_) break;
        check(u->cookie == expected->cookie, "peek() saw a later message");
        if (below(3) == 0) {
          check(unit_.claim(u, expected->cookie), "claim() refused");
          model_.claimed.emplace_back(expected->cookie, *expected);
          model_.unexpected.erase(expected);
        } else if (below(3) == 0) {
          unit_.take(u);
          unit_.release(u);
          model_.unexpected.erase(expected);
        }
        break;
      }
      case 3: {
        if (model_.claimed.empty()) {
          check(unit_.take_claimed(7) == nullptr, "a message was claimed by nobody");
          break;
        }
        const size_t i = below(model_.claimed.size());
        Unexpected* const u = unit_.take_claimed(model_.claimed[i].first);
        check(u != nullptr && u->cookie == model_.claimed[i].second.cookie, "take_claimed() gave another message");
        if (failed_) break;
        unit_.release(u);
        model_.claimed.erase(model_.claimed.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
      default:
        for (size_t n = 1 + ends_.size() / 4; n > 0 && !ends_.empty(); --n) end_one();
    }
  }

  void compare_lists() {
    if (failed_) return;
    std::vector<uint64_t> seen, expected;
    unit_.each_unexpected([&](const Unexpected& u) { seen.push_back(u.cookie); });
    for (const bool tagged : {false, true}) {
      for (const Arrival& m : model_.unexpected) {
        if (m.tagged == tagged) expected.push_back(m.cookie);
      }
    }
    check(seen == expected, "the unexpected messages are others");
    const std::vector<Posted*> posted = unit_.listed();
    check(std::equal(
              posted.begin(), posted.end(), model_.posted.begin(), model_.posted.end(),
              [](const Posted* p, const auto& b) { return p->context == b->receive.context && p->used == b->used; }),
          "the posted receives are others");
    const auto s = unit_.statistics();
    check(s.posted == posted.size() && s.unexpected == seen.size() && s.claimed == model_.claimed.size(),
          "the statistics are wrong");
    deepest = std::max<uint64_t>({deepest, s.posted, s.unexpected});
    unhashed = std::max<uint64_t>(unhashed, s.unhashed);
  }

  static constexpr uint64_t kSources = 5;
  std::mt19937_64 random_;
  MatchUnit unit_;
  Model model_;
  std::vector<Use> ends_;
  std::vector<uint64_t> masks_;
  size_t mask_count_ = 4;
  uint64_t serial_ = 0, messages_ = 0;
  bool failed_ = false;
};

uint64_t from_environment(const char* name, uint64_t usual) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : usual;
}

BOOST_AUTO_TEST_SUITE(match_model)

BOOST_AUTO_TEST_CASE(test_match_unit_does_what_the_model_does) {
  const uint64_t seed = from_environment("WEFT_SEED", 14);
  const uint64_t messages = from_environment("WEFT_MATCH_MESSAGES", 1'000'000);
  BOOST_TEST_MESSAGE("seed " << seed);
  BOOST_TEST_CONTEXT("seed " << seed) {
    Trial trial(seed);
    trial.run(messages);
    BOOST_TEST(!trial.failed());
    BOOST_TEST(trial.messages() >= messages);
    BOOST_TEST_MESSAGE("deepest list " << trial.deepest << ", not hashed " << trial.unhashed << ", indexes "
                                       << trial.statistics().indexes_made);
    // The run reached the rare ways.
    BOOST_TEST(trial.deepest > 100U);
    BOOST_TEST(trial.unhashed > 10U);
    BOOST_TEST(trial.statistics().indexes_made > 0U);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
