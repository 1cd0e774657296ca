// cpp/bind/rules.cpp: the rules of calls, which a provider's policy passes to its endpoints.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/objects.hpp"

namespace weft::bind {

using nic::Refusal;

namespace {

constexpr const char* kCalls[] = {"write",   "read", "batch", "atomic", "fetch",
                                  "compare", "send", "tsend", "recv",   "trecv"};
static_assert(std::size(kCalls) == nic::kFlagCallCount);

size_t call_of(const std::string& name) {
  for (size_t i = 0; i < std::size(kCalls); ++i) {
    if (name == kCalls[i]) return i;
  }
  raise(fi_err::kEINVAL, "'" + name +
                             "' is no call with flags: write, read, batch, atomic, fetch, compare, send, tsend, recv "
                             "or trecv");
}

uint32_t at_most_kIovMax(uint32_t asked) {
  if (asked >= 1 && asked <= nic::kIovMax) return asked;
  raise(fi_err::kEINVAL,
        std::to_string(asked) + " pieces of a list: the NIC takes 1 to " + std::to_string(nic::kIovMax));
}

uint32_t& atomics_at(nic::OpRules& rules, uint32_t family, uint32_t op) {
  if (family < rules.atomics.size() && op < nic::kAtomicOpCount) return rules.atomics[family][op];
  raise(fi_err::kEINVAL, "there is no atomic operation " + std::to_string(op) + " of family " + std::to_string(family));
}

}  // namespace

void register_rules(Module& m) {
  using nic::OpRules;
  nb::enum_<Refusal>(m, "Refusal", "Why a call was refused.")
      .value("cq_full", Refusal::cq_full)
      .value("tx_full", Refusal::tx_full)
      .value("not_enabled", Refusal::not_enabled)
      .value("closed", Refusal::closed)
      .value("no_cq", Refusal::no_cq)
      .value("bad_address", Refusal::bad_address)
      .value("not_connected", Refusal::not_connected)
      .value("length_mismatch", Refusal::length_mismatch)
      .value("too_long", Refusal::too_long)
      .value("too_many_pieces", Refusal::too_many_pieces)
      .value("no_capability", Refusal::no_capability)
      .value("forked", Refusal::forked)
      .value("not_now", Refusal::not_now)
      .value("rx_full", Refusal::rx_full)
      .value("rdzv_full", Refusal::rdzv_full)
      .value("flow_stopped", Refusal::flow_stopped)
      .value("no_claim", Refusal::no_claim)
      .value("rx_changing", Refusal::rx_changing)
      .value("rx_no_entry", Refusal::rx_no_entry)
      .value("bad_flags", Refusal::bad_flags)
      .value("too_many_buffers", Refusal::too_many_buffers)
      .value("bad_range_count", Refusal::bad_range_count)
      .value("inject_too_long", Refusal::inject_too_long)
      .value("bad_key", Refusal::bad_key)
      .value("key_offset", Refusal::key_offset)
      .value("no_fence", Refusal::no_fence)
      .value("flags_clash", Refusal::flags_clash)
      .value("bad_tag", Refusal::bad_tag)
      .value("no_context", Refusal::no_context)
      .value("no_message_data", Refusal::no_message_data)
      .value("unknown_atomic", Refusal::unknown_atomic)
      .value("too_many_elements", Refusal::too_many_elements)
      .value("no_atomic", Refusal::no_atomic)
      .value("part_element", Refusal::part_element)
      .value("no_element", Refusal::no_element)
      .value("short_buffer", Refusal::short_buffer)
      .value("no_desc", Refusal::no_desc)
      .value("no_device_desc", Refusal::no_device_desc)
      .value("desc_closed", Refusal::desc_closed)
      .value("desc_foreign", Refusal::desc_foreign)
      .value("desc_elsewhere", Refusal::desc_elsewhere)
      .value("desc_no_right", Refusal::desc_no_right)
      .value("no_hmem", Refusal::no_hmem)
      .value("no_device_runtime", Refusal::no_device_runtime)
      .value("unknown_device_memory", Refusal::unknown_device_memory)
      .value("past_allocation", Refusal::past_allocation)
      .value("no_page", Refusal::no_page);
  Class<nic::MsgRules>(m, "MsgRules", "The rules of messages.")
      .def(nb::init<>())
      .def_rw("tag_mask", &nic::MsgRules::tag_mask, "The bits that tags and ignore masks may have.")
      .def_rw("receive_flags", &nic::MsgRules::receive_flags, "Flags of receives whose call takes no flags.")
      .def_prop_rw(
          "recv_iov_max", [](const nic::MsgRules& r) { return r.recv_iov_max; },
          [](nic::MsgRules& r, uint32_t n) { r.recv_iov_max = at_most_kIovMax(n); }, "The most buffers of one receive.")
      .def_rw("data", &nic::MsgRules::data, "False: no message carries remote CQ data.");
  Class<OpRules>(m, "OpRules",
                 "The rules of an endpoint's calls. New rules admit all that the NIC can do, and refuse other\n"
                 "calls with the codes of the man pages.")
      .def(nb::init<>())
      .def_prop_rw(
          "iov_max", [](const OpRules& r) { return r.iov_max; },
          [](OpRules& r, uint32_t n) { r.iov_max = at_most_kIovMax(n); }, "The most local buffers of one call.")
      .def_prop_rw(
          "rma_iov_max", [](const OpRules& r) { return r.rma_iov_max; },
          [](OpRules& r, uint32_t n) { r.rma_iov_max = at_most_kIovMax(n); }, "The most remote ranges of one call.")
      .def_rw("atomic_bytes_max", &OpRules::atomic_bytes_max,
              "The most bytes of one atomic. The NIC's own limit also applies.")
      .def_rw("atomic_count_max", &OpRules::atomic_count_max, "The most elements of one atomic.")
      .def_rw("only_receives_cancel", &OpRules::only_receives_cancel,
              "True: cancel() ends receives, and no operation that has not started.")
      .def_rw("fence_needs_cap", &OpRules::fence_needs_cap, "True: FENCE is refused without the capability FENCE.")
      .def_rw("fence_also", &OpRules::fence_also,
              "Flags with the effect of FENCE, with or without the capability. A call takes them if set_flags() admits "
              "them.")
      .def_rw("data_key_mask", &OpRules::data_key_mask,
              "Writes with data go only to keys with key & data_key_mask == data_key_value; 0: to all.")
      .def_rw("data_key_value", &OpRules::data_key_value)
      .def_rw("pcie_flag", &OpRules::pcie_flag,
              "The flag of atomics over PCIe. With this flag only the fetching sum exists.")
      .def_rw("pcie_datatypes", &OpRules::pcie_datatypes,
              "The datatypes of atomics over PCIe: bit n stands for datatype n.")
      .def_rw("messages", &OpRules::messages, "The rules of messages, besides the flags of their calls.")
      .def_rw("local_lengths", &OpRules::local_lengths,
              "True: a call with one remote range takes its length from the local buffers.")
      .def(
          "add_key_form",
          [](OpRules& r, uint64_t mask, uint64_t value, uint64_t offset_mask, uint32_t offset_shift, uint64_t sum_max) {
            if (r.key_form_count == nic::kKeyFormMax) {
              raise(fi_err::kENOSPC, "there are " + std::to_string(nic::kKeyFormMax) + " forms of keys already");
            }
            if ((value & ~mask) != 0 || offset_shift > 63) {
              raise(fi_err::kEINVAL, "a form of keys: value has only bits of mask, and a shift is below 64");
            }
            r.key_forms[r.key_form_count++] = {mask, value, offset_mask, offset_shift, sum_max};
          },
          nb::arg("mask"), nb::arg("value"), nb::kw_only(), nb::arg("offset_mask") = 0, nb::arg("offset_shift") = 0,
          nb::arg("sum_max") = ~uint64_t{0},
          "Adds a form of peers' keys: key & mask == value. From the first form on, a key that has none of the\n"
          "forms is refused at the call (bad_key). A key of a form with an offset is refused (key_offset) if\n"
          "(key >> offset_shift & offset_mask) + address + length is more than sum_max. At most four forms.")
      .def(
          "key_forms",
          [](const OpRules& r) {
            nb::list out;
            for (size_t i = 0; i < r.key_form_count; ++i) {
              const nic::KeyForm& f = r.key_forms[i];
              out.append(nb::make_tuple(f.mask, f.value, f.offset_mask, f.offset_shift, f.sum_max));
            }
            return out;
          },
          nb::sig("def key_forms(self) -> list[tuple[int, int, int, int, int]]"),
          "The forms of keys: (mask, value, offset_mask, offset_shift, sum_max) of each.")
      .def(
          "flag_names",
          [](const OpRules& r) {
            return r.flag_names != nullptr ? *r.flag_names : std::vector<std::pair<uint64_t, std::string>>();
          },
          "The names of the provider's own flags: (flag, name) of each.")
      .def(
          "flags", [](const OpRules& r, const std::string& call) { return r.flags[call_of(call)]; }, nb::arg("call"),
          "The flags that a call takes. call: write, read, batch, atomic, fetch, compare, send, tsend, recv or trecv.")
      .def(
          "set_flags", [](OpRules& r, const std::string& call, uint64_t flags) { r.flags[call_of(call)] = flags; },
          nb::arg("call"), nb::arg("flags"))
      .def(
          "name_flags",
          [](OpRules& r, const std::vector<std::pair<uint64_t, std::string>>& names) {
            r.flag_names = std::make_shared<const std::vector<std::pair<uint64_t, std::string>>>(names);
          },
          nb::arg("names"), "Names of the provider's own flags, for the texts of refusals: (flag, name).")
      .def(
          "atomics", [](OpRules& r, uint32_t family, uint32_t op) { return atomics_at(r, family, op); },
          nb::arg("family"), nb::arg("op"), "The datatypes of an operation: bit n stands for datatype n.")
      .def(
          "set_atomics",
          [](OpRules& r, uint32_t family, uint32_t op, uint32_t datatypes) {
            // Offer only what the atomics unit can do.
            atomics_at(r, family, op) = datatypes & nic::all_atomics()[family][op];
          },
          nb::arg("family"), nb::arg("op"), nb::arg("datatypes"))
      .def(
          "errno_of", [](const OpRules& r, Refusal why) { return r.errno_of(why); }, nb::arg("refusal"),
          "The FI_ code of a refusal.")
      .def(
          "set_errno",
          [](OpRules& r, Refusal why, int code) { r.errnos[static_cast<size_t>(why)] = static_cast<int16_t>(code); },
          nb::arg("refusal"), nb::arg("code"));
}

}  // namespace weft::bind
