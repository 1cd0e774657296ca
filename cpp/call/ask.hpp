// cpp/call/ask.hpp: a call on a shared object that the NIC of the object's owner does (nic/parking.hpp), from the
// request to the answer: when it waits, when it is canceled and asked again, and when it is given up.
//
// The line knows the time, the frames and the caller's signals; nothing here reads a clock.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstring>
#include <span>
#include <utility>

#include "sync/object.hpp"
#include "wire/call.hpp"

namespace weft::call {

// A parked call is canceled and asked again after this time. So a signal that was lost with a process, and a process
// whose end was not reported, delay a call no longer than this time.
constexpr uint64_t kParkedNs = 5'000'000'000;
// How long the answer to a cancellation may take once the call is over; after that the call is given up.
constexpr uint64_t kCancelNs = 2'000'000'000;
// While the owner's NIC has no room for parked calls: pauses between two requests.
constexpr uint64_t kPauseNsMin = 1'000'000, kPauseNsMax = 100'000'000;
constexpr size_t kRequestBytesMax = 4096;

struct Question {
  uint16_t op = 0, flags = 0;
  uint64_t a = 0, b = 0, state = 0;
  std::span<const std::byte> in;
  size_t room = 0;           // bytes that the answer may bring
  bool leaves = false;       // a barrier's: a party that waits no longer leaves it
  uint64_t deadline_ns = 0;  // in the past: the call does not wait
  uint64_t patience_ns = 0;  // for the answer to a call that does not wait
  bool signals_end = true;   // false: a wait goes on whatever signals come
};

// The process that asks.
struct Asker {
  uint32_t pid = 0, start = 0;
  uint64_t token = 0;
};

// Writes a request, and zeros up to the length of its answer; returns their bytes, 0: they do not fit.
inline size_t write_request(const Asker& who, const Question& q, uint16_t flags, uint64_t id,
                            std::span<std::byte, kRequestBytesMax> to) noexcept {
  wire::CallRequest request;
  const size_t written = sizeof(request) + q.in.size();
  const size_t bytes = std::max(written, sizeof(wire::CallAnswer) + q.room);
  if (bytes > to.size()) return 0;
  request.op = q.op;
  request.flags = static_cast<uint16_t>(q.flags | flags);
  request.pid = who.pid;
  request.start = who.start;
  request.in_bytes = static_cast<uint32_t>(q.in.size());
  request.out_bytes = static_cast<uint32_t>(q.room);
  request.token = who.token;
  request.id = id;
  request.a = q.a;
  request.b = q.b;
  request.state = q.state;
  std::memcpy(to.data(), &request, sizeof(request));
  if (!q.in.empty()) std::memcpy(to.data() + sizeof(request), q.in.data(), q.in.size());
  std::memset(to.data() + written, 0, bytes - written);
  return bytes;
}

// late: the deadline has passed. failed: no answer will come. raised: a signal ended the wait. ended: the caller waits
// no longer, for a reason of its own.
enum class Waited : uint8_t { done, late, failed, raised, ended };

// What carries a call and its answer. An error that the caller's signals raise is held until the call is over.
template <typename L>
concept Line = requires(L line, typename L::Letter letter, const Question& q, uint64_t ns) {
  // False: the request cannot be sent.
  { line.post(letter, q, uint16_t{0}) } -> std::same_as<bool>;
  // Waits for the answer. A signal, or the caller's own reason, ends the wait if `ends` is true; otherwise a signal
  // leaves it kCancelNs.
  { line.wait(letter, ns, true) } -> std::same_as<Waited>;
  { line.now_ns() } -> std::same_as<uint64_t>;
  { line.pause(ns) } -> std::same_as<bool>;  // true: the caller waits no longer, for a reason of its own
  line.hold_error();                         // also the error of post()
  { line.holds_error() } -> std::same_as<bool>;
  { letter.id } -> std::convertible_to<uint64_t>;
  { letter.done } -> std::convertible_to<bool>;
  { letter.head() } -> std::same_as<wire::CallAnswer>;
};

template <Line L>
struct Asked {
  // failed: the line has the error, or is closed. silent: no answer came, and the call is given up: an answer may still
  // come. raised: the request could not be sent.
  enum class End : uint8_t { answered, failed, silent, raised } end = End::raised;
  wire::CallAnswer head;
  typename L::Letter letter;  // answered
  bool posted = false;        // the owner's NIC has the call, or gets it when its process goes on
  bool idle = false;          // nothing is under way on the line
};

// Waits until the call is done, or the deadline.
template <Line L>
Asked<L> ask(L& line, Question q) {
  using sync::Outcome;
  using End = typename Asked<L>::End;
  const auto is = [](const wire::CallAnswer& head, Outcome outcome) {
    return head.outcome == static_cast<uint32_t>(outcome);
  };
  Asked<L> found;
  const auto end = [&](End how) {
    found.end = how;
    if (how != End::answered) found.head.state = q.state;
    return std::move(found);
  };
  // No answer: the line has an error; or the owner's NIC does nothing now, because its process is stopped. Then that
  // NIC undoes the call when its process goes on.
  const auto given_up = [&](Waited waited, const typename L::Letter* letter) {
    if (waited == Waited::failed) return end(End::failed);
    if (letter != nullptr) {
      Question last;
      last.a = letter->id;
      last.op = q.op;
      typename L::Letter none;
      if (!line.post(none, last, wire::kCallCancel | wire::kCallGivenUp)) line.hold_error();
      q.state = 0;
    }
    return end(End::silent);
  };
  const auto stops = [&] { return q.signals_end && line.holds_error(); };
  for (uint64_t pause = kPauseNsMin;; pause = std::min(2 * pause, kPauseNsMax)) {
    const uint64_t begun = line.now_ns();
    const bool waits = q.deadline_ns > begun;
    bool answered_all = true;
    typename L::Letter letter, canceling;
    if (!line.post(letter, q, waits ? wire::kCallPark : uint16_t{0})) return end(End::raised);
    const uint64_t until = waits ? std::min(q.deadline_ns, begun + kParkedNs) : begun + q.patience_ns;
    Waited waited = line.wait(letter, until < begun ? ~uint64_t{0} : until, waits && q.signals_end);
    bool over = waited == Waited::ended;
    found.posted = true;
    if (waited == Waited::failed || (waited == Waited::late && !waits)) return given_up(waited, &letter);
    if (waited != Waited::done) {
      Question cancel;
      cancel.a = letter.id;
      cancel.op = q.op;
      if (!line.post(canceling, cancel, wire::kCallCancel)) {
        line.hold_error();
        return end(End::raised);
      }
      const auto both = [&](uint64_t limit, bool ends) {
        const Waited first = line.wait(canceling, limit, ends);
        return first == Waited::done ? line.wait(letter, limit, ends) : first;
      };
      // If the parking alone was long enough, the owner may take as long as the call may wait.
      if (!stops() && !over && q.deadline_ns > line.now_ns()) waited = both(q.deadline_ns, q.signals_end);
      over = over || waited == Waited::ended;
      if (waited != Waited::done && waited != Waited::failed) waited = both(line.now_ns() + kCancelNs, false);
      if (!letter.done) return given_up(waited, &letter);
      answered_all = waited == Waited::done;
    }
    found.head = letter.head();
    found.letter = std::move(letter);
    const bool open = is(found.head, Outcome::again) || is(found.head, Outcome::canceled);
    if (found.head.state != 0) q.state = found.head.state;
    const uint64_t now = line.now_ns();
    // `again`: the owner has no room for parked calls.
    if (is(found.head, Outcome::again) && !over && !stops() && q.deadline_ns > now) {
      over = line.pause(std::min(pause, q.deadline_ns - now));
    }
    if (open && answered_all && !over && !stops() && q.deadline_ns > line.now_ns()) continue;
    if (open) {
      found.head.outcome = static_cast<uint32_t>(Outcome::again);
      found.head.state = q.state;
      if (q.leaves && q.state != 0) {
        Question leave;
        leave.op = static_cast<uint16_t>(sync::Op::withdraw);
        leave.flags = q.flags;
        leave.state = q.state;
        typename L::Letter leaving;
        if (!line.post(leaving, leave, 0)) {
          line.hold_error();
          return end(End::raised);
        }
        waited = line.wait(leaving, line.now_ns() + (line.holds_error() ? kCancelNs : q.patience_ns), false);
        if (waited != Waited::done) return given_up(waited, nullptr);
        if (const auto left = leaving.head(); is(left, Outcome::done) && left.value != 0) {
          found.head.outcome = static_cast<uint32_t>(Outcome::done);  // the last party has come just now
          found.head.value = left.value2;
        }
      }
    }
    found.idle = answered_all;
    return end(End::answered);
  }
}

}  // namespace weft::call
