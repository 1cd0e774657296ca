// cpp/provider/ext.cpp: calls beyond libfabric's interface, and struct fi_cxi_dom_ops.
#include "provider/ext.hpp"

#include <array>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <utility>

#include "nic/rx_port.hpp"

namespace weft::provider {

namespace {

constexpr size_t kTextMax = 64;  // of a mode's name: a longer one is none

// struct fi_cxi_dom_ops: one table for the names "dom_ops_v1" to "dom_ops_v6", which append calls.
struct DomOps {
  int (*cntr_read)(ofi::Fid*, unsigned cntr, uint64_t* value, timespec* when);
  int (*topology)(ofi::Fid*, unsigned* group, unsigned* of_switch, unsigned* port);
  int (*enable_hybrid_mr_desc)(ofi::Fid*, bool enable);
  size_t (*ep_get_unexp_msgs)(ofi::FidEp*, ofi::CqEntry*, size_t count, ofi::Addr* sources, size_t* total);
  int (*get_dwq_depth)(ofi::Fid*, size_t* depth);
  int (*enable_mr_match_events)(ofi::Fid*, bool enable);
  int (*enable_optimized_mrs)(ofi::Fid*, bool enable);
};

// Writes the result of a call where the program wants it.
void put_result(Argument argument, const Record& answer, void* to) {
  if (argument.type == Argument::Type::text) {
    const std::string_view text = answer.text("text");
    std::memcpy(to, text.data(), text.size());
    static_cast<char*>(to)[text.size()] = '\0';
  } else {
    const uint64_t number = answer.number("value");
    std::memcpy(to, &number, argument.bytes());  // little-endian machines
  }
}

// The form of keys follows a domain's options.
void follow(Domain& d, const Record& answer) {
  if (!answer.has("key_base")) return;
  const Guard guard(d.keys.lock);
  d.keys.base = answer.number("key_base");
}

int ext_refuse(const Front& front, const char* call, int number, std::string_view why) {
  return refuse(front, Subject::domain, call, number, std::string(call) + ": " + std::string(why));
}

// ---- struct fi_cxi_dom_ops ------------------------------------------------------------------------------------------

using Numbers = std::initializer_list<std::pair<const char*, uint64_t>>;

// A call of the table on a domain, with these numbers; `take` gets the answer.
template <typename Take>
int call_on_domain(ofi::Fid* fid, const char* call, Numbers numbers, Take&& take) {
  if (fid == nullptr || fid->fclass != kClassDomain) return refuse_kind(call, fid, "a domain");
  Domain& d = of(as<ofi::FidDomain>(fid));
  if (d.forked()) return refuse_forked(d, call);
  const Front& front = d.fabric->front;
  return guarded(front, Subject::domain, call, [&] {
    Record question = question_about("dom_ops", d.lease);
    question.add("call", std::string_view(call));
    for (const auto& [name, value] : numbers) question.add(name, value);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front, Subject::domain, call, answer); r != 0) return r;
    follow(d, answer);
    take(answer);
    return 0;
  });
}

// The program may want a part of a result.
template <typename T>
void put(T* to, uint64_t value) noexcept {
  if (to != nullptr) *to = static_cast<T>(value);
}

int cntr_read(ofi::Fid* fid, unsigned cntr, uint64_t* value, timespec* when) {
  return call_on_domain(fid, "cntr_read", {{"cntr", cntr}}, [&](const Record& answer) {
    constexpr uint64_t kSecond = 1'000'000'000;
    const uint64_t ns = answer.number("time_ns");
    put(value, answer.number("value"));
    if (when != nullptr) *when = {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
  });
}

int topology(ofi::Fid* fid, unsigned* group, unsigned* of_switch, unsigned* port) {
  return call_on_domain(fid, "topology", {}, [&](const Record& answer) {
    put(group, answer.number("group_id"));
    put(of_switch, answer.number("switch_id"));
    put(port, answer.number("port_id"));
  });
}

int get_dwq_depth(ofi::Fid* fid, size_t* depth) {
  return call_on_domain(fid, "get_dwq_depth", {}, [&](const Record& answer) { put(depth, answer.number("value")); });
}

constexpr std::array<const char*, 3> kSwitches = {"enable_hybrid_mr_desc", "enable_mr_match_events",
                                                  "enable_optimized_mrs"};
template <size_t at>
int set_switch(ofi::Fid* fid, bool enable) {
  return call_on_domain(fid, kSwitches[at], {{"enable", enable}}, [](const Record&) {});
}

// As src/weft/providers/cxi/ext.py's ep_get_unexp_msgs. Its result is a number of entries, or a negative error.
size_t ep_get_unexp_msgs(ofi::FidEp* fid, ofi::CqEntry* entries, size_t count, ofi::Addr* sources, size_t* total) {
  static const char* const call = "ep_get_unexp_msgs";
  if (fid == nullptr || fid->fid.fclass != kClassEp)
    return static_cast<size_t>(int64_t{refuse_kind(call, fid == nullptr ? nullptr : &fid->fid, "an endpoint")});
  Ep& ep = of(whole(fid));
  if (ep.forked()) return static_cast<size_t>(int64_t{refuse_forked(ep, call)});
  const Front& front = ep.domain->fabric->front;
  const int r = guarded(front, Subject::ep_ctrl, call, [&] {
    if (total == nullptr) return ext_refuse(front, call, fi_err::kEINVAL, "room for the number of messages is needed");
    if (!ep.ep->enabled())
      return ext_refuse(front, call, fi_err::kEOPBADSTATE, "the endpoint is not enabled\n  try: fi_enable(ep)");
    if (!ep.receives) return ext_refuse(front, call, fi_err::kEINVAL, "the endpoint was opened without FI_RECV");
    nic::RxPort* const port = ep.ep->port();
    if (port != nullptr && port->context().statistics().mode.state == nic::RxMode::State::changing)
      return ext_refuse(front, call, fi_err::kEAGAIN, "the endpoint changes its match mode: retry");
    const bool fills = entries != nullptr && (sources != nullptr || ep.domain->entry_alone);
    const auto found = ep.ep->unreceived(fills ? count : 0, total);
    int filled = 0;
    for (const auto& [m, source] : found) {
      const uint64_t flags =
          (m.tagged ? nic::flag::kTagged : nic::flag::kMsg) | (m.has_data ? nic::flag::kRemoteCqData : uint64_t{0});
      if (sources != nullptr && ep.source) sources[filled] = source;
      entries[filled++] = {nullptr, flags, m.length, nullptr, m.data, m.tag};
    }
    return filled;
  });
  return static_cast<size_t>(int64_t{r});
}

DomOps g_dom_ops{cntr_read, topology, set_switch<0>, ep_get_unexp_msgs, get_dwq_depth, set_switch<1>, set_switch<2>};

}  // namespace

Argument argument_of(int number) noexcept {
  using Type = Argument::Type;
  struct Row {
    int number;
    Argument argument;
  };
  static constexpr std::array<Row, 13> kRows = {{{own::kSetTclass, {Type::number32}},
                                                 {own::kSetMsgOrder, {Type::number64}},
                                                 {own::kSetRnrMaxRetryTime, {Type::number64}},
                                                 {own::kSetReqBufSize, {Type::number64}},
                                                 {own::kGetReqBufSize, {Type::number64, true}},
                                                 {own::kSetMrMatchEvents, {Type::flag}},
                                                 {own::kGetMrMatchEvents, {Type::flag, true}},
                                                 {own::kSetOptimizedMrs, {Type::flag}},
                                                 {own::kGetOptimizedMrs, {Type::flag, true}},
                                                 {own::kSetProvKeyCache, {Type::flag}},
                                                 {own::kGetProvKeyCache, {Type::flag, true}},
                                                 {own::kSetRxMatchMode, {Type::text}},
                                                 {own::kGetRxMatchMode, {Type::text, true}}}};
  for (const Row& row : kRows) {
    if (row.number == number) return row.argument;
  }
  return {};
}

void add_argument(Record* question, Argument argument, const void* from) {
  if (from == nullptr || argument.returns || argument.type == Argument::Type::unknown) return;
  if (argument.type == Argument::Type::text) {
    const auto* text = static_cast<const char*>(from);
    question->add("text", std::string_view(text, ::strnlen(text, kTextMax)));
    return;
  }
  uint64_t number = 0;
  std::memcpy(&number, from, argument.bytes());
  // A bool is read as a byte: the program may have left any value there.
  question->add("value", argument.type == Argument::Type::flag ? uint64_t{number != 0} : number);
}

int control_beyond(const Front& front, Subject subject, uint64_t lease, int command, void* arg, Domain* domain) {
  const bool names = command == ofi::kGetVal || command == ofi::kSetVal;
  const char* const call = !names ? "fi_control" : command == ofi::kGetVal ? "fi_get_val" : "fi_set_val";
  if (names && arg == nullptr)
    return refuse(front, subject, call, fi_err::kEINVAL, std::string(call) + ": a struct fi_fid_var is needed");
  return guarded(front, subject, call, [&] {
    Record question = question_about(names ? std::string_view(call).substr(3) : "control", lease);
    const int number = names ? static_cast<const ofi::FidVar*>(arg)->name : command;
    const Argument argument = names ? Argument{} : argument_of(number);
    question.add(names ? "name" : "command", static_cast<uint64_t>(int64_t{number}));
    add_argument(&question, argument, arg);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front, subject, call, answer); r != 0) return r;
    if (domain != nullptr) follow(*domain, answer);
    if (!argument.returns) return 0;
    if (arg == nullptr)
      return refuse(front, subject, call, fi_err::kEINVAL, std::string(call) + ": room for the value is needed");
    put_result(argument, answer, arg);
    return 0;
  });
}

int open_beyond(const Fabric& fabric, Subject subject, uint64_t lease, const char* name, uint64_t flags, void** ops,
                void* table, Domain* domain) {
  const Front& front = fabric.front;
  return guarded(front, subject, "fi_open_ops", [&] {
    if (name == nullptr || ops == nullptr)
      return refuse(front, subject, "fi_open_ops", fi_err::kEINVAL,
                    "fi_open_ops: a name and room for the table are needed");
    Record question = question_about("open_ops", lease);
    question.add("name", std::string_view(name), "flags", flags);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front, subject, "fi_open_ops", answer); r != 0) return r;
    if (domain != nullptr) domain->entry_alone = answer.flag("entry_alone");
    explain_tables_by(fabric.origin);
    *ops = table;
    return 0;
  });
}

int domain_control(ofi::Fid* fid, int command, void* arg) {
  Domain& d = of(as<ofi::FidDomain>(fid));
  if (d.forked()) return refuse_forked(d, "fi_control");
  if (command == ofi::kQueueWork || command == ofi::kFlushWork || (command == ofi::kCancelWork && d.work.cancels))
    return control_work(d, command, arg);
  return control_beyond(d.fabric->front, Subject::domain, d.lease, command, arg, &d);
}

int domain_open_ops(ofi::Fid* fid, const char* name, uint64_t flags, void** ops, void*) {
  Domain& d = of(as<ofi::FidDomain>(fid));
  if (d.forked()) return refuse_forked(d, "fi_open_ops");
  return open_beyond(*d.fabric, Subject::domain, d.lease, name, flags, ops, &g_dom_ops, &d);
}

int domain_set_ops(ofi::Fid* fid, const char* name, uint64_t flags, void* ops, void*) {
  const Domain& d = of(as<ofi::FidDomain>(fid));
  if (d.forked()) return refuse_forked(d, "fi_set_ops");
  const Front& front = d.fabric->front;
  return guarded(front, Subject::domain, "fi_set_ops", [&] {
    if (name == nullptr)
      return refuse(front, Subject::domain, "fi_set_ops", fi_err::kEINVAL, "fi_set_ops: a name is needed");
    const auto* given = static_cast<const ofi::HmemOverrideOps*>(ops);
    const bool whole = given != nullptr && given->size >= sizeof(*given);
    Record question = question_about("set_ops", d.lease);
    question.add("name", std::string_view(name), "flags", flags);
    question.add("copy_from", uint64_t{whole && given->copy_from != nullptr});
    question.add("copy_to", uint64_t{whole && given->copy_to != nullptr});
    return refused(front, Subject::domain, "fi_set_ops", Helper::of_process().ask(question));
  });
}

}  // namespace weft::provider
