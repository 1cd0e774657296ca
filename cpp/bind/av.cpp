// cpp/bind/av.cpp: address vectors as Python types.
#include "bind/objects.hpp"
#include "call/av_set.hpp"

namespace weft::bind {

namespace {

nic::AddressVector& vector_of(const AddressVectorCore& a) {
  check_usable(a, "address vector");
  return *a.av;
}

}  // namespace

void register_av(Module& m) {
  Class<AddressVectorCore>(m, "AddressVectorCore", "The NIC's side of an address vector.")
      .about(
          "symmetric  FI_SYMMETRIC: the vectors of all processes have the same entries, so messages name their sender\n"
          "           by its fi_addr.\n"
          "user_ids   FI_AV_USER_ID: completions report FI_ADDR_NOTAVAIL for a peer until its user id is set.")
      .def<"__init__(domain, symmetric=False, user_ids=False)">([](AddressVectorCore* self, DomainCore& d,
                                                                   bool symmetric, bool user_ids) {
        auto& box = box_of(d);
        new (self) AddressVectorCore{box, std::make_shared<nic::AddressVector>(box->domain.get(), symmetric, user_ids)};
      })
      .about("Inserts an address and returns its fi_addr. An address that is already present keeps its fi_addr.")
      .def<"insert_address(nic, pid, vni)">([](AddressVectorCore& a, uint32_t nic, uint32_t pid, uint16_t vni) {
        return vector_of(a).insert({nic, pid, vni, 0});
      })
      .def<"remove_address(fi_addr)">([](AddressVectorCore& a, uint64_t fi_addr) {
        if (!vector_of(a).remove(fi_addr)) raise(fi_err::kEINVAL, "fi_addr ", fi_addr, " is not in the address vector");
      })
      .def<"lookup_address(fi_addr)">([](AddressVectorCore& a, uint64_t fi_addr) {
        const auto found = vector_of(a).lookup(fi_addr);
        if (!found) raise(fi_err::kEINVAL, "fi_addr ", fi_addr, " is not in the address vector");
        return std::tuple(found->nic, found->pid, found->vni);
      })
      .about("Completions report this number for the peer.")
      .def<"set_user_id_of(fi_addr, user_id)">([](AddressVectorCore& a, uint64_t fi_addr, uint64_t user_id) {
        if (!vector_of(a).set_user_id(fi_addr, user_id))
          raise(fi_err::kEINVAL, "fi_addr ", fi_addr, " is not in the address vector");
      })
      .about("What completions report for a peer.")
      .def<"user_id_of(fi_addr)">([](AddressVectorCore& a, uint64_t fi_addr) { return vector_of(a).user_id(fi_addr); })
      .about("How often the fi_addr of an address was searched, for completions that report the sender.")
      .def_prop<"reverse_lookups">([](AddressVectorCore& a) { return vector_of(a).reverse_lookups(); })
      .def<"count">([](AddressVectorCore& a) { return a.av->count(); })
      .def<"close">([](AddressVectorCore& a) { a.closed = true; });
  m.about("The fi_addr first, first + stride ... to last of a vector that are in use, ascending, `most` at most.")
      .def<"addresses_in_use(av, first, last, stride, most)">(
          [](AddressVectorCore& a, uint64_t first, uint64_t last, uint64_t stride, uint64_t most) {
            return vector_of(a).in_use(first, last, stride, most);
          });
  using call::AddressSet;
  Class<AddressSet>(m, "AddressSet", "The addresses of a set (fi_av_set(3)): in order, each once.")
      .def(nb::init<std::vector<uint64_t>>(), nb::arg("addresses"))
      .about("Returns why the set did not change; empty: it did.")
      .def<"insert(address)">(&AddressSet::insert)
      .about("As insert.")
      .def<"remove(address)">(&AddressSet::remove)
      .def<"unite(other)">(&AddressSet::unite)
      .def<"intersect(other)">(&AddressSet::intersect)
      .def<"subtract(other)">(&AddressSet::subtract)
      .def<"addresses">([](const AddressSet& s) { return s.addresses(); })
      .def<"__len__">([](const AddressSet& s) { return s.addresses().size(); });
}

}  // namespace weft::bind
