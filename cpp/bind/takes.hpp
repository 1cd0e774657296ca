// cpp/bind/takes.hpp: what a region takes of its provider, as data, so that taking it runs no Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace weft::bind {

// Numbers from 0 up, the lowest that is free first. All of this is used with the GIL.
class Numbers {
 public:
  explicit Numbers(uint32_t count) : count_(count), used_((count + 63) / 64) {}
  std::optional<uint32_t> take();
  bool give(uint32_t n) noexcept;  // false: it was not taken
  [[nodiscard]] uint32_t taken() const noexcept { return taken_; }

 private:
  uint32_t count_, taken_ = 0;
  size_t first_ = 0;  // no word before it has a free number
  std::vector<uint64_t> used_;
};

// How many there are of each of several kinds.
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

// A region takes a number when it is registered, and some of one kind when it is enabled: which, its key decides.
struct RegionTakes {
  struct Some {
    size_t kind = 0;
    int64_t count = 0;
  };
  nb::object numbers_object, free_object, taken_object;  // keep the three below
  Numbers* numbers = nullptr;
  Stock *free = nullptr, *taken = nullptr;
  uint64_t below = 0;  // keys below it take `low`, others `high`
  Some low, high;
  nb::object more, over;  // called with (kind, count): get more, or raise; with (kind): too many are free

  // False with a Python error set.
  bool take(const Some& some);
  void give(const Some& some);  // an error of `over` is reported and forgotten
};

}  // namespace weft::bind
