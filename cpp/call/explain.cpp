// cpp/call/explain.cpp: the texts of refusals.
#include <algorithm>
#include <cstdio>
#include <span>
#include <utility>

#include "call/call.hpp"
#include "nic/queue.hpp"

namespace weft::call {

namespace {

std::string number(uint64_t n) {
  return std::to_string(n);
}

std::string queue_full(const nic::Endpoint& ep, const Why& why, bool held_back) {
  const nic::CompletionQueue* cq = ep.queue();
  const bool of_cq = why.refusal == Refusal::cq_full && cq != nullptr;
  const std::string full = of_cq ? "completion queue full, " + number(cq->unread()) + " unread and " +
                                       number(cq->reserved()) + " under way of " + number(cq->capacity()) + " entries" +
                                       (cq->unacknowledged() == 0 ? ""
                                                                  : ", " + number(cq->unacknowledged()) +
                                                                        " read, of a batch that is not complete") +
                                       ": "
                                 : "transmit queue full, " + number(ep.outstanding()) + " of " +
                                       number(ep.config().tx_size) + " operations under way: ";
  if (held_back) {
    return full + "the completion queue of the peer at fi_addr " + number(why.dest) +
           " is full and takes no data; retry when the peer has read it";
  }
  return full + (of_cq ? "read the queue and retry, or open it larger" : "read the completion queue and retry");
}

// The limit of an atomic's size: the provider's or the NIC's, whichever is lower.
uint64_t atomic_bytes_of(const nic::Endpoint& ep) {
  return std::min<uint64_t>(ep.config().rules.atomic_bytes_max, ep.domain()->nic()->limits().atomic_bytes_max);
}

const char* family_name(uint64_t family) {
  return family == 0 ? "an atomic" : family == 1 ? "a fetch atomic" : "a compare atomic";
}

// The operations on the datatype in this family of calls.
std::string ops_of(const nic::OpRules& rules, uint64_t datatype, uint64_t family) {
  std::string text;
  for (size_t op = 0; op < nic::kAtomicOpCount; ++op) {
    if (!rules.has_atomic(static_cast<nic::Datatype>(datatype), static_cast<nic::AtomicOp>(op),
                          static_cast<nic::AtomicFamily>(family), 0)) {
      continue;
    }
    if (!text.empty()) text += ' ';
    text += op_name(op);
  }
  return text.empty() ? "none" : text;
}

// The remedy for ADDR_NOTAVAIL in the place of a peer.
std::string no_peer(const nic::EndpointConfig& config) {
  std::string text = "no peer was given (ADDR_NOTAVAIL): pass what av.insert() returned";
  const bool messages = (config.caps & (nic::flag::kMsg | nic::flag::kTagged)) != 0;
  if (messages && (config.caps & nic::rx_cap::kSource) == 0) {
    text +=
        "\n  a queue names the sender only if the endpoint was opened with SOURCE: ask for fi.SOURCE in the "
        "capabilities of the hints";
  }
  return text;
}

// KEY_NOTAVAIL in the place of a key.
constexpr const char* kNoKey =
    "KEY_NOTAVAIL is not a key\n  rule: fi_mr_key() returns it while a region has no key: before enable(), and for a "
    "region without rights for peers\n  try: enable the region there, then send mr.key; register it with "
    "fi.REMOTE_READ or fi.REMOTE_WRITE";

// Refusals of a local buffer: by its descriptor, by a device's runtime, or by the kernel.
std::string of_local(const Why& why) {
  const Local& l = why.local;
  const bool source = reads(why.use);
  switch (why.refusal) {
    case Refusal::no_desc:
      return "the domain requires MR_LOCAL and no desc was given: register the buffer and pass mr.desc, or a slice of "
             "the region";
    case Refusal::no_device_desc:
      return "the buffer is device memory, the domain requires MR_HMEM, and no desc was given: register the buffer "
             "with mr_regattr and pass mr.desc, or a slice of the region";
    case Refusal::desc_closed:
      return "the region of desc is closed";
    case Refusal::desc_foreign:
      return "the region of desc belongs to another domain";
    case Refusal::desc_elsewhere: {
      const nic::MemoryRegion* mr = l.desc_given ? l.desc : l.own;
      const auto buffers = mr != nullptr ? mr->buffers() : std::span<const mem::MrBuffer>();
      uint64_t length = 0;
      for (const mem::MrBuffer& b : buffers) length += b.length;
      return "desc does not cover the buffer: " + number(l.length) + " B at " +
             hex(reinterpret_cast<uint64_t>(l.data)) + " do not lie within its region, " + number(length) + " B at " +
             hex(buffers.empty() ? 0 : buffers[0].local_addr) + (buffers.size() > 1 ? " and further buffers" : "") +
             "\n  rule: a desc is that of a region of the buffer's memory, fi_mr(3)\n"
             "  try: register the buffer and pass that region's desc, or a slice of the region as the buffer";
    }
    case Refusal::desc_no_right:
      if (why.use == LocalUse::give || why.use == LocalUse::take) {
        return std::string(
                   "the region of desc was registered without the right to serve in collectives\n"
                   "  rule: fi_mr(3) access: FI_COLLECTIVE, with ") +
               (source ? "FI_SEND for the data" : "FI_RECV for the result") +
               " of a collective\n  try: register it with fi.COLLECTIVE | fi." + (source ? "SEND" : "RECV");
      }
      if (why.use == LocalUse::send || why.use == LocalUse::receive) {
        return std::string("the region of desc was registered without the right to be ") +
               (source ? "sent from" : "received into") + "\n  rule: fi_mr(3) access: " +
               (source ? "FI_SEND for the source of a message" : "FI_RECV for the buffer of a receive") +
               "\n  try: register it with fi." + (source ? "SEND" : "RECV") + " among the access flags";
      }
      return std::string("the region of desc was registered without the right to be ") +
             (source ? "read by this side's transfers" : "written by this side's transfers") +
             "\n  rule: fi_mr(3) access: " + (source ? "FI_WRITE for the source" : "FI_READ for the result") +
             " of an RMA " + (source ? "write" : "read") + ", or of an atomic\n  try: register it with fi." +
             (source ? "WRITE" : "READ") + " among the access flags";
    case Refusal::no_hmem:
      return "the buffer is device memory and the domain was opened without HMEM: ask for fi.HMEM in hints.caps, or "
             "copy it to the host first";
    case Refusal::unknown_device_memory:
      return "the buffer says that it is device memory (interface " + number(l.iface) +
             "), and the device's runtime does not know its address: was it freed?";
    case Refusal::no_device_runtime:
      return "the buffer says that it is device memory (interface " + number(l.iface) +
             "), and that interface's runtime is not loaded: weft.memory.hmem.interfaces() says why";
    case Refusal::past_allocation:
      return number(why.asked) + " B pass the end of the device's allocation, which has " + number(why.limit) +
             " B from there on";
    case Refusal::no_page:
      return ": the local buffer, " + number(l.length) + " B at " + hex(reinterpret_cast<uint64_t>(l.data)) +
             ", has no memory behind it that may be " + (source ? "read" : "written to");
    case Refusal::null_buffer:
      return "a buffer is NULL, and its length is " + number(l.length) + "\n  try: the buffer, or the length 0";
    default:
      return "refused (" + number(static_cast<uint64_t>(why.refusal)) + ")";
  }
}

}  // namespace

std::string hex(uint64_t n) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(n));
  return text;
}

std::string flag_names(const nic::OpRules& rules, uint64_t flags) {
  using namespace nic::flag;
  static constexpr std::pair<uint64_t, const char*> kNames[] = {{kMsg, "MSG"},
                                                                {kRma, "RMA"},
                                                                {kTagged, "TAGGED"},
                                                                {kAtomic, "ATOMIC"},
                                                                {uint64_t{1} << 6, "COLLECTIVE"},
                                                                {kRead, "READ"},
                                                                {kWrite, "WRITE"},
                                                                {kRecv, "RECV"},
                                                                {kSend, "SEND"},
                                                                {kRemoteRead, "REMOTE_READ"},
                                                                {kRemoteWrite, "REMOTE_WRITE"},
                                                                {uint64_t{1} << 16, "MULTI_RECV"},
                                                                {kRemoteCqData, "REMOTE_CQ_DATA"},
                                                                {kMore, "MORE"},
                                                                {uint64_t{1} << 19, "PEEK"},
                                                                {uint64_t{1} << 20, "TRIGGER"},
                                                                {kFence, "FENCE"},
                                                                {kCompletion, "COMPLETION"},
                                                                {kInject, "INJECT"},
                                                                {kInjectComplete, "INJECT_COMPLETE"},
                                                                {kTransmitComplete, "TRANSMIT_COMPLETE"},
                                                                {kDeliveryComplete, "DELIVERY_COMPLETE"},
                                                                {kCommitComplete, "COMMIT_COMPLETE"},
                                                                {kMatchComplete, "MATCH_COMPLETE"},
                                                                {kRmaEvent, "RMA_EVENT"},
                                                                {uint64_t{1} << 58, "DISCARD"},
                                                                {uint64_t{1} << 59, "CLAIM"}};
  std::string text;
  const auto add = [&](uint64_t flag, const std::string& name) {
    if ((flags & flag) == 0) return;
    flags &= ~flag;
    text += (text.empty() ? "" : " | ") + name;
  };
  for (const auto& [flag, name] : kNames) add(flag, name);
  if (rules.flag_names) {
    for (const auto& [flag, name] : *rules.flag_names) add(flag, name);
  }
  if (flags != 0) text += (text.empty() ? "" : " | ") + hex(flags);
  return text.empty() ? "none" : text;
}

std::string datatype_name(uint64_t datatype) {
  static constexpr const char* kNames[nic::kDatatypeCount] = {
      "INT8",   "UINT8",   "INT16",   "UINT16",        "INT32",          "UINT32",      "INT64",
      "UINT64", "FLOAT",   "DOUBLE",  "FLOAT_COMPLEX", "DOUBLE_COMPLEX", "LONG_DOUBLE", "LONG_DOUBLE_COMPLEX",
      "INT128", "UINT128", "FLOAT16", "BFLOAT16",      "FLOAT8_E4M3",    "FLOAT8_E5M2"};
  return datatype < nic::kDatatypeCount ? kNames[datatype] : number(datatype);
}

std::string op_name(uint64_t op) {
  static constexpr const char* kNames[nic::kAtomicOpCount] = {
      "MIN",      "MAX",      "SUM",      "PROD",        "LOR",          "LAND",  "BOR",
      "BAND",     "LXOR",     "BXOR",     "ATOMIC_READ", "ATOMIC_WRITE", "CSWAP", "CSWAP_NE",
      "CSWAP_LE", "CSWAP_LT", "CSWAP_GE", "CSWAP_GT",    "MSWAP",        "DIFF"};
  return op < nic::kAtomicOpCount ? kNames[op] : number(op);
}

std::string explain_local(const char* method, const Why& why) {
  return method + std::string(why.refusal == Refusal::no_page ? "" : ": ") + of_local(why);
}

std::string explain(nic::Endpoint& ep, const char* method, const Why& why) {
  const nic::EndpointConfig& config = ep.config();
  const std::string m = std::string(method) + ": ";
  switch (why.refusal) {
    case Refusal::none:
      return m + "nothing was refused";
    case Refusal::cq_full:
    case Refusal::tx_full:
      return m + queue_full(ep, why, ep.held_back(why.dest));
    case Refusal::not_enabled:
      return m + "the endpoint is not enabled: call enable()";
    case Refusal::closed:
      return m + "the endpoint is closed";
    case Refusal::no_cq:
      return m + "no completion queue is bound for what this endpoint starts: bind_cq(cq, fi.TRANSMIT), then enable()";
    case Refusal::bad_address:
      return m + (why.dest == kNoPeer ? no_peer(config)
                                      : "fi_addr " + number(why.dest) +
                                            " is not in the address vector\n  try: the number that av.insert() "
                                            "returned for the peer; after av.remove() it is no longer valid");
    case Refusal::not_connected:
      return m + "the endpoint is not connected: connect() or accept(), and read the CONNECTED event";
    case Refusal::length_mismatch:
      return m + "the local and the remote lists describe different numbers of bytes";
    case Refusal::too_long: {
      const bool of_atomics = *why.what != '\0' || why.asked <= config.max_msg_size;
      return m + number(why.asked) + " bytes are more than one call may carry (" +
             (of_atomics ? "atomics: " + number(why.limit != 0 ? why.limit : atomic_bytes_of(ep))
                         : "max_msg_size " + number(config.max_msg_size)) +
             "): split it";
    }
    case Refusal::too_many_pieces:
      return m + "more than " + number(nic::kIovMax) + " pieces in a list: split the call";
    case Refusal::no_capability:
      if (*why.what == '\0') return m + "not supported by this endpoint";
      return m + "the endpoint was opened without " + why.what + ": ask for it in the capabilities of the hints";
    case Refusal::forked:
      return m + "this endpoint belongs to the parent process: a forked child opens its own fabric";
    case Refusal::not_now:
      return m + "the operation would not end within the call";
    case Refusal::rx_full:
      return m + "the receive queue is full: read completions of receives, cancel receives, or ask for a larger " +
             "rx_attr.size in the hints, and retry";
    case Refusal::rdzv_full:
      return m +
             "as many messages as the provider allows wait to be pulled by their receivers: read the completion "
             "queue and retry when a receiver has taken one; shorter messages need no pull";
    case Refusal::flow_stopped:
      return m + "the receiver at fi_addr " + number(why.dest) +
             " has no room for messages at present: read the completion queue and retry; the receiver has to post "
             "receives or read its completion queue";
    case Refusal::no_claim:
      return m + "this context has claimed no message: peek first, with PEEK | CLAIM and the same context object";
    case Refusal::rx_changing:
      return m + "list entries ran out, and the endpoint changes its match mode: read the completion queue and retry";
    case Refusal::rx_no_entry:
      return m +
             "the service has no list entry for this receive, and no kept message could return one: the provider on "
             "hardware would end the process here. Post fewer receives, set FI_CXI_RX_MATCH_MODE=hybrid or software, "
             "or use a service with more list entries";
    case Refusal::bad_tag:
      return m + why.what + " " + hex(why.asked) + " has bits that tags here do not have (" + hex(why.limit) +
             ", ep_attr.mem_tag_format): use lower bits";
    case Refusal::no_context:
      return m +
             "CLAIM without a context: give an object as context, and the same one to the call that takes the "
             "message";
    case Refusal::no_message_data:
      return m + "the domain was opened without remote CQ data: ask for domain_attr.cq_data_size in the hints";
    case Refusal::bad_flags:
      return m + "flags " + hex(why.asked) + " (" + flag_names(config.rules, why.asked) +
             ") are not for this call\n  known here: " + flag_names(config.rules, why.limit);
    case Refusal::too_many_buffers:
      return m + number(why.asked) + " buffers are more than iov_limit, " + number(why.limit) + ": split the call";
    case Refusal::bad_range_count:
      return m + "rma_iov has " + number(why.asked) + " entries; 1 to " + number(why.limit) +
             " (rma_iov_limit) are possible";
    case Refusal::inject_too_long:
      return m + number(why.asked) + " bytes are more than inject_size, " + number(why.limit) + ": use " +
             (*why.what != '\0' ? why.what : "write()");
    case Refusal::bad_key:
      if (why.asked == wire::kKeyNotAvail) return m + kNoKey;
      return m + "key " + hex(why.asked) +
             " has none of the forms of this provider's keys: pass the peer's fi_mr_key(), or the key that the region "
             "was registered with";
    case Refusal::key_offset:
      if (why.asked == wire::kKeyNotAvail) return m + kNoKey;
      return m + "address " + hex(why.limit) + " and the offset in key " + hex(why.asked) +
             " together exceed what the key can address: addresses count from the region's start";
    case Refusal::no_fence:
      return m + "FENCE on an endpoint that was opened without it: ask for fi.FENCE in the capabilities of the hints";
    case Refusal::flags_clash:
      return m + why.what + " is not possible: leave the flag out";
    case Refusal::unknown_atomic:
      return m +
             (why.limit < nic::kDatatypeCount ? "there is no operation " + number(why.asked)
                                              : "there is no datatype " + number(why.limit)) +
             ": pass fi.SUM ..., fi.INT64 ...";
    case Refusal::too_many_elements:
      return m + number(why.asked) + " elements are more than one call may carry, " + number(why.limit) + ": split it";
    case Refusal::no_atomic:
      if (config.rules.has_atomic(static_cast<nic::Datatype>(why.limit), static_cast<nic::AtomicOp>(why.asked),
                                  static_cast<nic::AtomicFamily>(why.element), 0)) {
        return m + op_name(why.asked) + " on " + datatype_name(why.limit) + " does not exist as " +
               family_name(why.element) + " with these flags: leave the flags out";
      }
      return m + op_name(why.asked) + " on " + datatype_name(why.limit) + " does not exist as " +
             family_name(why.element) + "\n  these exist: " + ops_of(config.rules, why.limit, why.element) +
             "\n  try: one of them; atomicvalid() and its forms tell before the call";
    case Refusal::part_element:
      return m + "a buffer of " + number(why.asked) + " bytes is no whole number of elements of " +
             number(why.element) + " bytes" + why.what;
    case Refusal::no_element:
      return m + (*why.what == 'b' ? "the buffers hold no whole element of " + number(why.element) + " bytes"
                                   : std::string("the lists hold no element"));
    case Refusal::short_buffer:
      return m + number(why.element) + " elements need " + number(why.asked) + " bytes; " + why.what + " has " +
             number(why.limit);
    default:
      return explain_local(method, why);
  }
}

}  // namespace weft::call
