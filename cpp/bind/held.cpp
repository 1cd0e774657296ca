// cpp/bind/held.cpp: the domains that hold pages.
#include "bind/held.hpp"

#include <unordered_map>

#include "bind/objects.hpp"

namespace weft::bind {

bool g_holding = false;

namespace {
struct Holding {
  std::weak_ptr<DomainBox> domain;
  bool kept;
};
std::unordered_map<const DomainBox*, Holding>& holding() {
  static std::unordered_map<const DomainBox*, Holding> domains;
  return domains;
}
}  // namespace

mem::HeldPages& held_pages() {
  static mem::HeldPages pages;
  return pages;
}

void hold(const DomainBox* box, const void* owner, iovec* piece) {
  const auto found = holding().find(box);
  if (found == holding().end() || found->second.domain.lock().get() != box) return;
  const uint64_t address =
      held_pages().hold(owner, reinterpret_cast<uint64_t>(piece->iov_base), piece->iov_len, found->second.kept);
  piece->iov_base = reinterpret_cast<void*>(address);  // NOLINT: an address of the process
}

void register_held(Module& m) {
  m.about(
       "From now on the NIC holds the pages of the domain's regions, like hardware that pins them: after a fork the\n"
       "NIC keeps using the same pages, although this process gets a new page when it writes. This covers regions\n"
       "that are whole pages of private memory.\n\n"
       "kept   the pages are kept from children (MADV_DONTFORK): a fork copies none.")
      .def<"hold_pages(domain, kept)">([](DomainCore& d, bool kept) {
        const auto& box = box_of(d);
        std::erase_if(holding(), [](const auto& known) { return known.second.domain.expired(); });
        holding()[box.get()] = {box, kept};
        g_holding = true;
      });
}

}  // namespace weft::bind
