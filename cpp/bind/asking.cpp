// cpp/bind/asking.cpp: see asking.hpp.
#include "bind/asking.hpp"

#include <algorithm>
#include <exception>
#include <thread>

#include "bind/signatures.hpp"
#include "bind/wait.hpp"
#include "nic/queue.hpp"

namespace weft::bind {

namespace {

using sync::Op;
using sync::Outcome;

using call::kCancelNs, call::kRequestBytesMax, call::Waited;

constexpr int64_t kAsleepNs = 250'000'000;  // how often a sleeping thread checks whether its node was closed
// Pauses between two calls of `also`.
constexpr uint64_t kAlsoNsMin = 20'000'000, kAlsoNsMax = 250'000'000;
constexpr int kAttempts = 8;               // of a call that undoes another
constexpr uint64_t kUndoNs = 100'000'000;  // how long such a call waits for its turn; then the owner's NIC does it

// Numbers of calls; weft.share.arrays.calls has smaller numbers.
uint64_t next_id() noexcept {
  static std::atomic<uint64_t> next{uint64_t{1} << 32};
  return next.fetch_add(1, std::memory_order_relaxed);
}

bool number_of(PyObject* object, const char* name, uint64_t* found) {
  const nb::object value = nb::steal(PyObject_GetAttrString(object, name));
  if (!value.is_valid()) return false;
  *found = PyLong_AsUnsignedLongLong(value.ptr());
  return !(*found == ~uint64_t{0} && PyErr_Occurred());
}

// One frame under way, and the memory of its answer.
struct Answer {
  nb::object answer;
  uint64_t id = 0;
  bool done = false;
  [[nodiscard]] wire::CallAnswer head() const {
    wire::CallAnswer found;
    std::memcpy(&found, PyByteArray_AS_STRING(answer.ptr()), sizeof(found));
    return found;
  }
};

// A lane of the array's node, used by this call alone.
class Line {
 public:
  using Letter = Answer;
  explicit Line(const Asker& who, PyObject* also) noexcept : who_(who), also_(also) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  enum class Took : uint8_t { taken, none, error };
  Took take() {
    PyObject* const array = who_.array.ptr();
    const nb::object pop = nb::steal(PyObject_GetAttrString(array, "_pop"));
    if (!pop.is_valid()) return Took::error;
    lane_ = nb::steal(PyObject_CallNoArgs(pop.ptr()));
    if (!lane_.is_valid()) {
      if (!PyErr_ExceptionMatches(PyExc_IndexError)) return Took::error;
      PyErr_Clear();
      return Took::none;
    }
    ep_object_ = nb::steal(PyObject_GetAttrString(lane_.ptr(), "ep"));
    cq_object_ = nb::steal(PyObject_GetAttrString(lane_.ptr(), "cq"));
    if (!ep_object_.is_valid() || !cq_object_.is_valid() || !number_of(array, "_peer", &dest_) ||
        !number_of(array, "_base", &addr_) || !number_of(array, "_key", &key_)) {
      return Took::error;
    }
    ep_ = nb::inst_ptr<EndpointCore>(ep_object_);
    cq_ = nb::inst_ptr<CompletionQueueCore>(cq_object_);
    return Took::taken;
  }
  // The lane is idle again.
  void push() {
    const nb::object push = nb::steal(PyObject_GetAttrString(who_.array.ptr(), "_push"));
    if (push.is_valid()) (void)nb::steal(PyObject_CallOneArg(push.ptr(), lane_.ptr()));
    if (PyErr_Occurred()) PyErr_Clear();
  }
  // An answer may still come: the lane serves no other call.
  void set_aside() {
    const nb::object node = nb::steal(PyObject_GetAttrString(who_.array.ptr(), "_node"));
    if (node.is_valid() && !node.is_none()) {
      (void)nb::steal(PyObject_CallMethod(node.ptr(), "_set_aside", "O", lane_.ptr()));
    }
    if (PyErr_Occurred()) hold_error();
  }
  [[nodiscard]] nb::object lane() const { return lane_; }

  // False: with an error set.
  bool post(Letter& letter, const Question& q, uint16_t flags) {
    letter.id = next_id();
    std::array<std::byte, kRequestBytesMax> text;
    const size_t bytes = call::write_request(who_, q, flags, letter.id, text);
    if (bytes == 0) return set_error(fi_err::kEMSGSIZE, "ask: the call does not fit a frame");
    letter.answer = nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    Buf out;
    if (!letter.answer.is_valid() || !usable(ep_, "ask") || !out.acquire(letter.answer.ptr(), true)) return false;
    const nic::CallArgs call{.dest = dest_, .addr = addr_, .key = key_, .request = {text.data(), bytes}};
    if (!post_call(ep_, "ask", call, out, letter.answer.ptr())) return false;
    under_way_[under_way_[0] == nullptr ? 0 : 1] = &letter;
    return true;
  }

  // Waits for an answer. A signal handler's error is held. With `ends` the error ends the wait, as `also` does;
  // otherwise it leaves the wait kCancelNs.
  Waited wait(const Letter& want, uint64_t deadline, bool ends) {
    PyObject* const also = ends ? also_ : nullptr;
    const auto box = cq_->box;
    const auto cq = cq_->cq;
    if (!box || cq_->closed) return Waited::failed;
    for (uint64_t pause = kAlsoNsMin; !want.done;) {
      const uint64_t until = also == nullptr ? deadline : std::min(deadline, now_ns() + pause);
      const int r = wait_for(
          *box->domain->nic(), cq->event, cq_->pacer, until,
          [&] { return cq_->closed.load(std::memory_order_relaxed) || !cq->looks_empty(); }, kAsleepNs);
      if (r < 0) {
        hold_error();
        if (ends) return Waited::raised;
        deadline = std::min(deadline, now_ns() + kCancelNs);
      }
      if (cq_->closed) return Waited::failed;
      std::array<nic::CqEntry, 4> entries;
      bool error_waits = false;
      size_t n;
      {
        const nic::DomainLock guard(box->domain.get());
        n = cq->read(entries.data(), entries.size(), &error_waits);
      }
      for (size_t i = 0; i < n; ++i) settle(entries[i]);
      if (n == 0 && error_waits) return Waited::failed;
      if (n != 0 || r != 0) continue;
      if (until == deadline) return Waited::late;
      pause = std::min(2 * pause, kAlsoNsMax);
      if (const int over = is_true(also); over != 0) return over < 0 ? Waited::raised : Waited::ended;
    }
    return Waited::done;
  }
  // True: `also` ends the call.
  bool pause(uint64_t ns) {
    {
      const ReleasedGil released;
      std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    }
    if (PyErr_CheckSignals() != 0) hold_error();
    return also_ != nullptr && !held_.has_value() && is_true(also_) != 0;
  }
  // The truth of the function's result; -1: the function raised an error, which is held.
  int is_true(PyObject* function) {
    const nb::object found = nb::steal(PyObject_CallNoArgs(function));
    const int truth = found.is_valid() ? PyObject_IsTrue(found.ptr()) : -1;
    if (truth < 0) hold_error();
    return truth;
  }
  [[nodiscard]] static uint64_t now_ns() { return bind::now_ns(); }
  [[nodiscard]] bool holds_error() const noexcept { return held_.has_value(); }
  void hold_error() { held_.has_value() ? PyErr_Clear() : void(held_.emplace()); }

 private:
  void settle(const nic::CqEntry& entry) {
    auto* const context = reinterpret_cast<PyObject*>(entry.context);
    for (Letter*& letter : under_way_) {
      if (letter == nullptr || letter->answer.ptr() != context) continue;
      letter->done = true;
      letter = nullptr;
    }
    Py_XDECREF(context);
  }

  const Asker& who_;
  PyObject* const also_;
  nb::object lane_, ep_object_, cq_object_;
  EndpointCore* ep_ = nullptr;
  CompletionQueueCore* cq_ = nullptr;
  uint64_t dest_ = 0, addr_ = 0, key_ = 0;
  Letter* under_way_[2] = {};
  std::optional<HeldError> held_;  // is set when the line ends
};

}  // namespace

bool post_call(EndpointCore* core, const char* method, nic::CallArgs call, const Buf& out, PyObject* context) {
  call.answer = out.data;
  call.context = reinterpret_cast<uint64_t>(Py_NewRef(context));
  const nic::PostResult r = core->ep->post_call(call);
  if (!r.context_used) Py_DECREF(context);
  if (r.refusal != Refusal::none) return refuse(core, method, r.refusal, call.dest, call.request.size());
  const Buf* const held[] = {&out};
  if (r.op_id != 0) hold_buffers(core, r.op_id, held, 1);
  return true;
}

std::span<const std::byte> Reply::record() const noexcept {
  const auto* text = reinterpret_cast<const std::byte*>(PyByteArray_AS_STRING(answer.ptr()));
  const size_t room = static_cast<size_t>(PyByteArray_GET_SIZE(answer.ptr())) - sizeof(head);
  return {text + sizeof(head), std::min<size_t>(head.length, room)};
}

Reply ask(const Asker& who, const Question& q, PyObject* also) {
  using End = call::Asked<Line>::End;
  Reply reply;
  Line line(who, also);
  if (const auto took = line.take(); took != Line::Took::taken) {
    reply.end = took == Line::Took::none ? Reply::End::no_lane : Reply::End::raised;
    return reply;
  }
  auto asked = call::ask(line, q);
  reply.head = asked.head;
  reply.posted = asked.posted;
  reply.id = asked.letter.id;
  reply.answer = std::move(asked.letter.answer);
  switch (asked.end) {
    case End::answered:
      asked.idle ? line.push() : line.set_aside();
      reply.end = Reply::End::answered;
      break;
    case End::failed:
      reply.end = Reply::End::failed;
      reply.lane = line.lane();
      break;
    case End::silent:
      reply.end = Reply::End::silent;
      line.set_aside();
      break;
    case End::raised:
      reply.end = Reply::End::raised;
      break;
  }
  if (line.holds_error()) reply.end = Reply::End::raised;
  return reply;
}

// ---- deeds ---------------------------------------------------------------------------------------------------------

thread_local Deed* Deed::current_ = nullptr;

namespace {

// Calls a method that takes nothing, in a thread of its own: Python runs signal handlers in the main thread alone, so
// none of them ends the call.
void call_elsewhere(PyObject* self, const char* method) {
  if (interpreter_ends()) return;
  try {
    std::thread caller([=] {
      const PyGILState_STATE before = PyGILState_Ensure();
      Py_XDECREF(PyObject_CallMethod(self, method, nullptr));
      PyErr_Clear();
      PyGILState_Release(before);
    });
    const ReleasedGil released;
    caller.join();
  } catch (const std::exception&) {  // no thread, or no memory: the next attempt tries again
  }
}

}  // namespace

// Asks, whatever signals come. No answer: the call is not posted, or the owner's NIC does it later.
Reply Deed::press(const Question& q) {
  Reply reply;
  for (int i = 0; i < kAttempts; ++i) {
    reply = ask(asker_, q);
    PyErr_Clear();
    if (reply.answer.is_valid() || reply.posted) break;
    if (reply.end == Reply::End::no_lane) call_elsewhere(self_, "_spare_lane");
  }
  return reply;
}

// One call that ends a begun operation. False: the call was not done.
bool Deed::settle(Op op, uint64_t a, uint64_t b, std::span<const std::byte> in) {
  if (!asker_.array.is_valid()) {
    if (!core_->ready()) return false;
    sync::Call call = core_->call(op);
    call.a = a;
    call.b = b;
    call.in = in.data();
    call.in_bytes = in.size();
    return core_->do_now(call) == Outcome::done;
  }
  Question q;
  q.op = static_cast<uint16_t>(op);
  q.a = a;
  q.b = b;
  q.in = in;
  q.deadline_ns = now_ns() + kUndoNs;
  q.patience_ns = kCancelNs;
  q.signals_end = false;
  if (in.size() > kRequestBytesMax - sizeof(wire::CallRequest)) return false;
  const Reply reply = press(q);
  return reply.answer.is_valid() ? reply.head.outcome == static_cast<uint32_t>(Outcome::done) : reply.posted;
}

void Deed::hand_back(Op op, uint64_t id) {
  if (!asker_.array.is_valid()) return;
  Question q;
  q.op = static_cast<uint16_t>(op);
  q.flags = wire::kCallCancel | wire::kCallGivenUp;
  q.a = id;
  q.patience_ns = kCancelNs;
  (void)press(q);
}

void Deed::undo() {
  const HeldError error;
  struct By {
    Deed& deed;
    [[nodiscard]] bool settle(Op op, uint64_t a, uint64_t b) const { return deed.settle(op, a, b, {}); }
    [[nodiscard]] bool has_record() const { return deed.record_.is_valid(); }
    void keep() const { deed.core_->kept.push_back(deed.item()); }
    [[nodiscard]] bool put_back(uint64_t type) const {
      PyObject* const bytes = deed.record_.ptr();
      const auto* text = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(bytes));
      return deed.settle(Op::put_back, type, 0, {text, static_cast<size_t>(PyBytes_GET_SIZE(bytes))});
    }
    void hand_back(Op op, uint64_t id) const { deed.hand_back(op, id); }
  };
  const sync::Taken taken = taken_;
  taken_.op = {};
  sync::undo(taken, nb::isinstance<SemaphoreCore>(self_), By{*this});
}

// ---- SyncCore._ask -------------------------------------------------------------------------------------------------

namespace {

constexpr uint32_t kNoLane = 102, kFailed = 103, kSilent = 104;  // further outcomes: weft.share.arrays.calls

}  // namespace

PyObject* sync_ask(PyObject* self, PyObject* (&a)[13]) {
  uint64_t op = 0, flags = 0, room = 0, deadline = 0, patience = 0;
  Question q;
  Asker who;
  unsigned long long token = 0;
  if (!PyArg_ParseTuple(a[1], "IIK", &who.pid, &who.start, &token) || !to_u64(a[2], &op, "_ask", "op") ||
      !to_u64(a[3], &flags, "_ask", "flags") || !to_u64(a[4], &q.a, "_ask", "a") || !to_u64(a[5], &q.b, "_ask", "b") ||
      !to_u64(a[7], &room, "_ask", "room") || !deadline_of(a[8], &deadline, "_ask") ||
      !deadline_of(a[9], &patience, "_ask") || !to_u64(a[10], &q.state, "_ask", "state")) {
    return nullptr;
  }
  who.token = token;
  who.array = nb::borrow(a[0]);
  q.op = static_cast<uint16_t>(op);
  q.flags = static_cast<uint16_t>(flags);
  q.room = room;
  q.leaves = PyObject_IsTrue(a[11]) == 1;
  q.deadline_ns = deadline;
  const uint64_t now = now_ns();
  q.patience_ns = patience == kForever ? kForever : patience > now ? patience - now : 0;
  if (!PyBytes_CheckExact(a[6])) return type_error("_ask: data are bytes");
  const bool frees = static_cast<Op>(op) == Op::free_slot;  // its data are the slot's record, which stays here
  if (!frees)
    q.in = {reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(a[6])), static_cast<size_t>(PyBytes_GET_SIZE(a[6]))};
  SyncCore* const core = core_of(self);
  Deed* const deed = Deed::of(core);
  if (deed != nullptr && frees) deed->note_read(nb::borrow(a[6]));
  const Reply reply = ask(who, q, a[12] == Py_None ? nullptr : a[12]);
  if (deed != nullptr && reply.end != Reply::End::no_lane) deed->note_posted();
  const bool done = reply.answer.is_valid() && reply.head.outcome == static_cast<uint32_t>(Outcome::done) &&
                    (flags & (wire::kCallWatch | wire::kCallCancel)) == 0;
  if (deed != nullptr && done) {
    deed->note(static_cast<Op>(op), &who, q.a, reply.head.value, reply.head.value2, reply.head.value3, reply.id);
  }
  nb::object record;
  if (done && static_cast<Op>(op) == Op::get) {
    const auto bytes = reply.record();
    record = nb::steal(
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()), static_cast<Py_ssize_t>(bytes.size())));
    if (deed != nullptr && record.is_valid()) deed->note_item(reply.head.value3, record);
  }
  if (reply.end == Reply::End::raised || PyErr_Occurred()) return nullptr;
  uint32_t outcome = reply.head.outcome;
  if (reply.end == Reply::End::no_lane) outcome = kNoLane;
  if (reply.end == Reply::End::failed) outcome = kFailed;
  if (reply.end == Reply::End::silent) outcome = kSilent;
  if (reply.lane.is_valid()) record = reply.lane;
  return Py_BuildValue("(IKKKKO)", outcome, reply.head.value, reply.head.value2, reply.head.value3, reply.head.state,
                       record.is_valid() ? record.ptr() : Py_None);
}

// The first item that was got and not delivered: (type, bytes). None: there is none.
PyObject* queue_take_kept(PyObject* self, PyObject*) {
  SyncCore* c = core_of(self);
  if (c->kept.empty()) Py_RETURN_NONE;
  const KeptItem item = std::move(c->kept.front());
  c->kept.pop_front();
  if (Deed* const deed = Deed::of(c)) deed->note_item(item.type, item.bytes);
  return Py_BuildValue("(KO)", static_cast<unsigned long long>(item.type), item.bytes.ptr());
}
PyObject* queue_keep(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  uint64_t type = 0;
  if (nargs != 2 || !to_u64(args[0], &type) || !PyBytes_CheckExact(args[1])) return type_error("_keep(type, bytes)");
  core_of(self)->kept.push_back({type, nb::borrow(args[1])});
  Py_RETURN_NONE;
}

}  // namespace weft::bind
