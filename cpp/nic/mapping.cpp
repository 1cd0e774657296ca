// cpp/nic/mapping.cpp: mappings: memory that peers access through an endpoint, independent of the regions for which it
// was mapped. A mapping ends when its owner closes it, when its endpoint closes, or, for memory of the NIC's segments,
// before a freed place is reused. Other memory may be unmapped at any time; accesses to its pages then fail.
#include <algorithm>

#include "nic/nic.hpp"

namespace weft::nic {

namespace {

constexpr uint64_t kPage = mem::kAllocationAlign;

bool overlap(const mem::MrBuffer& b, const mem::HeldPlace& place) noexcept {
  return b.segment == place.segment && b.where < place.offset + place.length && place.offset < b.where + b.length;
}

}  // namespace

std::shared_ptr<MemoryRegion> Domain::map_memory(const Endpoint& ep, uint64_t address, uint64_t length, uint64_t access,
                                                 uint64_t key) {
  const uint64_t first = address & ~(kPage - 1);
  uint64_t end;
  if (length == 0 || __builtin_add_overflow(address, length + kPage - 1, &end)) {
    throw Error(fi_err::kEINVAL, "a mapping has at least 1 byte, and lies within the address space");
  }
  end &= ~(kPage - 1);
  if (key == wire::kKeyNotAvail || config_.prov_key) {
    throw Error(fi_err::kEINVAL, "a mapping needs a key, and a domain whose keys the NIC does not make");
  }
  const iovec pages{reinterpret_cast<void*>(first), end - first};  // NOLINT: an address from the caller
  RegionExtra extra;
  extra.before = address - first;
  auto mapping = register_region({&pages, 1}, access, key, true, false, 0, extra);
  if (!mapping->remote_) throw Error(fi_err::kEINVAL, "a mapping is for peers: REMOTE_READ, REMOTE_WRITE or both");
  mapping->bind_endpoint(ep);
  {
    // List the mapping before peers can use it, so that freeing the memory or closing the endpoint ends it.
    const Guard lock(nic_->mappings_mutex_);
    std::erase_if(nic_->mappings_, [](const auto& known) { return known->closed(); });
    nic_->mappings_.push_back(mapping);
  }
  mapping->enable();
  return mapping;
}

std::vector<std::shared_ptr<MemoryRegion>> Nic::mappings() const {
  std::vector<std::shared_ptr<MemoryRegion>> found;
  const Guard lock(mappings_mutex_);
  found.reserve(mappings_.size());
  std::ranges::copy_if(mappings_, std::back_inserter(found), [](const auto& known) { return !known->closed(); });
  return found;
}

void Nic::close_mappings_of(const Endpoint& ep) noexcept {
  const uint32_t binding = mem::ep_binding(ep.index(), ep.generation());
  try {
    for (const auto& mapping : mappings()) {
      if (mapping->domain() != ep.domain() || !mapping->bound_to(binding)) continue;
      std::string why;
      (void)mapping->close(&why);
    }
  } catch (const std::bad_alloc&) {
    // Like a peer that does not finish: the mapping stays, but no peer can use it, because its endpoint is closed.
  }
}

// Closes the mappings of a domain that ends. If a peer still uses a mapping, the mapping's place is never reused.
void Nic::drop_mappings_of(const Domain* domain) noexcept {
  try {
    for (const auto& mapping : mappings()) {
      std::string why;
      if (mapping->domain() != domain || mapping->close(&why)) continue;
      const mem::MrBuffer& b = mapping->buffers()[0];
      const Guard lock(mappings_mutex_);
      if (b.segment != mem::kNoSegment) abandoned_.push_back({b.segment, b.where, b.length});
    }
  } catch (const std::bad_alloc&) {  // the domain's endpoints are closed: no peer begins a new access
  }
  const Guard lock(mappings_mutex_);
  std::erase_if(mappings_, [=](const auto& known) { return known->domain() == domain; });
}

void Nic::let_go(const mem::HeldPlace& place) {
  for (const auto& mapping : mappings()) {
    if (!overlap(mapping->buffers()[0], place)) continue;
    std::string why;  // if a peer does not finish, held_places() returns the mapping's place, and the place rests
    (void)mapping->close(&why);
  }
}

}  // namespace weft::nic
