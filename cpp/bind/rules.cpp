// cpp/bind/rules.cpp: the rules of calls, which a provider's policy passes to its endpoints.
#include "bind/objects.hpp"
#include "bind/tables.hpp"

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
  raise(fi_err::kEINVAL, "'", name,
        "' is no call with flags: write, read, batch, atomic, fetch, compare, send, tsend, recv "
        "or trecv");
}

uint32_t& atomics_at(nic::OpRules& rules, uint32_t family, uint32_t op) {
  if (family < rules.atomics.size() && op < nic::kAtomicOpCount) return rules.atomics[family][op];
  raise(fi_err::kEINVAL, "there is no atomic operation ", op, " of family ", family);
}

}  // namespace

void register_rules(Module& m) {
  using nic::OpRules;
  register_choices<Refusal>(m);
  register_table<nic::MsgRules>(m);
  register_table<nic::KeyForm>(m);
  register_table<OpRules>(m)
      .about(
          "Adds a form of peers' keys: key & mask == value. From the first form on, a key that has none of the\n"
          "forms is refused at the call (bad_key). A key of a form with an offset is refused (key_offset) if\n"
          "(key >> offset_shift & offset_mask) + address + length is more than sum_max. At most four forms.")
      .def<"add_key_form(mask, value, *, offset_mask=0, offset_shift=0, sum_max=0xffffffffffffffff)">(
          [](OpRules& r, uint64_t mask, uint64_t value, uint64_t offset_mask, uint32_t offset_shift, uint64_t sum_max) {
            if (r.key_form_count == nic::kKeyFormMax) {
              raise(fi_err::kENOSPC, "there are ", nic::kKeyFormMax, " forms of keys already");
            }
            if ((value & ~mask) != 0 || offset_shift > 63) {
              raise(fi_err::kEINVAL, "a form of keys: value has only bits of mask, and a shift is below 64");
            }
            r.key_forms[r.key_form_count++] = {mask, value, offset_mask, offset_shift, sum_max};
          })
      .about(
          "The flags that a call takes. call: write, read, batch, atomic, fetch, compare, send, tsend, recv or trecv.")
      .def<"flags(call)">([](const OpRules& r, const std::string& call) { return r.flags[call_of(call)]; })
      .def<"set_flags(call, flags)">(
          [](OpRules& r, const std::string& call, uint64_t flags) { r.flags[call_of(call)] = flags; })
      .about("Names of the provider's own flags, for the texts of refusals: (flag, name).")
      .def<"name_flags(names)">([](OpRules& r, const std::vector<std::pair<uint64_t, std::string>>& names) {
        r.flag_names = std::make_shared<const std::vector<std::pair<uint64_t, std::string>>>(names);
      })
      .about("The datatypes of an operation: bit n stands for datatype n.")
      .def<"atomics(family, op)">([](OpRules& r, uint32_t family, uint32_t op) { return atomics_at(r, family, op); })
      .def<"set_atomics(family, op, datatypes)">([](OpRules& r, uint32_t family, uint32_t op, uint32_t datatypes) {
        // Offer only operations of the atomics unit.
        atomics_at(r, family, op) = datatypes & nic::all_atomics()[family][op];
      })
      .about("The FI_ code of a refusal.")
      .def<"errno_of(refusal)">([](const OpRules& r, Refusal why) { return r.errno_of(why); })
      .def<"set_errno(refusal, code)">(
          [](OpRules& r, Refusal why, int code) { r.errnos[static_cast<size_t>(why)] = static_cast<int16_t>(code); });
}

}  // namespace weft::bind
