// cpp/nic/trace.cpp: see trace.hpp.
#include "nic/trace.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace weft::nic {

namespace {

std::atomic<uint64_t> g_serials{0};

// Which trace knows the calling thread, and the thread's number. A forked child has the parent's values, and a trace
// with another serial number.
thread_local uint64_t t_known_by = 0;
thread_local uint32_t t_number = 0;

}  // namespace

Trace::Trace(std::span<std::byte> memory, size_t records, Clock& clock, uint64_t at, std::string_view command) noexcept
    : head_(reinterpret_cast<TraceHead*>(memory.data())),
      slots_(reinterpret_cast<TraceSlot*>(memory.data() + TraceHead::kBytes)),
      mask_(records - 1),
      clock_(clock),
      serial_(g_serials.fetch_add(1, std::memory_order_relaxed) + 1) {
  head_->version = TraceHead::kVersion;
  head_->record_bytes = sizeof(TraceSlot);
  head_->slots = records;
  head_->process = static_cast<uint64_t>(::getpid());
  head_->started_ns = clock.now_ns();
  head_->started_at = at;
  std::memcpy(head_->command, command.data(), std::min(command.size(), sizeof(head_->command) - 1));
  std::memcpy(head_->magic, "WEFTTRC", 8);
}

void Trace::add(TraceRecord record) noexcept {
  record.thread = thread_number();
  const uint64_t number = head_->added.fetch_add(1, std::memory_order_relaxed);
  TraceSlot& slot = slots_[number & mask_];
  const uint64_t writing = 2 * number + 1;
  uint64_t before = slot.state.load(std::memory_order_relaxed);
  // Another thread still writes here, or has written a later record already.
  if ((before & 1) != 0 || before > writing ||
      !slot.state.compare_exchange_strong(before, writing, std::memory_order_acquire, std::memory_order_relaxed)) {
    head_->dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  slot.record = record;
  // SYNC POINT: a reader that sees this number sees the whole record.
  slot.state.store(writing + 1, std::memory_order_release);
}

uint16_t Trace::name_endpoint(uint32_t nic, uint32_t pid, uint16_t vni, uint32_t domain,
                              std::string_view text) noexcept {
  const uint32_t at = head_->endpoint_count.fetch_add(1, std::memory_order_relaxed);
  if (at >= TraceHead::kEndpoints) {
    head_->endpoint_count.store(TraceHead::kEndpoints, std::memory_order_relaxed);
    return TraceRecord::kNoEndpoint;
  }
  TraceHead::EndpointName& name = head_->endpoints[at];
  name.nic = nic;
  name.pid = pid;
  name.vni = vni;
  name.domain = static_cast<uint16_t>(domain);
  std::memcpy(name.text, text.data(), std::min(text.size(), sizeof(name.text) - 1));
  name.used.store(1, std::memory_order_release);
  return static_cast<uint16_t>(at);
}

void Trace::triggered(uint16_t endpoint, uint8_t what, uint64_t threshold, uint64_t work) noexcept {
  TraceRecord r;
  r.t_ns = now_ns();
  r.kind = TraceKind::triggered;
  r.what = what;
  r.endpoint = endpoint;
  r.arg = threshold;
  r.id = work;
  add(r);
}

uint32_t Trace::thread_number() noexcept {
  if (t_known_by == serial_) [[likely]]
    return t_number;
  t_number = static_cast<uint32_t>(::gettid());
  t_known_by = serial_;
  const uint32_t at = head_->thread_count.fetch_add(1, std::memory_order_relaxed);
  if (at >= TraceHead::kThreads) {
    head_->thread_count.store(TraceHead::kThreads, std::memory_order_relaxed);
    return t_number;
  }
  TraceHead::ThreadName& name = head_->threads[at];
  name.thread = t_number;
  (void)::prctl(PR_GET_NAME, name.name);
  name.used.store(1, std::memory_order_release);
  return t_number;
}

void EndpointTrace::add(TraceRecord record) noexcept {
  if (record.t_ns == 0) record.t_ns = now_ns();
  record.endpoint = endpoint_;
  trace_->add(record);
}

void EndpointTrace::refused(uint8_t refusal) noexcept {
  if (refusals_.fetch_add(1, std::memory_order_relaxed) != 0) return;
  refusal_.store(refusal, std::memory_order_relaxed);
  TraceRecord r;
  r.kind = TraceKind::stall;
  r.what = refusal;
  add(r);
}

void EndpointTrace::went_on() noexcept {
  if (refusals_.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  const uint64_t count = refusals_.exchange(0, std::memory_order_relaxed);
  if (count == 0) return;  // another thread has told
  TraceRecord r;
  r.kind = TraceKind::go_on;
  r.what = refusal_.load(std::memory_order_relaxed);
  r.id = count;
  add(r);
}

}  // namespace weft::nic
