// cpp/nic/explain.cpp: see explain.hpp.
#include "nic/explain.hpp"

#include <cstdio>

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

// The table entry of a range's key; null if the peer's table is not shared, or no region has the key.
const mem::MrEntry* entry_of(const wire::RmaRange& range, const Route& route) noexcept {
  if (!route.peer || !route.peer->table.valid()) return nullptr;
  const auto& table = route.peer->table;
  const mem::EpEntry& ep = table.ep(route.ep_index);
  const uint32_t slot = (ep.flags.load(std::memory_order_relaxed) & mem::kEpProvKey) != 0
                            ? static_cast<uint32_t>(range.key & wire::kKeySlotMax)
                            : table.find_client_key(ep.domain, range.key);
  return slot < table.mr_count_max() ? &table.mr(slot) : nullptr;
}

// A key of cached memory reaches pages around its region too: addresses count from the region's start, and its table
// entry begins so many bytes before that. 0 for other keys.
uint64_t before_region(uint64_t base) noexcept {
  const bool negative = static_cast<int64_t>(base) < 0;
  return negative ? 0 - base : 0;
}

std::string region_text(const wire::RmaRange& range, const Route& route) {
  const mem::MrEntry* e = entry_of(range, route);
  if (e == nullptr) return {};
  const uint32_t access = mem::load_relaxed(e->access);
  const bool read = (access & mem::kRemoteRead) != 0, write = (access & mem::kRemoteWrite) != 0;
  const uint64_t base = mem::load_relaxed(e->base), before = before_region(base);
  char text[192];
  std::snprintf(text, sizeof(text), " (%s %llu B from address %s0x%llx, access %s)",
                before != 0 ? "the memory of this key, whose region is a part of it, has" : "the region has",
                static_cast<unsigned long long>(mem::load_relaxed(e->length)), before != 0 ? "-" : "",
                static_cast<unsigned long long>(before != 0 ? before : base),
                read && write ? "REMOTE_READ REMOTE_WRITE"
                : read        ? "REMOTE_READ"
                : write       ? "REMOTE_WRITE"
                              : "none");
  return text;
}

// Text for a key below standard_below that the other kind of domain made.
std::string kinds_text(const wire::RmaRange& range, const Route& route) {
  if (entry_of({range.addr, range.length, range.key ^ kStandardKey}, route) == nullptr) return {};
  const bool standard = (range.key & kStandardKey) != 0;
  return std::string("its owner made a region of this key, ") + (standard ? "an optimized" : "a standard") +
         " one, and this side looks for " + (standard ? "a standard" : "an optimized") +
         " one: processes that communicate need the same setting of optimized regions";
}

std::string endpoint_text(const Route& route) {
  if (!route.peer || !route.peer->table.valid()) {
    return " (RMA needs RMA, atomics ATOMIC, and both REMOTE_READ or REMOTE_WRITE)";
  }
  const uint32_t flags = route.peer->table.ep(route.ep_index).flags.load(std::memory_order_relaxed);
  std::string text = " (it serves";
  if ((flags & mem::kEpRemoteRead) != 0) text += " RMA reads";
  if ((flags & mem::kEpRemoteWrite) != 0) text += " RMA writes";
  if ((flags & mem::kEpAtomicRead) != 0) text += " atomics that read";
  if ((flags & mem::kEpAtomicWrite) != 0) text += " atomics that write";
  if ((flags & (mem::kEpRemoteRead | mem::kEpRemoteWrite | mem::kEpAtomicRead | mem::kEpAtomicWrite)) == 0) {
    text += " nothing";
  }
  return text + "; RMA needs RMA, atomics ATOMIC, and both REMOTE_READ or REMOTE_WRITE)";
}

// Text for a range out of bounds, often caused by a virtual address for a domain with offsets, or the reverse.
std::string addressing_text(const wire::RmaRange& range, const Route& route) {
  const mem::MrEntry* e = entry_of(range, route);
  char text[224];
  if (e == nullptr) {
    if (range.addr < uint64_t{1} << 32) return {};
    return "; is it a virtual address? Peers use virtual addresses only if the owner's domain was opened with "
           "MR_VIRT_ADDR, otherwise offsets in the region";
  }
  const uint64_t base = mem::load_relaxed(e->base), length = mem::load_relaxed(e->length),
                 local = mem::load_relaxed(e->local_addr);
  const uint64_t before = before_region(base), offset = range.addr - local - before;
  if ((base == 0 || before != 0) && range.addr - local < length && offset < length) {
    std::snprintf(text, sizeof(text),
                  "; it is a virtual address of the region, whose domain was opened without MR_VIRT_ADDR: give the "
                  "offset 0x%llx",
                  static_cast<unsigned long long>(offset));
    return text;
  }
  if (base != 0 && before == 0 && range.addr < length) {
    std::snprintf(text, sizeof(text),
                  "; it is an offset, and the region's domain was opened with MR_VIRT_ADDR: give the virtual address "
                  "0x%llx",
                  static_cast<unsigned long long>(base + range.addr));
    return text;
  }
  return {};
}

std::string status_text(const TxPort& tx, std::string text, const wire::RmaRange& range, const Route& route,
                        Status status) {
  if (status == Status::peer_gone || status == Status::no_endpoint || status == Status::refused ||
      status == Status::timeout || status == Status::unreachable || status == Status::protocol ||
      status == Status::secret || status == Status::version || status == Status::corrupted) {
    if (const std::string why = tx.domain()->nic()->explain(route.address); !why.empty()) text += why + "; ";
  }
  switch (status) {
    case Status::no_key:
      if (range.key == wire::kKeyNotAvail) {
        return text +
               "KEY_NOTAVAIL is not a key: the owner's region is not enabled, or was registered without rights for "
               "peers";
      }
      if (const std::string kinds = kinds_text(range, route); !kinds.empty()) return text + kinds;
      return text + "no region there has this key: register the region, and compare the key with its owner's";
    case Status::stale_key:
      return text + "the region of this key was closed, or was for a single use: exchange the new region's key";
    case Status::access:
      return text + "the region does not grant this access" + region_text(range, route) +
             ": register the region with this access";
    case Status::endpoint_access:
      return text + "the endpoint at that address does not serve this access" + endpoint_text(route) +
             ": open that endpoint with the missing capabilities in its hints";
    case Status::bounds:
      return text + "passes the end of the region" + region_text(range, route) + addressing_text(range, route);
    case Status::not_enabled:
      return text + "the region is not enabled: bind it and call enable()";
    case Status::wrong_endpoint:
      return text + "the region is bound to another endpoint of the peer: send to that endpoint's address";
    case Status::unauthorized:
      if (!tx.speaks_to(route)) {
        return text + "the endpoint's authorization key is VNI " + std::to_string(tx.config().vni) +
               ", the peer's is VNI " + std::to_string(route.address.vni) + ": open an endpoint with the peer's key";
      }
      return text +
             "the region was registered for another authorization key, or for one other peer: use an endpoint that the "
             "region admits";
    case Status::device:
      return text +
             "the device's runtime could not copy: the memory was freed, a kernel of its context failed, or a library "
             "of the device is missing in the process that copies";
    case Status::no_endpoint:
      return text +
             "no endpoint of this user is open at that address: compare it with the peer's getname(), and enable the "
             "peer first; processes of one host reach each other as one user";
    case Status::peer_gone:
      return text +
             "the peer's process died, or the connection to it was lost: insert the address of the process that takes "
             "its place";
    case Status::closed:
      return text + "the peer closed its NIC: insert the address of the process that takes its place";
    case Status::secret:
      return text +
             "tcp needs the same secret at both ends: give both processes the same WEFT_SECRET or WEFT_SECRET_FILE";
    case Status::version:
      return text + "the peer speaks another version of the protocol: install the same version of Weft on both sides";
    case Status::corrupted:
      return text +
             "bytes were changed on their way, so the connection was dropped; the operation may have been done or not, "
             "and the next operation connects again";
    case Status::refused:
      return text +
             "the peer refused the connection: it runs as another user, or has no room (descriptors, peers) for one "
             "more";
    case Status::misaligned:
      return text + "the address is not a multiple of the datatype's alignment: align the element in the region";
    case Status::canceled:
      return text + "canceled: the endpoint was closed or cancel() was called before it ended";
    case Status::fault:
      return text +
             "no memory behind that address in the peer, or behind the local buffer (unmapped, without the access "
             "right, past the end of a truncated file, or on a full disk): keep a region's memory mapped until the "
             "region is closed, and a buffer's until its operation has ended";
    case Status::unsupported:
      return text + "the owner cannot do that in this region: COMMIT_COMPLETE needs a region registered with RMA_PMEM";
    case Status::timeout:
      return text + "the peer did not answer in time; is its progress manual, and does no thread of it poll?";
    case Status::unreachable:
      if (tx.model().is_cut_off(route))
        return text + "the link of its NIC, or of this endpoint's, is down: take the device up";
      return text + "there is no route to that host: is its network up, and is the address right?";
    case Status::page_request:
      return text + "an ODP time-out: more than " + std::to_string(tx.config().page_requests_max) +
             " pages of the two buffers were missing, and a NIC gets only so many in time; no byte was moved. Repeat "
             "the transfer, or touch the pages first";
    case Status::backlog:
      return text + "the listener already keeps as many unread requests as it can (" + std::to_string(kBacklogMax) +
             "): let its application read its event queue, then connect again";
    case Status::protocol:
      return text + "the peer broke the protocol: the connection was dropped, and the next operation connects again";
    case Status::no_memory:
      return text + "out of memory or file descriptors: close what is not needed, or raise the limit (ulimit -n)";
    default:
      return text + "failed (status " + std::to_string(static_cast<int>(status)) +
             "): this is a defect of Weft, please report it with this text";
  }
}

}  // namespace

std::string explain(const TxPort& tx, const char* what, const wire::RmaRange& range, const Route& route,
                    Status status) {
  char head[320];
  std::snprintf(head, sizeof(head), "%s of %llu B at address 0x%llx with key 0x%llx on %s: ", what,
                static_cast<unsigned long long>(range.length), static_cast<unsigned long long>(range.addr),
                static_cast<unsigned long long>(tx.domain()->config().standard_below != 0 ? range.key & ~kStandardKey
                                                                                          : range.key),
                tx.domain()->nic()->text_of(route.address, tx.domain()->config().addresses).c_str());
  return status_text(tx, head, range, route, status);
}

std::string explain_message(const TxPort& tx, const Op& op, const Route& route) {
  char head[320];
  const std::string to = tx.domain()->nic()->text_of(route.address, tx.domain()->config().addresses);
  if (op.send().tagged) {
    std::snprintf(head, sizeof(head),
                  "message of %llu B with tag 0x%llx to %s: ", static_cast<unsigned long long>(op.total),
                  static_cast<unsigned long long>(op.send().tag), to.c_str());
  } else {
    std::snprintf(head, sizeof(head), "message of %llu B to %s: ", static_cast<unsigned long long>(op.total),
                  to.c_str());
  }
  if (op.status == Status::endpoint_access) {
    return std::string(head) +
           "the endpoint at that address receives no messages: open that endpoint with MSG or TAGGED, and RECV, in "
           "its hints";
  }
  if (op.status == Status::not_ready) {
    return std::string(head) + "no receive was posted for it in time: post receives before the peer sends";
  }
  return status_text(tx, head, {}, route, op.status);
}

std::string explain_safely(const TxPort& tx, const char* what, const wire::RmaRange& range, const Route& route,
                           Status status) noexcept {
  try {
    return explain(tx, what, range, route, status);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

}  // namespace weft::nic
