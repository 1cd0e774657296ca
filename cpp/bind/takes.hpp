// cpp/bind/takes.hpp: what regions take of their provider (call/quota.hpp), with the Python objects behind it.
#pragma once

#include <unordered_map>

#include "call/quota.hpp"

namespace nb = nanobind;

namespace weft::bind {

// Requires the GIL.
struct RegionTakes : call::RegionQuota {
  nb::object numbers_object, ledger_object, taken_object, sequence_object;  // own the quota's objects
  nb::object more;  // more(kind, count), called if fewer are free: frees some, or raises

  // If `map` is set, peers access the memory of a region through a mapping. The region has the mapping's key and takes
  // no resources. Python keeps the mappings: map(domain, ep, address, length, readonly, owner) returns a mapping and
  // counts a user; unmap(the same arguments) removes the user. All regions of one place are one user. kept() is called
  // once, when a region is closed whose place other regions use.
  nb::object map, unmap, kept;
  struct Place {
    PyObject* ep;
    uint64_t address, length;
    bool readonly;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    size_t operator()(const Place& p) const noexcept {
      return std::hash<uint64_t>()(p.address ^ p.length << 20 ^ reinterpret_cast<uint64_t>(p.ep) << 8);
    }
  };
  struct Mapped {
    nb::object mapping;
    uint32_t regions = 0, users = 0;  // users: calls of map() that unmap() will undo
  };
  std::unordered_map<Place, Mapped, PlaceHash> mapped;

  // Takes these resources; false with a Python error set.
  bool take_or_ask(Took took);
  void give_quietly(Took took) noexcept;
};

}  // namespace weft::bind
