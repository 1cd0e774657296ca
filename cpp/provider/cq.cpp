// cpp/provider/cq.cpp: completion queues. The NIC's entries begin with struct fi_cq_tagged_entry, of which the other
// formats are the beginnings: a read copies.
//
// HOT: cq_read.
#include <cstring>

#include "provider/objects.hpp"
#include "provider/wait.hpp"

namespace weft::provider {

namespace {

constexpr size_t kBatch = 64;  // entries taken under one hold of the lock
constexpr int kWaitNone = 0, kWaitFd = 3;
static_assert(offsetof(nic::CqEntry, tag) == offsetof(ofi::CqEntry, tag) && sizeof(ofi::CqEntry) == 48);

int cq_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<CqShell*>(fid);
  Cq& cq = shell->of;
  if (cq.forked()) return 0;  // the parent's
  if (cq.uses != 0) return in_use(cq, "an endpoint is bound to the completion queue\n  try: close the endpoint first");
  --cq.domain->uses;
  delete shell;
  return 0;
}

int cq_control(ofi::Fid* fid, int command, void* arg) {
  const Cq& cq = of(as<ofi::FidCq>(fid));
  return control_waiting(front_of(cq), Subject::cq, command, arg, cq.wait_obj, cq.notifier.get());
}

// Takes up to `count` entries; -EAVAIL if an error is at the head, -EOVERRUN.
ssize_t take(Cq& cq, nic::CqEntry* out, size_t count) {
  bool error_waits = false;
  size_t n;
  {
    const nic::DomainLock guard(cq.domain->domain.get());
    n = cq.cq->read(out, count, &error_waits);
    if (cq.notifier && cq.cq->unread() == 0) cq.notifier->drain();
  }
  if (n != 0) return static_cast<ssize_t>(n);
  if (error_waits) return -fi_err::kEAVAIL;
  return cq.cq->overrun ? -fi_err::kEOVERRUN : 0;
}

// Like take(); if the queue is empty, makes progress and tries again.
ssize_t take_polling(Cq& cq, nic::CqEntry* out, size_t count) {
  nic::Domain& domain = *cq.domain->domain;
  domain.software_progress();
  ssize_t n = (cq.notifier && cq.notifier->raised()) || !cq.cq->looks_empty() ? take(cq, out, count) : 0;
  if (n != 0) return n;
  const bool worked = domain.nic()->poll_from_app() != 0;
  if (worked) n = take(cq, out, count);
  if (n == 0 && !worked) {
    pace(cq.pacer, domain);
  } else {
    cq.pacer.found();
  }
  return n;
}

void copy(const Cq& cq, const nic::CqEntry* entries, size_t n, void* out, ofi::Addr* sources) noexcept {
  const size_t size = ofi::kEntrySize[cq.format];
  auto* at = static_cast<std::byte*>(out);
  for (size_t i = 0; i < n; ++i, at += size) {
    std::memcpy(at, &entries[i], size);
    if (sources != nullptr) sources[i] = entries[i].source;
  }
}

struct Entries {  // uninitialized
  alignas(nic::CqEntry) std::byte bytes[kBatch * sizeof(nic::CqEntry)];
  nic::CqEntry* data() noexcept { return reinterpret_cast<nic::CqEntry*>(bytes); }
};

ssize_t cq_readfrom(ofi::FidCq* fid, void* out, size_t count, ofi::Addr* sources) {
  Cq& cq = of(fid);
  if (cq.forked()) [[unlikely]]
    return refuse_forked(cq, "fi_cq_read");
  cq.domain->forget_released();
  if (count == 0) [[unlikely]] {  // a call for progress
    cq.domain->domain->software_progress();
    (void)cq.domain->domain->nic()->poll_from_app();
    if (cq.cq->looks_empty()) return -fi_err::kEAGAIN;
    const nic::DomainLock guard(cq.domain->domain.get());
    return cq.cq->error_waits() ? -fi_err::kEAVAIL : 0;
  }
  Entries entries;
  ssize_t n = take_polling(cq, entries.data(), std::min(count, kBatch));
  if (n <= 0) return n == 0 ? -fi_err::kEAGAIN : n;
  copy(cq, entries.data(), static_cast<size_t>(n), out, sources);
  size_t total = static_cast<size_t>(n);
  while (static_cast<size_t>(n) == kBatch && total < count) {
    n = take(cq, entries.data(), std::min(count - total, kBatch));
    if (n <= 0) break;
    copy(cq, entries.data(), static_cast<size_t>(n), static_cast<std::byte*>(out) + total * ofi::kEntrySize[cq.format],
         sources == nullptr ? nullptr : sources + total);
    total += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(total);
}

// HOT.
ssize_t cq_read(ofi::FidCq* fid, void* out, size_t count) {
  return cq_readfrom(fid, out, count, nullptr);
}

ssize_t cq_sreadfrom(ofi::FidCq* fid, void* out, size_t count, ofi::Addr* sources, const void* cond, int timeout) {
  Cq& cq = of(fid);
  if (cq.forked()) return refuse_forked(cq, "fi_cq_sread");
  if (cq.wait_obj == kWaitNone) {
    return refuse(cq.domain->fabric->front, Subject::cq, "fi_cq_sread", cq.domain->errno_of("WAIT_NONE"),
                  "fi_cq_sread: the queue was opened with FI_WAIT_NONE\n  try: wait_obj FI_WAIT_UNSPEC");
  }
  const uint64_t wanted = cq.threshold && cond != nullptr ? reinterpret_cast<uint64_t>(cond) : 1;
  nic::Domain& domain = *cq.domain->domain;
  const uint64_t deadline = deadline_in(timeout);
  for (;;) {
    const bool found = wait_for(*domain.nic(), cq.cq->event, cq.pacer, deadline, [&] {
      domain.software_progress();
      if (cq.cq->signaled.load(std::memory_order_acquire)) return true;
      if (cq.cq->looks_empty()) return false;
      const nic::DomainLock guard(&domain);
      return cq.cq->unread() >= wanted || cq.cq->error_waits() || cq.cq->overrun;
    });
    const ssize_t n = cq_readfrom(fid, out, count, sources);
    if (n != -fi_err::kEAGAIN) return n;
    if (cq.cq->signaled.exchange(false)) return -fi_err::kECANCELED;
    if (!found) return -fi_err::kEAGAIN;
  }
}

ssize_t cq_sread(ofi::FidCq* fid, void* out, size_t count, const void* cond, int timeout) {
  return cq_sreadfrom(fid, out, count, nullptr, cond, timeout);
}

// The provider's numbers, where they depend on more than the status.
void decide(const Cq& cq, nic::CqError* error) {
  if (!cq.domain->asks_outcome || error->decided || error->status == Status::canceled) return;
  Record question = question_about("outcome", cq.domain->lease);
  question.add("status", static_cast<uint64_t>(error->status), "key", error->key);
  const auto put = [&](const char* name, const wire::EpAddress& a) {
    for (const uint64_t n : {uint64_t{a.nic}, uint64_t{a.pid}, uint64_t{a.vni}}) question.add(name, n);
  };
  if (error->peer.vni != 0) put("peer", error->peer);
  put("own", error->own);
  const Record answer = Helper::of_process().ask(question);
  if (answer.has("errno")) return;  // the entry has the domain's numbers
  error->err = static_cast<int>(answer.number("err"));
  error->prov_errno = static_cast<int>(answer.number("prov_errno"));
}

ssize_t cq_readerr(ofi::FidCq* fid, ofi::CqErrEntry* out, uint64_t) {
  Cq& cq = of(fid);
  if (cq.forked()) return refuse_forked(cq, "fi_cq_readerr");
  return guarded(cq.domain->fabric->front, Subject::cq, "fi_cq_readerr", [&] {
    nic::CqEntry e;
    nic::CqError error;
    {
      const nic::DomainLock guard(cq.domain->domain.get());
      if (!cq.cq->read_error(&e, &error)) return -fi_err::kEAGAIN;
      if (cq.notifier && cq.cq->unread() == 0) cq.notifier->drain();
    }
    decide(cq, &error);
    // Results that the caller asked for are no refusals: a peek that finds nothing, a cancel.
    const bool refusal = error.status != Status::no_message && error.status != Status::canceled;
    if (refusal && !error.text.empty() && explains(cq.domain->fabric->front, Subject::cq))
      explain(cq.domain->fabric->front, Subject::cq, "fi_cq_readerr", error.text);
    std::memcpy(out, &e, sizeof(ofi::CqEntry));
    std::string text = std::move(error.text);
    out->olen = error.olen;
    out->err = error.err;
    out->prov_errno = error.prov_errno;
    if (cq.domain->api_version >= version(1, 20)) out->src_addr = e.source;
    if (error.status == Status::no_source) {  // FI_SOURCE_ERR: the sender's address, to be inserted
      char address[kAddressBytesMax];
      text.assign(address, address_bytes(*cq.domain, error.peer, address));
      if (cq.domain->av_auth_key && cq.domain->api_version >= version(1, 20)) {  // the key with the sender's VNI
        Record question = question_about("key_of", cq.lease);
        question.add("vni", uint64_t{error.peer.vni});
        question.add("otherwise", uint64_t{out->src_addr});
        out->src_addr = Helper::of_process().ask(question).number("fi_addr", out->src_addr);
      }
    }
    // fi_cq(3): the data goes into the caller's buffer, if there is one; otherwise the caller gets our buffer.
    if (out->err_data_size != 0 && out->err_data != nullptr) {
      out->err_data_size = text.copy(static_cast<char*>(out->err_data), out->err_data_size);
    } else {
      const nic::DomainLock guard(cq.domain->domain.get());  // several threads may read errors of a queue
      cq.text.swap(text);
      out->err_data = cq.text.empty() ? nullptr : cq.text.data();
      out->err_data_size = cq.text.size();
    }
    return 1;
  });
}

int cq_signal(ofi::FidCq* fid) {
  Cq& cq = of(fid);
  if (cq.forked()) return refuse_forked(cq, "fi_cq_signal");
  if (!cq.signals)
    return refuse(cq.domain->fabric->front, Subject::cq, "fi_cq_signal", fi_err::kENOSYS,
                  "fi_cq_signal: this provider wakes no reader of a queue\n  try: fi_cq_sread with a time limit");
  cq.cq->signaled.store(true, std::memory_order_seq_cst);
  cq.cq->event.tell();
  cq.domain->host->nic().waiter().wake();
  return 0;
}

const char* cq_strerror(ofi::FidCq* fid, int prov_errno, const void*, char* buf, size_t length) {
  return text_of_errno(of(fid).domain->lease, prov_errno, buf, length);
}

ofi::FidOps g_cq_fid_ops = fid_ops(cq_close, cq_control);
ofi::CqOps g_cq_ops{sizeof(ofi::CqOps), cq_read,      cq_readfrom, cq_readerr,
                    cq_sread,           cq_sreadfrom, cq_signal,   cq_strerror};

}  // namespace

const char* text_of_errno(uint64_t lease, int prov_errno, char* buf, size_t length) {
  thread_local std::string text;
  try {
    Record question = question_about("explain", lease);
    question.add("prov_errno", static_cast<uint64_t>(static_cast<int64_t>(prov_errno)));
    text = Helper::of_process().ask(question).text("text");
  } catch (const std::bad_alloc&) {
    text.clear();
  }
  if (buf == nullptr || length == 0) return text.c_str();
  buf[text.copy(buf, length - 1)] = '\0';
  return buf;
}

int control_waiting(const Front& front, Subject subject, int command, void* arg, int wait_obj,
                    host::EventfdNotifier* notifier) {
  const bool descriptor = command == ofi::kGetWait;
  if (arg != nullptr && (command == ofi::kGetWaitObj || (descriptor && notifier != nullptr))) {
    *static_cast<int*>(arg) = descriptor ? notifier->fd() : wait_obj;
    return 0;
  }
  if (descriptor && notifier == nullptr)
    return refuse(front, subject, "fi_control", code::kENODATA, "fi_control: no descriptor; try: wait_obj FI_WAIT_FD");
  const bool known = descriptor || command == ofi::kGetWaitObj;
  return refuse(front, subject, "fi_control", known ? fi_err::kEINVAL : fi_err::kENOSYS,
                "fi_control: a queue has FI_GETWAIT and FI_GETWAITOBJ, which need a pointer to an int");
}

bool may_sleep(Cq& cq) {
  nic::Domain* const domain = cq.domain->domain.get();
  const auto is_empty = [&] {
    const nic::DomainLock guard(domain);
    return cq.cq->unread() == 0 && !domain->software_waits();
  };
  if (!is_empty()) return false;
  domain->nic()->prepare_app_sleep();
  return is_empty();
}

int open_cq(ofi::FidDomain* domain_fid, ofi::CqAttr* attr, ofi::FidCq** out, void* context) {
  Domain& d = of(domain_fid);
  if (d.forked()) return refuse_forked(d, "fi_cq_open");
  return guarded(d.fabric->front, Subject::cq, "fi_cq_open", [&] {
    const ofi::CqAttr none{};
    const ofi::CqAttr& a = attr != nullptr ? *attr : none;
    Record question = question_about("cq", d.lease);
    question.add("size", a.size, "flags", a.flags, "format", static_cast<uint64_t>(a.format), "wait_obj",
                 static_cast<uint64_t>(a.wait_obj), "wait_cond", static_cast<uint64_t>(a.wait_cond));
    auto shell = std::make_unique<CqShell>();
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(d.fabric->front, Subject::cq, "fi_cq_open", answer); r != 0) return r;
    Cq& cq = shell->of;
    cq.lease.take(answer);
    cq.domain = &d;
    cq.format = static_cast<int>(std::min<uint64_t>(answer.number("format"), 4));
    cq.wait_obj = static_cast<int>(answer.number("wait_obj"));
    cq.threshold = answer.flag("wait_cond");
    cq.signals = answer.flag("signals");
    cq.cq = std::make_shared<nic::CompletionQueue>(static_cast<uint32_t>(answer.number("entries")),
                                                   d.domain->config().may_overrun, answer.flag("huge"));
    cq.cq->acknowledge_by(static_cast<uint32_t>(answer.number("ack_batch")));
    if (!answer.flag("reserves")) cq.cq->fill_by_entries();
    if (cq.wait_obj == kWaitFd) {
      cq.notifier = std::make_shared<host::EventfdNotifier>();
      cq.cq->event.set_notifier(cq.notifier);
    }
    shell->fid.fid = {kClassCq, context, &g_cq_fid_ops};
    shell->fid.ops = &g_cq_ops;
    ++d.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

}  // namespace weft::provider
