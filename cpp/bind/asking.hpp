// cpp/bind/asking.hpp: the calls of a thread that an exception may end: a signal handler that raises (Ctrl-C).
//
// Python runs signal handlers between two of its instructions, so no Python code can hold a lock, a permit or an item
// without a moment in which an exception loses it. So what a call takes is kept here, in C++, until the call returns:
//
//   Deed     of the outermost call, a method of the extension: what the Python code below has taken. If that code ends
//            with an exception, the deed is undone.
//   ask()    a call that the NIC of the object's owner does (nic/parking.hpp), from the request to the answer. A wait
//            that an exception ends is withdrawn first. If the owner's process is stopped, its NIC undoes the call when
//            the process goes on.
#pragma once

#include <deque>

#include "bind/ep.hpp"
#include "bind/held_error.hpp"
#include "call/ask.hpp"
#include "nic/window.hpp"
#include "sync/deed.hpp"
#include "sync/wait.hpp"
#include "wire/call.hpp"

namespace weft::bind {

// A record that was got and not delivered: the next get() of this handle delivers it.
struct KeptItem {
  uint64_t type = 0;
  nb::object bytes;
};

// An object, as far as this process maps it.
struct SyncCore {
  std::shared_ptr<NicBox> box;  // outlives `keep`
  std::shared_ptr<nic::Hold> keep;
  sync::Object object;  // head: null: not mapped
  uint64_t mine = 0;    // holder_word() of this process
  const std::atomic<uint32_t>* parked = nullptr;
  std::atomic<bool> closing{false};
  bool records = false;        // queue: every item goes through Python
  sync::Seat* seat = nullptr;  // semaphore: of this process's permits, as the last take() found it
  uint64_t tag = 0;
  std::deque<KeptItem> kept;  // queue

  // HOT. False: the Python method finds out why.
  [[nodiscard]] bool ready() const noexcept {
    return object.head != nullptr && box->fork_generation == g_fork_generation && keep->current() &&
           !closing.load(std::memory_order_relaxed);
  }
  // The object has changed: the owner's NIC looks at the calls that are parked there.
  void tell() const noexcept {
    // SYNC POINT: every change ends with a full barrier (sync/word.hpp), so either this sees that a call is parked, or
    // the NIC that parks it sees the change.
    if (parked->load(std::memory_order_seq_cst) != 0) [[unlikely]]
      wake();
  }
  [[gnu::noinline]] void wake() const noexcept {
    link::Peer& peer = keep->peer();
    if (peer.same_process) {
      box->host->nic().wake_parked();
    } else {
      peer.link()->wake(peer);
    }
  }
  [[nodiscard]] sync::Call call(sync::Op op) const noexcept {
    sync::Call c;
    c.op = op;
    c.who = box->host->world().self();
    return c;
  }
  // A call that waits for nothing but its turn to change the object.
  sync::Outcome do_now(sync::Call& c) const noexcept {
    const sync::Outcome outcome = sync::do_now(object, c, box->host->world());
    if (c.changed) tell();
    return outcome;
  }
};

struct LockCore : SyncCore {};
struct SemaphoreCore : SyncCore {};
struct EventCore : SyncCore {};
struct BarrierCore : SyncCore {};
struct QueueCore : SyncCore {};

// Who asks, for which object: an array of weft.share.
struct Asker : call::Asker {
  nb::object array;
};
using call::Question;
struct Reply {
  // no_lane: the array has no idle lane now. failed: the lane's queue has the error, or is closed. silent: no answer
  // came, and the call is given up. raised: a Python error is set.
  enum class End : uint8_t { answered, no_lane, failed, silent, raised } end = End::no_lane;
  wire::CallAnswer head;
  nb::object answer;    // a bytearray, whose record follows the head
  nb::object lane;      // failed
  bool posted = false;  // the owner's NIC has the call, or gets it when its process goes on
  uint64_t id = 0;      // the call's
  [[nodiscard]] std::span<const std::byte> record() const noexcept;
};
// Posts a call on an object in a peer's memory; `out` is the memory of its answer. False with an error set.
bool post_call(EndpointCore* core, const char* method, nic::CallArgs call, const Buf& out, PyObject* context);
// Waits until the call is done, or the deadline. `raised`: a signal handler raised while the call waited; if it was
// done all the same, `answer` is there. also: asked from time to time; true ends the call as its deadline does.
Reply ask(const Asker& who, const Question& question, PyObject* also = nullptr);

// The takes of the calls below an outermost call.
class Deed {
 public:
  explicit Deed(SyncCore* core, PyObject* self) noexcept : core_(core), self_(self), outer_(current_) {
    current_ = this;
  }
  ~Deed() { current_ = outer_; }
  Deed(const Deed&) = delete;
  Deed& operator=(const Deed&) = delete;

  // The deed of the call that is under way on this object; null: nothing is undone.
  static Deed* of(const SyncCore* core) noexcept {
    return current_ != nullptr && current_->core_ == core ? current_ : nullptr;
  }
  // A call has been done, of a process that maps the object (asker: null), or by the owner's NIC.
  void note(sync::Op op, const Asker* asker, uint64_t a, uint64_t value, uint64_t value2, uint64_t value3,
            uint64_t id) {
    if (asker != nullptr) asker_ = *asker;
    taken_.note(op, a, value, value2, value3, id, record_.is_valid());
  }
  void note_item(uint64_t type, nb::object bytes) {
    record_ = std::move(bytes);
    taken_.type = type;
    taken_.op = sync::Op::get;
  }
  // The record of a slot that is to be freed.
  void note_read(nb::object bytes) { record_ = std::move(bytes); }
  void note_posted() noexcept { posted_ = true; }
  // The call has reached the object.
  [[nodiscard]] bool posted() const noexcept { return posted_; }
  [[nodiscard]] KeptItem item() const { return {taken_.type, record_}; }
  void forget_item() {
    record_ = nb::object();
    taken_ = {};
  }
  // Call it with a Python error set; the error stays.
  void undo();

 private:
  bool settle(sync::Op op, uint64_t a, uint64_t b, std::span<const std::byte> in);
  void hand_back(sync::Op op, uint64_t id);
  Reply press(const call::Question& q);

  static thread_local Deed* current_;
  SyncCore* core_;
  PyObject* self_;
  Deed* outer_;
  bool posted_ = false;
  sync::Taken taken_;
  Asker asker_;  // no array: this process maps the object
  nb::object record_;
};

// SyncCore._ask().
PyObject* sync_ask(PyObject* self, PyObject* (&a)[13]);

// QueueCore._take_kept(), _keep().
PyObject* queue_take_kept(PyObject* self, PyObject*);
PyObject* queue_keep(PyObject* self, PyObject* const* args, Py_ssize_t nargs);

SyncCore* core_of(PyObject* self);

}  // namespace weft::bind
