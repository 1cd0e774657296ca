// cpp/ucp/post.cpp: see post.hpp.
#include "ucp/post.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace weft::ucp {

namespace {

std::string hex(uint64_t n) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(n));
  return text;
}

Refused invalid(std::string text) {
  return {kInvalidParam, std::move(text)};
}

}  // namespace

// ---- rules ---------------------------------------------------------------------------------------------------------

Refused check_flags(uint64_t flags) {
  if ((flags & kFastCmpl) == 0 || (flags & kMultiSend) == 0) return {};
  return invalid(": FAST_CMPL and MULTI_SEND exclude each other\n  try: one of them, or none");
}

Refused length_of(const Amount& amount, uint64_t available, uint64_t* length) {
  const uint64_t element = amount.datatype ? *amount.datatype >> kClassShift : 1;
  if (amount.datatype && (*amount.datatype & kClassMask) != kClassContig) {
    return {kUnsupported, ": datatypes of class " + std::to_string(*amount.datatype & kClassMask) +
                              " are not for this call\n  try: ucp.dt_make_contig(n), or ucp.DATATYPE_IOV with a list"};
  }
  uint64_t n = available;
  if (amount.count && __builtin_mul_overflow(*amount.count, element, &n)) n = ~uint64_t{0};
  if (n > available) {
    return invalid(": count " + std::to_string(*amount.count) + " of " + std::to_string(element) +
                   " B passes the end of a buffer of " + std::to_string(available) + " B");
  }
  if (!amount.count && element > 1) n -= n % element;
  *length = n;
  return {};
}

Refused without_bytes() {
  return invalid(": the remote key is that of a region without bytes\n  try: map a region that has some");
}

Refused never_immediate() {
  return {kNoResource, ": FORCE_IMM_CMPL: an operation that brings data back is never immediate\n  try: without it"};
}

Refused refused_by_nic(nic::Refusal refusal) {
  if (refusal == nic::Refusal::not_now) {
    return {kNoResource,
            ": FORCE_IMM_CMPL: the operation would not end within the call (the peer's memory is "
            "not mapped here yet, or is reached through its engine)\n"
            "  try: without FORCE_IMM_CMPL"};
  }
  if (refusal == nic::Refusal::closed || refusal == nic::Refusal::not_enabled) return why_closed();
  return invalid(": the operation cannot be described to the NIC (refusal " +
                 std::to_string(static_cast<int>(refusal)) + ")");
}

// ---- transfers -----------------------------------------------------------------------------------------------------

uint64_t Transfer::bytes() const noexcept {
  uint64_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  return total;
}

bool Transfer::passes_end() const noexcept {
  const uint64_t at = remote - key->address, total = bytes();
  return parts() > 1 && (remote < key->address || total > key->length || at > key->length - total);
}

std::string Transfer::why_passes_end() const {
  return std::string(kind == nic::OpKind::read ? "read of " : "write of ") + std::to_string(bytes()) +
         " B at address " + hex(remote) + " with key " + hex(key->key) +
         ": passes the end of the region (the region has " + std::to_string(key->length) + " B from address " +
         hex(key->address) + ")";
}

nic::PostResult Transfer::post(nic::Endpoint& ep, size_t part, uint64_t context, uint64_t flags) {
  const size_t first = part * nic::kIovMax;
  const auto local = pieces.subspan(first, std::min(nic::kIovMax, pieces.size() - first));
  uint64_t length = 0;
  for (const iovec& piece : local) length += piece.iov_len;
  const wire::RmaRange range{remote + posted + key->bias, length, key->key};
  nic::RmaArgs args;
  args.kind = kind;
  args.dest = dest;
  args.local = local;
  args.remote = {&range, 1};
  args.flags = flags;
  args.context = context;
  args.device = device ? static_cast<uint8_t>((1u << local.size()) - 1) : uint8_t{0};
  const nic::PostResult r = ep.post(args);
  if (r.refusal == nic::Refusal::none) posted += length;
  return r;
}

// ---- atomics -------------------------------------------------------------------------------------------------------

Refused Atomic::why_no_operand(uint64_t available, const std::optional<uint64_t>& count) const {
  if (size != 4 && size != 8) {
    return invalid(": elements of " + std::to_string(size) +
                   " B\n  rule: the datatype is dt_make_contig(4) or dt_make_contig(8), and one element");
  }
  if (available == 0 || available % size != 0) {
    return invalid(": the buffer has " + std::to_string(available) + " B, the element " + std::to_string(size) +
                   "\n  rule: the operand is the first of whole elements");
  }
  return invalid(": count is " + std::to_string(count.value_or(0)) +
                 "; it has to be 1\n  try: a call for each element");
}

Refused Atomic::why_no_operation(bool replies) const {
  if (opcode >= kAtomicOps) {
    return invalid(": there is no atomic operation " + std::to_string(opcode) +
                   "\n  rule: ATOMIC_OP_ADD, SWAP, CSWAP, AND, OR or XOR");
  }
  if (!replies && (opcode == kSwap || opcode == kCswap)) {
    return invalid(std::string(": ") + (opcode == kSwap ? "SWAP" : "CSWAP") +
                   " needs a reply_buffer: the old value goes there" +
                   (opcode == kCswap ? ", and the new one is taken from there" : ""));
  }
  return invalid(": remote_addr " + hex(remote) + " is no multiple of " + std::to_string(size) +
                 ": atomics need natural alignment\n  try: align the element");
}

Refused Atomic::why_no_room(uint64_t length) const {
  return invalid(": reply_buffer has " + std::to_string(length) + " B, the element " + std::to_string(size));
}

}  // namespace weft::ucp
