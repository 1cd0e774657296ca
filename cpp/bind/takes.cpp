// cpp/bind/takes.cpp: see takes.hpp.
#include "bind/takes.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "bind/objects.hpp"

namespace weft::bind {

std::optional<uint32_t> Numbers::take() {
  if (taken_ == count_) return std::nullopt;
  while (first_ < used_.size() && used_[first_] == ~uint64_t{0}) ++first_;
  const auto n = static_cast<uint32_t>(64 * first_ + static_cast<size_t>(std::countr_one(used_[first_])));
  if (n >= count_) return std::nullopt;
  used_[first_] |= uint64_t{1} << n % 64;
  ++taken_;
  return n;
}

bool Numbers::give(uint32_t n) noexcept {
  const uint64_t bit = uint64_t{1} << n % 64;
  if (n >= count_ || (used_[n / 64] & bit) == 0) return false;
  used_[n / 64] &= ~bit;
  --taken_;
  first_ = std::min<size_t>(first_, n / 64);
  return true;
}

size_t Stock::kind(const std::string& name) const {
  const auto found = std::ranges::find(kinds_, name);
  if (found == kinds_.end()) throw nb::key_error(name.c_str());
  return static_cast<size_t>(found - kinds_.begin());
}

bool RegionTakes::take(const Some& some) {
  while ((*free)[some.kind] < some.count) [[unlikely]] {  // another thread may have taken what `more` got
    PyObject* done =
        PyObject_CallFunction(more.ptr(), "sL", free->name(some.kind).c_str(), static_cast<long long>(some.count));
    if (done == nullptr) return false;
    Py_DECREF(done);
  }
  (*free)[some.kind] -= some.count;
  (*taken)[some.kind] += some.count;
  return true;
}

void RegionTakes::give(const Some& some) {
  (*taken)[some.kind] -= some.count;
  (*free)[some.kind] += some.count;
  if ((*free)[some.kind] <= free->ceiling(some.kind)) [[likely]]
    return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* done = PyObject_CallFunction(over.ptr(), "s", free->name(some.kind).c_str());
  if (done == nullptr) PyErr_WriteUnraisable(over.ptr());
  Py_XDECREF(done);
  PyErr_Restore(type, value, trace);
}

void register_takes(nb::module_& m) {
  nb::class_<Numbers>(m, "Numbers",
                      "A pool of the numbers from 0 to count - 1. Its calls are atomic, because they hold the GIL.")
      .def(nb::init<uint32_t>(), nb::arg("count"))
      .def("take", &Numbers::take, "Takes the lowest free number; None if no number is free.")
      .def("give", &Numbers::give, nb::arg("number"), "Gives a number back; False if it was not taken.")
      .def("__len__", &Numbers::taken);

  nb::class_<Stock>(m, "Stock", "Counts of several kinds of resource. Its calls are atomic, because they hold the GIL.")
      .def(nb::init<std::vector<std::string>>(), nb::arg("kinds"))
      .def(
          "__getitem__", [](Stock& s, const std::string& kind) { return s[s.kind(kind)]; }, nb::arg("kind"))
      .def(
          "take",
          [](Stock& s, const std::string& kind, int64_t count) {
            int64_t& there = s[s.kind(kind)];
            if (there < count) return false;
            there -= count;
            return true;
          },
          nb::arg("kind"), nb::arg("count"),
          "Takes `count` of a kind; False if there are fewer: then nothing is taken.")
      .def(
          "add", [](Stock& s, const std::string& kind, int64_t count) { s[s.kind(kind)] += count; }, nb::arg("kind"),
          nb::arg("count"))
      .def(
          "clear", [](Stock& s, const std::string& kind) { return std::exchange(s[s.kind(kind)], 0); }, nb::arg("kind"),
          "Takes all of a kind and returns their number.")
      .def(
          "set_ceiling", [](Stock& s, const std::string& kind, int64_t count) { s.ceiling(s.kind(kind)) = count; },
          nb::arg("kind"), nb::arg("count"), "Sets the count of free ones above which RegionTakes calls `over`.");

  nb::class_<RegionTakes>(
      m, "RegionTakes",
      "The resources that regions take of their provider (`DomainPolicy.region_takes`).\n\n"
      "numbers      the pool of which each region takes a number when it is registered.\n"
      "free, taken  the free resources, and those that these regions have taken; both of the same kinds.\n"
      "below        a region with a key below this number takes `low` when it is enabled, any other takes `high`:\n"
      "             each is a pair (kind, count).\n"
      "more         called with (kind, count) if fewer are free: provides more, or raises the provider's refusal.\n"
      "over         called with (kind) if more are free than the ceiling of `free`.\n\n"
      "`more` and `over` must not refer to the domain: the domain keeps them as long as it exists.")
      .def(
          "__init__",
          [](RegionTakes* self, nb::handle numbers, nb::handle free, nb::handle taken, uint64_t below,
             const std::pair<std::string, int64_t>& low, const std::pair<std::string, int64_t>& high, nb::handle more,
             nb::handle over) {
            RegionTakes made;
            made.numbers = nb::cast<Numbers*>(numbers);
            made.free = nb::cast<Stock*>(free);
            made.taken = nb::cast<Stock*>(taken);
            made.numbers_object = nb::borrow(numbers);
            made.free_object = nb::borrow(free);
            made.taken_object = nb::borrow(taken);
            if (made.taken->kinds() != made.free->kinds()) {
              raise(fi_err::kEINVAL, "RegionTakes: free and taken must have the same kinds");
            }
            made.below = below;
            made.low = {made.free->kind(low.first), low.second};
            made.high = {made.free->kind(high.first), high.second};
            made.more = nb::borrow(more);
            made.over = nb::borrow(over);
            new (self) RegionTakes(std::move(made));
          },
          nb::arg("numbers"), nb::arg("free"), nb::arg("taken"), nb::kw_only(), nb::arg("below"), nb::arg("low"),
          nb::arg("high"), nb::arg("more"), nb::arg("over"),
          nb::sig("def __init__(self, numbers: Numbers, free: Stock, taken: Stock, *, below: int, low: tuple[str, "
                  "int], high: tuple[str, int], more: Callable[[str, int], object], over: Callable[[str], object]) -> "
                  "None"));
}

}  // namespace weft::bind
