// cpp/bind/av.cpp: address vectors as Python types.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/objects.hpp"
#include "call/av_set.hpp"

namespace weft::bind {

void register_av(Module& m) {
  Class<AddressVectorCore>(m, "AddressVectorCore", "The NIC's side of an address vector.")
      .def(
          "__init__",
          [](AddressVectorCore* self, DomainCore& d, bool symmetric, bool user_ids) {
            auto& box = box_of(d);
            new (self)
                AddressVectorCore{box, std::make_shared<nic::AddressVector>(box->domain.get(), symmetric, user_ids)};
          },
          nb::arg("domain"), nb::arg("symmetric") = false, nb::arg("user_ids") = false,
          "symmetric  FI_SYMMETRIC: the vectors of all processes have the same entries, so messages name their sender\n"
          "           by its fi_addr.\n"
          "user_ids   FI_AV_USER_ID: completions report FI_ADDR_NOTAVAIL for a peer until its user id is set.")
      .def(
          "insert_address",
          [](AddressVectorCore& a, uint32_t nic, uint32_t pid, uint16_t vni) {
            check_usable(a, "address vector");
            return a.av->insert({nic, pid, vni, 0});
          },
          nb::arg("nic"), nb::arg("pid"), nb::arg("vni"),
          "Inserts an address and returns its fi_addr. An address that is already present keeps its fi_addr.")
      .def(
          "remove_address",
          [](AddressVectorCore& a, uint64_t fi_addr) {
            check_usable(a, "address vector");
            if (!a.av->remove(fi_addr)) raise(fi_err::kEINVAL, "fi_addr ", fi_addr, " is not in the address vector");
          },
          nb::arg("fi_addr"))
      .def(
          "lookup_address",
          [](AddressVectorCore& a, uint64_t fi_addr) {
            check_usable(a, "address vector");
            const auto found = a.av->lookup(fi_addr);
            if (!found) raise(fi_err::kEINVAL, "fi_addr ", fi_addr, " is not in the address vector");
            return std::tuple(found->nic, found->pid, found->vni);
          },
          nb::arg("fi_addr"))
      .def(
          "set_user_id_of",
          [](AddressVectorCore& a, uint64_t fi_addr, uint64_t user_id) {
            check_usable(a, "address vector");
            if (!a.av->set_user_id(fi_addr, user_id))
              raise(fi_err::kEINVAL, "fi_addr ", fi_addr, " is not in the address vector");
          },
          nb::arg("fi_addr"), nb::arg("user_id"), "Completions report this number for the peer.")
      .def(
          "user_id_of",
          [](AddressVectorCore& a, uint64_t fi_addr) {
            check_usable(a, "address vector");
            return a.av->user_id(fi_addr);
          },
          nb::arg("fi_addr"), "What completions report for a peer.")
      .def_prop_ro(
          "reverse_lookups",
          [](AddressVectorCore& a) {
            check_usable(a, "address vector");
            return a.av->reverse_lookups();
          },
          "How often the fi_addr of an address was searched, for completions that report the sender.")
      .def("count", [](AddressVectorCore& a) { return a.av->count(); })
      .def("close", [](AddressVectorCore& a) { a.closed = true; });
  m.def(
      "addresses_in_use",
      [](AddressVectorCore& a, uint64_t first, uint64_t last, uint64_t stride, uint64_t most) {
        check_usable(a, "address vector");
        return a.av->in_use(first, last, stride, most);
      },
      nb::arg("av"), nb::arg("first"), nb::arg("last"), nb::arg("stride"), nb::arg("most"),
      "The fi_addr first, first + stride ... to last of a vector that are in use, ascending, `most` at most.");
  using call::AddressSet;
  Class<AddressSet>(m, "AddressSet", "The addresses of a set (fi_av_set(3)): in order, each once.")
      .def(nb::init<std::vector<uint64_t>>(), nb::arg("addresses"))
      .def("insert", &AddressSet::insert, nb::arg("address"), "Returns why the set did not change; empty: it did.")
      .def("remove", &AddressSet::remove, nb::arg("address"), "As insert.")
      .def("unite", &AddressSet::unite, nb::arg("other"))
      .def("intersect", &AddressSet::intersect, nb::arg("other"))
      .def("subtract", &AddressSet::subtract, nb::arg("other"))
      .def("addresses", [](const AddressSet& s) { return s.addresses(); })
      .def("__len__", [](const AddressSet& s) { return s.addresses().size(); });
}

}  // namespace weft::bind
