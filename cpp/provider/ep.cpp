// cpp/provider/ep.cpp: endpoints: opening, binding, enabling, options, addresses.
#include <algorithm>
#include <cstring>

#include "call/call.hpp"
#include "nic/rx_port.hpp"
#include "provider/ext.hpp"
#include "provider/group.hpp"
#include "provider/info.hpp"
#include "provider/objects.hpp"
#include "provider/rules.hpp"

namespace weft::provider {

namespace {

constexpr int kLevelEndpoint = 0, kOptMinMultiRecv = 0;
constexpr uint64_t kTransmitFlag = nic::flag::kSend, kRecvFlag = nic::flag::kRecv;

int ep_refuse(const Ep& ep, const char* call, int number, const std::string& text) {
  return refuse(ep.domain->fabric->front, Subject::ep_ctrl, call, number, text);
}

// What a handle has of its own, as src/weft/policyhost/rules.py's handle() tells.
void take_handle(Ep& ep, const Record& answer) {
  const nic::OpRules& rules = ep.ep->config().rules;
  ep.ep->set_lane(nic::lane_of(ep.lane), answer.number("lane.msg_order"),
                  static_cast<uint8_t>(answer.number("lane.tclass")));
  ep.one_sided = call::one_sided_flags(rules, ep.lane, answer.number("call_flags"));
  ep.tx_flags = answer.number("tx_flags");
  ep.rx_flags = answer.number("rx_flags");
  if (ep.no_work != answer.text("no_work")) ep.no_work = answer.text("no_work");  // other threads read the text
}

int alias_close(EpShell* shell) {
  Ep& ep = shell->of;
  ep.ep->close_lane(nic::lane_of(ep.lane));
  --of(ep.original).uses;
  delete shell;
  return 0;
}

int ep_close(ofi::Fid* fid) {
  auto* const shell = reinterpret_cast<EpShell*>(fid);
  Ep& ep = shell->of;
  if (ep.forked()) return 0;  // the parent's
  if (ep.original != nullptr) return alias_close(shell);
  if (ep.uses != 0) {
    return ep_refuse(ep, "fi_close", fi_err::kEBUSY,
                     "fi_close: the endpoint has aliases, groups, or regions that are bound to it\n  try: close them");
  }
  leave_failed_groups(ep);
  if (ep.connected) end_connection(ep);
  ep.ep->close();
  ep.domain->forget_released();
  if (ep.eq != nullptr) (void)detach(*ep.eq, fid, ep.token);
  for (Object* one : ep.bound) --one->uses;
  --ep.domain->uses;
  delete shell;
  return 0;
}

// A message of the NIC for an endpoint.
void on_message(Eq& eq, ofi::Fid* fid, const nic::CmEvent& message) REQUIRES(eq.lock) {
  Ep& ep = of(as<ofi::FidEp>(fid));
  if (message.kind >= nic::CmKind::group_agreed) {
    on_group(eq, ep, message);
  } else if (ep.connected) {
    on_connection(eq, fid, message);
  }
}

int ep_bind_eq(ofi::Fid* fid, Ep& ep, Eq& eq, uint64_t flags) {
  const char* const wrong = flags != 0                       ? "fi_ep_bind: flags for an event queue"
                            : eq.fabric != ep.domain->fabric ? "fi_ep_bind: the queue is another fabric's"
                            : ep.eq != nullptr               ? "fi_ep_bind: the endpoint has an event queue"
                            : ep.ep->enabled()               ? "fi_ep_bind: the endpoint is enabled"
                                                             : nullptr;
  if (wrong != nullptr)
    return ep_refuse(ep, "fi_ep_bind", flags != 0 ? ep.domain->errno_of("EP_BIND_FLAGS") : fi_err::kEINVAL, wrong);
  ep.bound.push_back(&eq);
  ++eq.uses;
  ep.token = attach(eq, fid, on_message, ep.domain->host, *ep.ep);
  ep.eq = &eq;
  return 0;
}

int ep_bind(ofi::Fid* fid, ofi::Fid* to, uint64_t flags) {
  fid = &whole(as<ofi::FidEp>(fid))->fid;
  Ep& ep = of(as<ofi::FidEp>(fid));
  if (ep.forked()) return refuse_forked(ep, "fi_ep_bind");
  return guarded(ep.domain->fabric->front, Subject::ep_ctrl, "fi_ep_bind", [&] {
    Object* object = nullptr;
    switch (to == nullptr ? 0 : to->fclass) {
      case kClassCq:
        object = &of(as<ofi::FidCq>(to));
        break;
      case kClassCntr:
        object = &of(as<ofi::FidCntr>(to));
        break;
      case kClassAv:
        object = &of(as<ofi::FidAv>(to));
        break;
      case kClassEq:
        object = &of(as<ofi::FidEq>(to));
        break;
      default:
        return ep_refuse(ep, "fi_ep_bind", fi_err::kEINVAL,
                         "fi_ep_bind: an endpoint takes completion queues, counters, an address vector and an event "
                         "queue");
    }
    if (to->fclass == kClassEq) return ep_bind_eq(fid, ep, of(as<ofi::FidEq>(to)), flags);
    Record question = question_about("bind", ep.lease);
    question.add("to", object->lease, "flags", flags);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(ep.domain->fabric->front, Subject::ep_ctrl, "fi_ep_bind", answer); r != 0) return r;
    ep.bound.push_back(object);
    ++object->uses;
    if (to->fclass == kClassCq) {
      ep.ep->bind_cq(static_cast<Cq*>(object)->cq, flags);
      if ((flags & nic::flag::kSelectiveCompletion) != 0) ep.selective |= flags & (kTransmitFlag | kRecvFlag);
    } else if (to->fclass == kClassCntr) {
      ep.ep->bind_counter(static_cast<Cntr*>(object)->counter, flags);
    } else {
      ep.ep->bind_av(static_cast<Av*>(object)->av);
      ep.av = object;
    }
    return 0;
  });
}

}  // namespace

int enable_endpoint(Ep& ep) {
  if (ep.ep->enabled()) return 0;
  return guarded(ep.domain->fabric->front, Subject::ep_ctrl, "fi_enable", [&] {
    const Record answer = Helper::of_process().ask("enable", ep.lease);
    if (const int r = refused(ep.domain->fabric->front, Subject::ep_ctrl, "fi_enable", answer); r != 0) return r;
    if (answer.has("matching")) {
      auto matching = settings_of<nic::MessageConfig>(answer, "matching");
      matching.match.entries = ep.ep->config().messages.match.entries;
      (void)ep.ep->set_match_mode(matching);
    }
    const auto pid = ep.pid < 0 ? std::nullopt : std::optional(static_cast<uint32_t>(ep.pid));
    std::vector<uint16_t> vnis;  // of the keys of its vector (FI_AV_AUTH_KEY)
    for (const uint64_t vni : answer.numbers("vni")) vnis.push_back(static_cast<uint16_t>(vni));
    if (!vnis.empty()) ep.vni = vnis.front();
    try {
      ep.pid = ep.ep->enable(ep.nic, pid, vnis);
    } catch (const Error& e) {
      if (e.fi_code() != fi_err::kENOSPC || ep.domain->ledger == nullptr) throw;
      (void)Helper::of_process().ask("reclaim", ep.domain->lease);  // entries of dead processes
      ep.pid = ep.ep->enable(ep.nic, pid, vnis);
    }
    return 0;
  });
}

namespace {

int ep_op_flags(Ep& ep, int command, void* arg) {
  auto* const flags = static_cast<uint64_t*>(arg);
  if (flags == nullptr)
    return ep_refuse(ep, "fi_control", fi_err::kEINVAL, "fi_control: a pointer to the flags is needed");
  const uint64_t side = *flags & (kTransmitFlag | kRecvFlag);
  if (side != kTransmitFlag && side != kRecvFlag) {
    return ep_refuse(ep, "fi_control", fi_err::kEINVAL,
                     "fi_control: operation flags of one side: FI_TRANSMIT or FI_RECV among the flags");
  }
  if (command == ofi::kGetOpsFlag) {
    *flags = side == kTransmitFlag ? ep.tx_flags : ep.rx_flags;
    return 0;
  }
  return guarded(ep.domain->fabric->front, Subject::ep_ctrl, "fi_control", [&] {
    Record question = question_about("op_flags", ep.lease);
    question.add("flags", *flags);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(ep.domain->fabric->front, Subject::ep_ctrl, "fi_control", answer); r != 0) return r;
    take_handle(ep, answer);
    call::set_default_flags(ep.ep->config().rules, side == kRecvFlag, side == kRecvFlag ? ep.rx_flags : ep.tx_flags,
                            &ep.flags);
    return 0;
  });
}

int ep_alias(ofi::FidEp* fid, const ofi::Alias& how) {
  const Ep& from = of(fid);
  const Front& front = from.domain->fabric->front;
  return guarded(front, Subject::ep_ctrl, "fi_ep_alias", [&] {
    Record question = question_about("alias", from.lease);
    question.add("flags", how.flags);
    auto shell = std::make_unique<EpShell>();
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front, Subject::ep_ctrl, "fi_ep_alias", answer); r != 0) return r;
    Ep& ep = shell->of;
    shell->fid = *fid;  // also the tables, and the context
    ep.lease.take(answer);
    ep.domain = from.domain;
    ep.original = whole(fid);
    ep.ep = from.ep;
    ep.flags = from.flags;
    ep.inject_context = from.inject_context;
    ep.data_writes = from.data_writes;
    ep.messages = from.messages;
    ep.triggers = from.triggers;
    ep.desc_ignored = from.desc_ignored;
    ep.lane = uint64_t{ep.ep->open_lane()} << nic::flag::kLaneShift;
    take_handle(ep, answer);
    const bool receives = (how.flags & kRecvFlag) != 0;
    call::set_default_flags(ep.ep->config().rules, receives, receives ? ep.rx_flags : ep.tx_flags, &ep.flags);
    ++of(ep.original).uses;
    *how.fid = &shell.release()->fid.fid;
    return 0;
  });
}

// Values of the provider: the traffic class and the order of this handle, and the time of retries.
int ep_set_val(Ep& ep, const ofi::FidVar* var) {
  const Front& front = ep.domain->fabric->front;
  if (var == nullptr) return ep_refuse(ep, "fi_set_val", fi_err::kEINVAL, "fi_set_val: a struct fi_fid_var is needed");
  return guarded(front, Subject::ep_ctrl, "fi_set_val", [&] {
    Record question = question_about("set_val", ep.lease);
    question.add("name", static_cast<uint64_t>(int64_t{var->name}));
    add_argument(&question, argument_of(var->name), var->value);
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(front, Subject::ep_ctrl, "fi_set_val", answer); r != 0) return r;
    take_handle(ep, answer);
    if (var->name == own::kSetRnrMaxRetryTime) ep.ep->messages().set_retry_time(answer.number("retry_ns"));
    return 0;
  });
}

int ep_open_ops(ofi::Fid* fid, const char* name, uint64_t flags, void** ops, void*) {
  const Ep& ep = of(as<ofi::FidEp>(fid));
  if (ep.forked()) return refuse_forked(ep, "fi_open_ops");
  return open_beyond(*ep.domain->fabric, Subject::ep_ctrl, ep.lease, name, flags, ops, nullptr, nullptr);
}

int ep_control(ofi::Fid* fid, int command, void* arg) {
  Ep& ep = of(as<ofi::FidEp>(fid));
  if (ep.forked()) return refuse_forked(ep, "fi_control");
  switch (command) {
    case ofi::kEnable:
      return enable_endpoint(of(whole(as<ofi::FidEp>(fid))));
    case ofi::kAlias:
      if (arg == nullptr)
        return ep_refuse(ep, "fi_ep_alias", fi_err::kEINVAL, "fi_ep_alias: room for the alias is needed");
      return ep_alias(as<ofi::FidEp>(fid), *static_cast<const ofi::Alias*>(arg));
    case ofi::kGetOpsFlag:
    case ofi::kSetOpsFlag:
      return ep_op_flags(ep, command, arg);
    case ofi::kSetVal:
      return ep_set_val(ep, static_cast<const ofi::FidVar*>(arg));
    default:
      return control_beyond(ep.domain->fabric->front, Subject::ep_ctrl, ep.lease, command, arg, nullptr);
  }
}

// ---- options --------------------------------------------------------------------------------------------------------

ssize_t ep_cancel(ofi::Fid* fid, void* context) {
  Ep& ep = of(as<ofi::FidEp>(fid));
  if (ep.forked()) return refuse_forked(ep, "fi_cancel");
  if (!ep.ep->enabled() && ep.receives)
    return ep_refuse(ep, "fi_cancel", fi_err::kEOPBADSTATE, "fi_cancel: the endpoint is not enabled");
  const size_t n = ep.ep->cancel(reinterpret_cast<uint64_t>(context));
  ep.domain->forget_released();
  return n == 0 ? -code::kENOENT : 0;
}

// An option that only the policy knows: it refuses what there is not.
int option_beyond(const Ep& ep, const char* what, const char* call, int level, int name, const void* value,
                  size_t length) {
  const Front& front = ep.domain->fabric->front;
  return guarded(front, Subject::ep_ctrl, call, [&] {
    Record question = question_about(what, ep.lease);
    question.add("level", static_cast<uint64_t>(int64_t{level}));
    question.add("name", static_cast<uint64_t>(int64_t{name}));
    uint64_t number = 0;
    if (value != nullptr && (length == sizeof(bool) || length == sizeof(int) || length == sizeof(number))) {
      std::memcpy(&number, value, length);
      question.add("value", number);
    }
    return refused(front, Subject::ep_ctrl, call, Helper::of_process().ask(question));
  });
}

uint64_t append_attempts(const nic::Endpoint& ep) {
  nic::RxPort* const port = ep.closed() ? nullptr : ep.port();
  return port != nullptr ? port->context().statistics().append_attempts : 0;
}

int ep_getopt(ofi::Fid* fid, int level, int name, void* value, size_t* length) {
  const Ep& ep = of(whole(as<ofi::FidEp>(fid)));
  if (ep.forked()) return refuse_forked(ep, "fi_getopt");
  if (value == nullptr || length == nullptr)
    return ep_refuse(ep, "fi_getopt", fi_err::kEINVAL, "fi_getopt: room for the value and its length is needed");
  for (const Record& option : ep.rules.all("option")) {
    if (level != kLevelEndpoint || option.number("name") != static_cast<uint64_t>(int64_t{name})) continue;
    size_t found = option.number("value");
    if (name == kOptMinMultiRecv) found = ep.min_multi_recv;
    if (name == own::kGetRnrAppendRetryAttempts) found = append_attempts(*ep.ep);
    if (*length < sizeof(found)) {
      *length = sizeof(found);
      return -code::kETOOSMALL;
    }
    std::memcpy(value, &found, sizeof(found));
    *length = sizeof(found);
    return 0;
  }
  return option_beyond(ep, "getopt", "fi_getopt", level, name, nullptr, 0);
}

int ep_setopt(ofi::Fid* fid, int level, int name, const void* value, size_t length) {
  Ep& ep = of(whole(as<ofi::FidEp>(fid)));
  if (ep.forked()) return refuse_forked(ep, "fi_setopt");
  if (level != kLevelEndpoint || name != kOptMinMultiRecv)
    return option_beyond(ep, "setopt", "fi_setopt", level, name, value, length);
  size_t bytes = 0;
  if (value == nullptr || length < sizeof(bytes))
    return ep_refuse(ep, "fi_setopt", fi_err::kEINVAL, "fi_setopt: a size_t is needed");
  std::memcpy(&bytes, value, sizeof(bytes));
  if (const uint64_t most = ep.rules.number("min_multi_recv_max"); bytes > most) {
    return ep_refuse(
        ep, "fi_setopt", fi_err::kEINVAL,
        "fi_setopt: FI_OPT_MIN_MULTI_RECV is 0 to " + std::to_string(most) + " bytes, not " + std::to_string(bytes));
  }
  ep.min_multi_recv = bytes;
  ep.ep->set_min_multi_recv(bytes);
  return 0;
}

// ---- addresses ------------------------------------------------------------------------------------------------------

int ep_getname(ofi::Fid* fid, void* address, size_t* length) {
  const Ep& ep = of(whole(as<ofi::FidEp>(fid)));
  if (ep.forked()) return refuse_forked(ep, "fi_getname");
  if (!ep.ep->enabled()) {
    return ep_refuse(ep, "fi_getname", fi_err::kEOPBADSTATE,
                     "fi_getname: the endpoint has no address before fi_enable");
  }
  return copy_address(*ep.domain, {ep.nic, static_cast<uint32_t>(ep.pid), ep.vni, 0}, address, length, true);
}

int ep_setname(ofi::Fid* fid, void* address, size_t length) {
  Ep& ep = of(whole(as<ofi::FidEp>(fid)));
  if (ep.forked()) return refuse_forked(ep, "fi_setname");
  if (!ep.rules.flag("named")) {
    return ep_refuse(ep, "fi_setname", fi_err::kENOSYS,
                     "fi_setname: not supported\n  try: fi_getinfo(node, service, FI_SOURCE)");
  }
  if (ep.ep->enabled())
    return ep_refuse(ep, "fi_setname", fi_err::kEOPBADSTATE, "fi_setname: the address is fixed since fi_enable");
  wire::EpAddress found;
  bool has_pid = false;
  if (!parse_address(*ep.domain, address, std::min(length, address_size(*ep.domain, address)), &found, &has_pid) ||
      found.nic != ep.nic || found.vni != ep.vni) {
    return ep_refuse(ep, "fi_setname", fi_err::kEINVAL,
                     "fi_setname: no address on the endpoint's NIC and VNI, as fi_getname returns it");
  }
  ep.pid = has_pid ? int64_t{found.pid} : -1;
  return 0;
}

ofi::FidOps g_ep_fid_ops = fid_ops(ep_close, ep_control, ep_bind, ep_open_ops);

ofi::EpOps make_ep_ops() noexcept {
  using Ops = ofi::EpOps;
  Ops ops = stubs<Ops, &Ops::cancel, &Ops::getopt, &Ops::setopt, &Ops::tx_ctx, &Ops::rx_ctx, &Ops::rx_size_left,
                  &Ops::tx_size_left>();
  ops.cancel = ep_cancel;
  ops.getopt = ep_getopt;
  ops.setopt = ep_setopt;
  return ops;
}
ofi::EpOps g_ep_ops = make_ep_ops();

ofi::CmOps make_cm_ops() noexcept {
  using Ops = ofi::CmOps;
  Ops ops = stubs<Ops, &Ops::setname, &Ops::getname, &Ops::getpeer, &Ops::connect, &Ops::listen, &Ops::accept,
                  &Ops::reject, &Ops::shutdown, &Ops::join>();
  ops.setname = ep_setname;
  ops.getname = ep_getname;
  ops.join = join_group;
  put_connection_calls(&ops);
  return ops;
}
ofi::CmOps g_cm_ops = make_cm_ops();

// The tables of an endpoint without messages.
template <typename Ops>
Ops no_messages() noexcept {
  return stubs<Ops, &Ops::recv, &Ops::recvv, &Ops::recvmsg, &Ops::send, &Ops::sendv, &Ops::sendmsg, &Ops::inject,
               &Ops::senddata, &Ops::injectdata>();
}
ofi::MsgOps g_no_msg = no_messages<ofi::MsgOps>();
ofi::TaggedOps g_no_tagged = no_messages<ofi::TaggedOps>();

}  // namespace

int open_endpoint(ofi::FidDomain* domain_fid, ofi::Info* info, ofi::FidEp** out, void* context) {
  Domain& d = of(domain_fid);
  if (d.forked()) return refuse_forked(d, "fi_endpoint");
  if (info == nullptr || info->ep == nullptr || info->tx == nullptr || info->rx == nullptr)
    return refuse(d.fabric->front, Subject::ep_ctrl, "fi_endpoint", fi_err::kEINVAL,
                  "fi_endpoint: info, or a part of it, is NULL\n  try: an info that fi_getinfo returned");
  return guarded(d.fabric->front, Subject::ep_ctrl, "fi_endpoint", [&] {
    Record question = question_about("endpoint", d.lease);
    question.add("info", record_of(*info, d.fabric->front.version));
    auto shell = std::make_unique<EpShell>();
    const Record answer = Helper::of_process().ask(question);
    if (const int r = refused(d.fabric->front, Subject::ep_ctrl, "fi_endpoint", answer); r != 0) return r;
    Ep& ep = shell->of;
    ep.lease.take(answer);
    ep.domain = &d;
    ep.rules = answer;
    nic::EndpointConfig config = settings_of<nic::EndpointConfig>(answer).in(d.domain->config());
    if (d.ledger != nullptr)
      config.messages.match.entries = {d.ledger.get(), d.slot, static_cast<uint32_t>(d.rules.number("ledger.les"))};
    call::set_default_flags(config.rules, false, config.tx_op_flags, &ep.flags);
    call::set_default_flags(config.rules, true, config.rules.messages.receive_flags, &ep.flags);
    ep.min_multi_recv = config.messages.min_multi_recv;
    ep.nic = static_cast<uint32_t>(answer.number("address.nic"));
    ep.pid = answer.has("address.pid") ? static_cast<int64_t>(answer.number("address.pid")) : -1;
    ep.vni = static_cast<uint16_t>(answer.number("address.vni"));
    ep.inject_context = answer.flag("inject_context") && context != nullptr;
    ep.data_writes = answer.flag("data_writes");
    ep.messages = answer.flag("messages");
    ep.source = answer.flag("source");
    ep.receives = answer.flag("receives");
    ep.triggers = answer.flag("triggers");
    ep.desc_ignored = config.rules.desc_ignored;
    ep.connected = config.connected;
    ep.ep = d.domain->make_endpoint(config);
    take_handle(ep, answer);
    if (ep.connected) {
      ep.ep->bind_av(std::make_shared<nic::AddressVector>(d.domain.get(), false, false));  // has the one peer
      if (info->dest_addr != nullptr) ep.dest.assign(static_cast<const char*>(info->dest_addr), info->dest_addrlen);
      ep.dest.push_back('\0');
      if (info->handle != nullptr && (ep.request = d.fabric->take(info->handle)) == nullptr) {
        return refuse(d.fabric->front, Subject::ep_ctrl, "fi_endpoint", fi_err::kEINVAL,
                      "fi_endpoint: the handle is no unanswered connection request\n  try: the info of an FI_CONNREQ "
                      "event, once");
      }
    }
    shell->fid.fid = {kClassEp, context, &g_ep_fid_ops};
    shell->fid.ops = &g_ep_ops;
    shell->fid.cm = &g_cm_ops;
    shell->fid.msg = ep.messages ? &g_msg_ops : &g_no_msg;
    shell->fid.tagged = ep.messages ? &g_tagged_ops : &g_no_tagged;
    shell->fid.rma = &g_rma_ops;
    shell->fid.atomic = &g_atomic_ops;
    shell->fid.collective = &g_collective_ops;
    ++d.uses;
    *out = &shell.release()->fid;
    return 0;
  });
}

}  // namespace weft::provider
