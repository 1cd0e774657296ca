// cpp/bind/takes.hpp: the resources that a region takes of its provider, as data, so that taking them runs no Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  static constexpr int64_t kNoCeiling = INT64_MAX;
  explicit Stock(std::vector<std::string> kinds)
      : kinds_(std::move(kinds)), counts_(kinds_.size()), ceilings_(kinds_.size(), kNoCeiling) {}
  [[nodiscard]] size_t kind(const std::string& name) const;  // raises KeyError
  [[nodiscard]] const std::string& name(size_t kind) const { return kinds_[kind]; }
  [[nodiscard]] size_t kinds() const noexcept { return kinds_.size(); }
  int64_t& operator[](size_t kind) noexcept { return counts_[kind]; }
  int64_t& ceiling(size_t kind) noexcept { return ceilings_[kind]; }

 private:
  std::vector<std::string> kinds_;
  std::vector<int64_t> counts_, ceilings_;
};

// A region takes a number when it is registered, and resources of one kind when it is enabled; its key decides the
// kind.
struct RegionTakes {
  struct Some {
    size_t kind = 0;
    int64_t count = 0;
  };
  nb::object numbers_object, free_object, taken_object;  // own the objects of the three pointers below
  Numbers* numbers = nullptr;
  Stock *free = nullptr, *taken = nullptr;
  uint64_t below = 0;  // smaller keys take `low`, others `high`
  Some low, high;
  nb::object more, over;  // more(kind, count) gets more or raises; over(kind): too many are free

  // Takes these resources; false with a Python error set.
  bool take(const Some& some);
  void give(const Some& some);  // an exception of `over` is printed, because no caller can handle it
};

}  // namespace weft::bind
