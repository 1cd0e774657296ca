// cpp/bind/takes.cpp: what a region takes of its provider.
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
  while ((*free)[some.kind] < some.count) [[unlikely]] {  // another thread may be quicker to take what `more` got
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
  nb::class_<Numbers>(m, "Numbers", "The numbers from 0 to count - 1, the lowest free one first. With the GIL.")
      .def(nb::init<uint32_t>(), nb::arg("count"))
      .def("take", &Numbers::take, "The lowest free number; None where all are taken.")
      .def("give", &Numbers::give, nb::arg("number"), "The number is free; False where it was.")
      .def("__len__", &Numbers::taken);

  nb::class_<Stock>(m, "Stock", "How many there are of each of some kinds; each call is one step for other threads.")
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
          nb::arg("kind"), nb::arg("count"), "Whether there were as many; then they are taken.")
      .def(
          "add", [](Stock& s, const std::string& kind, int64_t count) { s[s.kind(kind)] += count; }, nb::arg("kind"),
          nb::arg("count"))
      .def(
          "clear", [](Stock& s, const std::string& kind) { return std::exchange(s[s.kind(kind)], 0); }, nb::arg("kind"),
          "Takes all that there are: how many.")
      .def(
          "set_ceiling", [](Stock& s, const std::string& kind, int64_t count) { s.ceiling(s.kind(kind)) = count; },
          nb::arg("kind"), nb::arg("count"), "Above it, RegionTakes reports that too many are free.");

  nb::class_<RegionTakes>(m, "RegionTakes",
                          "What regions take of their provider (`DomainPolicy.region_takes`).\n\n"
                          "numbers      of which each takes one when it is registered.\n"
                          "free, taken  what there is, and what these regions have of it.\n"
                          "below        a region whose key is below it takes `low` when it is enabled, others `high`:\n"
                          "             (kind, count).\n"
                          "more         called with (kind, count) where fewer are free: gets more, or raises the "
                          "refusal.\n"
                          "over         called with (kind) where more than the ceiling of `free` are.\n\n"
                          "The two must not refer to the domain: they live as long as it.")
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
              raise(fi_err::kEINVAL, "RegionTakes: free and taken are of the same kinds");
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
