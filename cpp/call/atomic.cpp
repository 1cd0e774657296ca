// cpp/call/atomic.cpp: the rules of fi_atomic(3)'s calls.
#include <algorithm>
#include <bit>

#include "call/call.hpp"

namespace weft::call {

using nic::AtomicFamily;

namespace {

// Checks a list of buffers, each of whole elements.
Refusal check_list(const nic::Endpoint& ep, const Atomic& a, std::span<const Local> list, LocalUse use,
                   std::array<iovec, nic::kIovMax>* iov, uint8_t* device, uint64_t* total, Why* why) {
  if (const Refusal r = check_local_count(ep, list.size(), why); r != Refusal::none) return r;
  uint64_t sum = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const Local& l = list[i];
    if (l.length % a.size != 0) return why->set(Refusal::part_element, l.length, 0);
    bool of_device = false;
    if (const Refusal r = check_local(ep, l, use, !a.inject, &of_device, why); r != Refusal::none) return r;
    if (of_device) *device = static_cast<uint8_t>(*device | 1u << i);
    (*iov)[i] = {l.data, l.length};
    if (__builtin_add_overflow(sum, l.length, &sum)) return why->set(Refusal::length_mismatch);
  }
  *total = sum;
  return Refusal::none;
}

// HOT. Checks that a buffer has a.total bytes, and takes these as its iovec.
[[gnu::always_inline]] inline Refusal check_first(const nic::Endpoint& ep, const Atomic& a, const Local& l,
                                                  LocalUse use, const char* what, iovec* iov, uint8_t* device,
                                                  Why* why) {
  if (a.total > l.length) [[unlikely]] {
    why->what = what;
    why->element = a.count;
    return why->set(Refusal::short_buffer, a.total, l.length);
  }
  *iov = {l.data, a.total};
  if (is_plain(ep, l)) [[likely]]
    return Refusal::none;
  Local used = l;
  used.length = a.total;
  bool of_device = false;
  const Refusal r = check_local(ep, used, use, !a.inject, &of_device, why);
  *device = of_device ? 1 : 0;
  return r;
}

// HOT. One buffer of each kind: computes the bytes used and checks that each buffer has them.
Refusal check_single(const nic::Endpoint& ep, Atomic& a, Why* why) {
  if (a.count == kAllElements) [[likely]] {
    const uint64_t available = (a.has_operand ? a.operand : a.result)[0].length;
    if ((available & (a.size - 1)) != 0) [[unlikely]] {
      why->what = ": give count, or a part of the buffer";
      return why->set(Refusal::part_element, available, 0);
    }
    a.count = available >> std::countr_zero(a.size);
  }
  if (a.count == 0) [[unlikely]] {
    why->what = "buffers";
    return why->set(Refusal::no_element);
  }
  if (__builtin_mul_overflow(a.count, a.size, &a.total)) [[unlikely]]
    a.total = ~uint64_t{0};
  Refusal r = Refusal::none;
  if (a.has_operand) {
    r = check_first(ep, a, a.operand[0], LocalUse::source, "buf", a.operand_iov.data(), &a.operand_device, why);
  }
  if (r == Refusal::none && a.has_compare()) {
    r = check_first(ep, a, a.compare[0], LocalUse::source, "compare", a.compare_iov.data(), &a.compare_device, why);
  }
  if (r == Refusal::none && a.has_result()) {
    r = check_first(ep, a, a.result[0], LocalUse::result, "result", a.result_iov.data(), &a.result_device, why);
  }
  return r;
}

Refusal check_lists(const nic::Endpoint& ep, Atomic& a, Why* why) {
  if (const Refusal r = check_remote_count(ep, a.remote.size(), why); r != Refusal::none) return r;
  uint64_t operand = 0, compare = 0, result = 0;
  Refusal r = Refusal::none;
  if (a.has_operand) {
    r = check_list(ep, a, a.operand, LocalUse::source, &a.operand_iov, &a.operand_device, &operand, why);
  }
  if (r == Refusal::none && a.has_compare()) {
    r = check_list(ep, a, a.compare, LocalUse::source, &a.compare_iov, &a.compare_device, &compare, why);
  }
  if (r == Refusal::none && a.has_result()) {
    r = check_list(ep, a, a.result, LocalUse::result, &a.result_iov, &a.result_device, &result, why);
  }
  if (r != Refusal::none) return r;
  a.total = a.has_operand ? operand : result;
  a.count = a.total / a.size;
  if (a.total == 0) {
    why->what = "lists";
    return why->set(Refusal::no_element);
  }
  return Refusal::none;
}

// Refuses flags that exclude each other or that the region of the key excludes. Source: fi_cxi(7) "Unreliable AMOs",
// "High Rate Put", "ERRATA".
[[gnu::noinline]] Refusal check_clash(const nic::Endpoint& ep, const Atomic& a, Why* why) {
  const nic::TrafficRules& rules = ep.config().traffic;
  const auto clash = [&](const char* what) {
    why->what = what;
    return why->set(Refusal::flags_clash);
  };
  const bool unreliable = (a.flags & rules.unreliable_flag) != 0;
  for (const wire::RmaRange& range : a.remote) {
    const bool events = rules.wants_events(range.key);
    if (events && a.family != AtomicFamily::base && (a.flags & rules.flush_flags) != 0) {
      return clash("a fetching atomic with delivery complete, of a region that wants events (RMA_EVENT)");
    }
    if (!rules.optimized(range.key)) continue;
    if (unreliable && events) return clash("an unreliable atomic of a region that wants events (RMA_EVENT)");
    if (!unreliable && (a.flags & rules.hrp_flag) != 0)
      return clash("an atomic as High Rate Put that is not UNRELIABLE");
  }
  return Refusal::none;
}

}  // namespace

Refusal check_pair(const nic::Endpoint& ep, Atomic& a, Why* why) {
  why->dest = a.dest;
  if (!capable(ep, OpKind::atomic)) [[unlikely]] {
    why->what = "ATOMIC, and READ or WRITE";
    return why->set(Refusal::no_capability);
  }
  const FlagCall call = flag_call(a.family);
  if (a.message) {
    if (const Refusal r = check_flags(ep, call, a.flags, why); r != Refusal::none) return r;
    if (const Refusal r = check_fence(ep, a.flags, why); r != Refusal::none) return r;
  }
  if (a.datatype >= nic::kDatatypeCount || a.op >= nic::kAtomicOpCount) [[unlikely]]
    return why->set(Refusal::unknown_atomic, a.op, a.datatype);
  if (!ep.config().rules.has_atomic(static_cast<nic::Datatype>(a.datatype), static_cast<nic::AtomicOp>(a.op), a.family,
                                    a.flags & ep.config().rules.flags_of(call))) [[unlikely]] {
    why->element = static_cast<uint64_t>(a.family);
    return why->set(Refusal::no_atomic, a.op, a.datatype);
  }
  a.size = nic::datatype_size(static_cast<nic::Datatype>(a.datatype));
  a.has_operand = static_cast<nic::AtomicOp>(a.op) != nic::AtomicOp::atomic_read;
  return Refusal::none;
}

Refusal check(const nic::Endpoint& ep, Atomic& a, Why* why) {
  why->dest = a.dest;
  why->element = a.size;
  const Refusal r = a.single ? check_single(ep, a, why) : check_lists(ep, a, why);
  if (r != Refusal::none) [[unlikely]]
    return r;
  const nic::OpRules& rules = ep.config().rules;
  if (a.count > rules.atomic_count_max) [[unlikely]]
    return why->set(Refusal::too_many_elements, a.count, rules.atomic_count_max);
  if (a.total > rules.atomic_bytes_max) [[unlikely]] {
    why->what = "atomics";
    return why->set(Refusal::too_long, a.total, rules.atomic_bytes_max);
  }
  if ((a.inject || (a.flags & nic::flag::kInject) != 0) && a.total > ep.config().inject_size) [[unlikely]] {
    return why->set(Refusal::inject_too_long, a.total, ep.config().inject_size);
  }
  if (a.whole || (rules.local_lengths && a.remote.size() == 1)) a.remote[0].length = a.total;
  if (rules.more && (a.remote.size() != 1 || !rules.is_simple(a.flags, a.remote[0].key))) [[unlikely]] {
    if (const Refusal more = check_more(ep, &a.flags, a.remote, why); more != Refusal::none) return more;
  }
  return ep.config().traffic.on ? check_clash(ep, a, why) : Refusal::none;
}

PostResult post(nic::Endpoint& ep, const Atomic& a) {
  nic::AtomicArgs args;
  args.dest = a.dest;
  args.family = a.family;
  args.op = static_cast<nic::AtomicOp>(a.op);
  args.datatype = static_cast<nic::Datatype>(a.datatype);
  if (a.has_operand) args.operand = {a.operand_iov.data(), a.operand.size()};
  if (a.has_compare()) args.compare = {a.compare_iov.data(), a.compare.size()};
  if (a.has_result()) args.result = {a.result_iov.data(), a.result.size()};
  args.remote = a.remote;
  args.flags = a.flags;
  args.context = a.context;
  args.imm = a.imm;
  args.inject_call = a.inject;
  args.operand_device = a.operand_device;
  args.compare_device = a.compare_device;
  args.result_device = a.result_device;
  return ep.post_atomic(args);
}

AtomicLimit atomic_limit(const nic::OpRules& rules, const nic::Limits& limits, uint64_t datatype, uint64_t op,
                         uint64_t family) noexcept {
  const uint64_t size = datatype < nic::kDatatypeCount ? nic::datatype_size(static_cast<nic::Datatype>(datatype)) : 0;
  if (size == 0 || op >= nic::kAtomicOpCount || family >= rules.atomics.size() ||
      !rules.has_atomic(static_cast<nic::Datatype>(datatype), static_cast<nic::AtomicOp>(op),
                        static_cast<AtomicFamily>(family), 0)) {
    return {0, size};
  }
  const uint64_t bytes = std::min<uint64_t>(rules.atomic_bytes_max, limits.atomic_bytes_max);
  return {std::min(bytes / size, rules.atomic_count_max), size};
}

}  // namespace weft::call
