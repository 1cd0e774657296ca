// cpp/bind/takes.hpp: the resources that a region takes of its provider, as data, so that taking them runs no Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mem/ledger.hpp"

namespace nb = nanobind;

namespace weft::bind {

// A pool of the numbers from 0 to count - 1; the lowest free number is taken first. This file's classes require the
// GIL.
class Numbers {
 public:
  explicit Numbers(uint32_t count) : count_(count), used_((count + 63) / 64) {}
  std::optional<uint32_t> take();
  bool give(uint32_t n) noexcept;  // false: n was not taken
  [[nodiscard]] uint32_t taken() const noexcept { return taken_; }

 private:
  uint32_t count_, taken_ = 0;
  size_t first_ = 0;  // words before this one have no free number
  std::vector<uint64_t> used_;
};

// Counts of several kinds of resource.
class Stock {
 public:
  explicit Stock(std::vector<std::string> kinds) : kinds_(std::move(kinds)), counts_(kinds_.size()) {}
  [[nodiscard]] size_t kind(const std::string& name) const;  // raises KeyError
  [[nodiscard]] const std::string& name(size_t kind) const { return kinds_[kind]; }
  [[nodiscard]] size_t kinds() const noexcept { return kinds_.size(); }
  int64_t& operator[](size_t kind) noexcept { return counts_[kind]; }

 private:
  std::vector<std::string> kinds_;
  std::vector<int64_t> counts_;
};

// Consecutive numbers of a given number of bits. Requires the GIL.
class Sequence {
 public:
  Sequence(uint64_t first, uint32_t bits) : next_(first), mask_((uint64_t{1} << bits) - 1) {}
  uint64_t next() noexcept { return ++next_ & mask_; }

 private:
  uint64_t next_, mask_;
};

// A region takes a number when it is registered, and resources of one kind when it is enabled.
struct RegionTakes {
  struct Some {
    size_t kind = 0;
    int32_t count = 0;
  };
  nb::object numbers_object, ledger_object, taken_object;  // own the objects of the three pointers below
  Numbers* numbers = nullptr;
  mem::Ledger* ledger = nullptr;
  Stock* taken = nullptr;
  uint32_t slot = 0;  // in the ledger
  Some low, high;
  bool closed = false;  // the slot was given back: regions take and return nothing more
  nb::object more;      // more(kind, count), called if fewer are free: frees some, or raises

  // If applications choose the keys: a region with a smaller key than this takes `low`, any other takes `high`.
  uint64_t below = 0;

  // If the provider makes the key when the region is enabled: the key is base | sequence << shift | number. A region
  // with a smaller number than numbers_below takes `low` if `low` is available, and its key has optimized_bit; any
  // other region takes `high`.
  nb::object sequence_object;
  Sequence* sequence = nullptr;  // null: the provider makes no keys, or Python makes them
  uint64_t base = 0, optimized_bit = 0;
  uint32_t numbers_below = 0, shift = 0;

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
  bool take(const Some& some);
  void give(const Some& some) noexcept;
};

}  // namespace weft::bind
