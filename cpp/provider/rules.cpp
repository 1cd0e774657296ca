// cpp/provider/rules.cpp: the NIC's configurations, by the names that src/weft/policyhost/rules.py has.
#include "provider/rules.hpp"

#include <algorithm>

#include "wire/frame.hpp"

namespace weft::provider {

namespace {

uint32_t u32(const Record& r, std::string_view name, uint64_t otherwise = 0) noexcept {
  return static_cast<uint32_t>(std::min<uint64_t>(r.number(name, otherwise), ~uint32_t{0}));
}

// asked 0: no limit besides the rule's.
uint32_t limit(uint64_t asked, uint32_t rule) noexcept {
  return asked == 0 ? rule : static_cast<uint32_t>(std::min<uint64_t>(asked, rule));
}

nic::OpRules op_rules(const Record& r) {
  nic::OpRules rules;
  const auto pieces = [&](std::string_view name) { return std::clamp<uint32_t>(u32(r, name, 1), 1, nic::kIovMax); };
  rules.iov_max = pieces("iov_max");
  rules.rma_iov_max = pieces("rma_iov_max");
  rules.atomic_bytes_max = r.number("atomic_bytes_max");
  rules.atomic_count_max = r.number("atomic_count_max");
  rules.only_receives_cancel = r.flag("only_receives_cancel");
  rules.fence_needs_cap = r.flag("fence_needs_cap");
  rules.fence_also = r.number("fence_also");
  rules.data_key_mask = r.number("data_key_mask");
  rules.data_key_value = r.number("data_key_value");
  rules.pcie_flag = r.number("pcie_flag");
  rules.pcie_datatypes = u32(r, "pcie_datatypes");
  rules.local_lengths = r.flag("local_lengths");
  rules.messages.tag_mask = r.number("tag_mask");
  rules.messages.data = r.flag("message_data");
  const std::vector<uint64_t> forms = r.numbers("key_form");
  for (size_t i = 0; i + 5 <= forms.size() && rules.key_form_count < nic::kKeyFormMax; i += 5) {
    rules.key_forms[rules.key_form_count++] = {forms[i], forms[i + 1], forms[i + 2],
                                               static_cast<uint32_t>(forms[i + 3] & 63), forms[i + 4]};
  }
  const std::vector<uint64_t> flags = r.numbers("flags");
  for (size_t i = 0; i < flags.size() && i < nic::kFlagCallCount; ++i) rules.flags[i] = flags[i];
  const std::vector<uint64_t> refusals = r.numbers("refusal"), codes = r.numbers("errno");
  for (size_t i = 0; i < refusals.size() && i < codes.size(); ++i) {
    if (refusals[i] < nic::kRefusalCount) rules.errnos[refusals[i]] = static_cast<int16_t>(codes[i]);
  }
  const std::vector<uint64_t> atomics = r.numbers("atomics");
  for (size_t family = 0, at = 0; family < rules.atomics.size(); ++family) {
    for (size_t op = 0; op < nic::kAtomicOpCount && at < atomics.size(); ++op, ++at) {
      rules.atomics[family][op] = static_cast<uint32_t>(atomics[at]) & nic::all_atomics()[family][op];
    }
  }
  const std::vector<uint64_t> bits = r.numbers("flag");
  const std::vector<std::string_view> names = r.texts("flag_name");
  std::vector<std::pair<uint64_t, std::string>> known;
  for (size_t i = 0; i < bits.size() && i < names.size(); ++i) known.emplace_back(bits[i], names[i]);
  if (!known.empty())
    rules.flag_names = std::make_shared<const std::vector<std::pair<uint64_t, std::string>>>(std::move(known));
  return rules;
}

nic::MessageConfig message_config(const Record& r) {
  nic::MessageConfig m;
  m.eager_max = std::min<uint64_t>(r.number("eager_max"), wire::kStagedPayloadMax);
  m.eager_part = std::min<uint64_t>(r.number("eager_part"), wire::kStagedPayloadMax);
  m.copy_max = r.number("copy_max");
  m.tagged_ids = u32(r, "tagged_ids");
  m.untagged_ids = u32(r, "untagged_ids");
  m.min_multi_recv = r.number("min_multi_recv");
  m.posted_max = u32(r, "posted_max");
  m.unexpected_max = u32(r, "unexpected_max");
  m.buffers.bytes = r.number("buffer_bytes");
  m.buffers.posted_min = m.mode.buffers = u32(r, "buffers_min");
  m.buffers.cached_max = u32(r, "buffers_cached");
  m.buffers.count_max = u32(r, "buffers_max");
  m.credits = u32(r, "credits");
  m.unordered = r.flag("unordered");
  m.retry_ns_max = r.number("retry_ns_max");
  m.stop_ns = r.number("stop_ns");
  m.delivery_complete = r.flag("delivery_complete");
  m.control_slots = u32(r, "control_slots");
  m.reads_max = u32(r, "reads_max");
  m.registers_buffers = r.flag("registers_buffers");
  m.software_counts = r.flag("software_counts");
  m.tells_buffers = r.flag("tells_buffers");
  m.mode.mode = static_cast<nic::MatchMode>(std::min<uint64_t>(r.number("mode"), 3));
  m.mode.size = u32(r, "size");
  m.mode.lossless = r.flag("lossless");
  m.mode.early_for_messages = r.flag("early_for_messages");
  m.mode.early_for_receives = r.flag("early_for_receives");
  m.mode.by_receives = r.flag("by_receives");
  m.mode.by_messages = r.flag("by_messages");
  m.requests.bytes = r.number("requests_bytes");
  m.requests.posted_min = m.mode.requests = u32(r, "requests_min");
  m.requests.cached_max = u32(r, "requests_cached");
  m.requests.count_max = u32(r, "requests_max");
  m.append_retry_ns = r.number("append_retry_ns");
  return m;
}

}  // namespace

nic::DomainConfig domain_config(const Record& r) {
  nic::DomainConfig c;
  c.nic = u32(r, "nic_index");
  c.prov_key = r.flag("prov_key");
  c.virt_addr = r.flag("virt_addr");
  c.raw_keys = r.flag("raw_keys");
  c.fetches_need_both = r.flag("fetches_need_both");
  c.standard_below = r.number("standard_below");
  c.addresses = {std::string(r.text("address_text")), u32(r, "address_nic_mask")};
  const std::vector<uint64_t> err = r.numbers("status.err"), prov = r.numbers("status.prov");
  for (size_t i = 0; i < err.size() && i < prov.size() && i < kStatusCount; ++i)
    c.statuses.entries[i] = {static_cast<int32_t>(err[i]), static_cast<int32_t>(prov[i])};
  return c;
}

nic::EndpointConfig endpoint_config(const Record& domain, const Record& r) {
  nic::EndpointConfig c;
  c.caps = r.number("caps");
  c.tx_size = u32(r, "tx_size");
  c.inject_size = r.number("inject_size");
  c.max_msg_size = r.number("max_msg_size");
  c.msg_order = r.number("msg_order");
  c.tx_op_flags = r.number("tx_op_flags");
  c.vni = static_cast<uint16_t>(r.number("vni"));
  c.foreign_key = r.flag("foreign_key");
  c.own_vni = r.flag("own_vni");
  c.fence_covers_all = r.flag("fence_covers_all");
  c.holds_more = r.flag("holds_more");
  c.tells_lengths = r.number("tells_lengths", 1) != 0;
  c.close_drops = r.flag("close_drops");
  c.pids = {u32(r, "pid_first"), u32(r, "pid_last")};
  c.tclass = static_cast<uint8_t>(r.number("tclass"));
  c.accelerated = r.flag("accelerated");
  c.prefer_numbers = r.flag("prefer_numbers");
  c.page_requests_max = u32(r, "page_requests");
  if (r.has("rules")) c.rules = op_rules(r.nested("rules"));
  if (r.has("messages")) c.messages = message_config(r.nested("messages"));
  c.rules.iov_max = limit(r.number("iov_limit"), c.rules.iov_max);
  c.rules.rma_iov_max = limit(r.number("rma_iov_limit"), c.rules.rma_iov_max);
  c.rules.messages.receive_flags = r.number("rx_op_flags");
  c.rules.messages.recv_iov_max = limit(r.number("rx_iov_limit"), c.rules.messages.recv_iov_max);
  c.rules.mr_local = domain.flag("mr_local");
  c.rules.mr_hmem = domain.flag("mr_hmem");
  c.rules.hmem = domain.flag("hmem");
  c.rules.mr_collective = r.flag("mr_collective");
  c.rules.desc_ignored = r.has("desc_ignored") ? r.flag("desc_ignored") : domain.flag("desc_ignored");
  c.messages.source = (c.caps & nic::rx_cap::kSource) != 0;
  c.messages.source_error = (c.caps & nic::rx_cap::kSourceErr) != 0;
  if (const std::vector<uint64_t> reorder = r.numbers("reorder"); reorder.size() == 4)
    c.reorder = {true, reorder[0], reorder[1], reorder[2], reorder[3], nic::TargetOrder::as_asked};
  c.reorder.target = static_cast<nic::TargetOrder>(std::min<uint64_t>(r.number("target_order"), 2));
  if (r.has("commands.policy")) {
    c.commands = {c.tx_size, static_cast<nic::WriteBack>(r.number("commands.policy") & 3),
                  static_cast<nic::LowLatencyRing>(std::min<uint64_t>(r.number("commands.ring"), 2))};
  }
  return c;
}

}  // namespace weft::provider
