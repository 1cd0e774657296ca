// cpp/bind/takes.cpp: see takes.hpp.
#include "bind/takes.hpp"

#include <algorithm>
#include <utility>

#include "bind/objects.hpp"

namespace weft::bind {

using call::Numbers, call::Sequence, call::Stock;

bool RegionTakes::take_or_ask(Took took) {
  try {
    while (!take(took)) [[unlikely]] {  // another process may have taken what `more` freed
      const auto& [kind, count] = some(took);
      PyObject* done =
          PyObject_CallFunction(more.ptr(), "sL", taken->name(kind).c_str(), static_cast<long long>(count));
      if (done == nullptr) return false;
      Py_DECREF(done);
    }
    return true;
  } catch (const Error& busy) {
    return set_error(busy.fi_code(), busy.what());
  }
}

void RegionTakes::give_quietly(Took took) noexcept {
  try {
    give(took);
  } catch (const Error& busy) {  // the ledger returns the resources when the process ends
    PySys_WriteStderr("weft: %s\n", busy.what());
  }
}

namespace {

using mem::Ledger;
using WhoTuple = std::tuple<uint64_t, uint64_t, uint64_t>;

Ledger::Counts counts_of(const std::vector<int32_t>& list) {
  Ledger::Counts counts{};
  if (list.size() != counts.size()) raise(fi_err::kEINVAL, "Ledger: one number for each kind");
  std::ranges::copy(list, counts.begin());
  return counts;
}
std::vector<int32_t> list_of(const Ledger::Counts& counts) {
  return {counts.begin(), counts.end()};
}
Ledger::Who who_of(const WhoTuple& who) {
  return {std::get<0>(who), std::get<1>(who), std::get<2>(who)};
}
size_t kind_of(const Stock& stock, const std::string& name) {
  const auto kind = stock.kind(name);
  if (!kind) throw nb::key_error(name.c_str());
  return *kind;
}
void check(uint32_t slot, size_t kind, int32_t count) {
  if (slot >= Ledger::kSlotsMax || kind >= Ledger::kKinds || count < 0) {
    raise(fi_err::kEINVAL, "Ledger: no such slot or kind, or a negative number");
  }
}

void register_ledger(Module& m) {
  Class<Ledger>(m, "Ledger",
                "The resources of a device that each process has taken, in a file that the processes map.\n\n"
                "fd    a file of `bytes()` bytes; the caller may close it afterwards.\n\n"
                "Kinds of resources are numbers from 0 to 7. Limits are exact between processes. The ledger stays "
                "correct if a\n"
                "process is killed at any instant. Raises Busy if another process holds the lock for 10 s.")
      .def<"__init__(fd)">([](Ledger* self, int fd) { new (self) Ledger(fd, host::calendar()); })
      .about("Size of the file.")
      .def_static<"bytes">(&Ledger::bytes)
      .about("Makes a file of zeros an empty ledger; no other process may use the file.")
      .def<"begin(id, totals)">(
          [](Ledger& l, uint64_t id, const std::vector<int32_t>& totals) { l.begin(id, counts_of(totals)); })
      .about("True if the file is a ledger that begin() made with this id.")
      .def<"begun(id)">(&Ledger::is)
      .about("Sets the limits of all services that exist: (id, most, reserved).")
      .def<"set_limits(services)">(
          [](Ledger& l, const std::vector<std::tuple<uint32_t, std::vector<int32_t>, std::vector<int32_t>>>& services) {
            std::vector<Ledger::Limits> all;
            for (const auto& [service, most, reserved] : services) {
              all.push_back({service, counts_of(most), counts_of(reserved)});
            }
            l.set_limits(all);
          })
      .about("A slot for a process (pid, start, space) that uses a service; call set_limits() afterwards.")
      .def<"open(who, service)">(
          [](Ledger& l, const WhoTuple& who, uint32_t service) { return l.open(who_of(who), service); })
      .about("Returns all resources of the slot.")
      .def<"close(slot)">([](Ledger& l, uint32_t slot) {
        check(slot, 0, 0);
        l.close(slot);
      })
      .about("close(), if the slot still belongs to this process.")
      .def<"drop(slot, who)">([](Ledger& l, uint32_t slot, const WhoTuple& who) {
        check(slot, 0, 0);
        l.drop(slot, who_of(who));
      })
      .about("Takes `count`; False if there are fewer: then nothing is taken.")
      .def<"take(slot, kind, count)">([](Ledger& l, uint32_t slot, size_t kind, int32_t count) {
        check(slot, kind, count);
        return l.take(slot, kind, count);
      })
      .about("Returns resources of the slot.")
      .def<"give(slot, kind, count)">([](Ledger& l, uint32_t slot, size_t kind, int32_t count) {
        check(slot, kind, count);
        l.give(slot, kind, count);
      })
      .about("The number that the service can still take.")
      .def<"there(service, kind)">([](Ledger& l, uint32_t service, size_t kind) {
        check(0, kind, 0);
        return l.there(service, kind);
      })
      .about("For each slot: (slot, service, (pid, start, space), numbers by kind).")
      .def<"held">([](Ledger& l) {
        std::vector<std::tuple<uint32_t, uint32_t, WhoTuple, std::vector<int32_t>>> all;
        for (const auto& one : l.held()) {
          all.emplace_back(one.slot, one.service, WhoTuple{one.who.pid, one.who.start, one.who.space},
                           list_of(one.held));
        }
        return all;
      });
}

}  // namespace

void register_takes(Module& m) {
  Class<Numbers>(m, "Numbers",
                 "A pool of the numbers from 0 to count - 1. Its calls are atomic, because they hold the GIL.")
      .def(nb::init<uint32_t>(), nb::arg("count"))
      .about("Takes the lowest free number; None if no number is free.")
      .def<"take">(&Numbers::take)
      .about("Gives a number back; False if it was not taken.")
      .def<"give(number)">(&Numbers::give)
      .def<"__len__">(&Numbers::taken);

  Class<Stock>(m, "Stock", "Counts of several kinds of resource. Its calls are atomic, because they hold the GIL.")
      .def(nb::init<std::vector<std::string>>(), nb::arg("kinds"))
      .def<"__getitem__(kind)">([](Stock& s, const std::string& kind) { return s[kind_of(s, kind)]; })
      .about("Takes `count` of a kind; False if there are fewer: then nothing is taken.")
      .def<"take(kind, count)">(
          [](Stock& s, const std::string& kind, int64_t count) { return s.take(kind_of(s, kind), count); })
      .def<"add(kind, count)">([](Stock& s, const std::string& kind, int64_t count) { s[kind_of(s, kind)] += count; })
      .about("Takes all of a kind and returns their number.")
      .def<"clear(kind)">([](Stock& s, const std::string& kind) { return std::exchange(s[kind_of(s, kind)], 0); });

  Class<Sequence>(m, "KeySequence",
                  "Consecutive numbers of a given number of bits. Its calls are atomic, because they hold the GIL.")
      .def(nb::init<uint64_t, uint32_t>(), nb::arg("first"), nb::arg("bits"))
      .def<"next">(&Sequence::next);

  register_ledger(m);

  Class<RegionTakes>(
      m, "RegionTakes",
      "The resources that regions take of their provider (`DomainPolicy.region_takes`).\n\n"
      "numbers       the pool of which each region takes a number when it is registered.\n"
      "ledger, slot  the resources that regions take when they are enabled, and the slot that has them.\n"
      "taken         counts the resources that these regions have, by the names of their kinds.\n"
      "below         a region with a key below this number takes `low` when it is enabled, any other "
      "takes `high`:\n"
      "              each is a pair (kind, count).\n"
      "more          called with (kind, count) if fewer are free: frees some, or raises the provider's "
      "refusal.\n\n"
      "`more`, and the functions of make_keys(), must not refer to the domain: the domain keeps them as "
      "long as it exists.")
      .def<
          "__init__(self, numbers: Numbers, ledger: Ledger, slot: int, taken: Stock, *, below: int, low: tuple[str, "
          "int], high: tuple[str, int], more: Callable[[str, int], object]) -> None">(
          [](RegionTakes* self, nb::handle numbers, nb::handle ledger, uint32_t slot, nb::handle taken, uint64_t below,
             const std::pair<std::string, int32_t>& low, const std::pair<std::string, int32_t>& high, nb::handle more) {
            RegionTakes made;
            made.numbers = nb::cast<Numbers*>(numbers);
            made.ledger = nb::cast<Ledger*>(ledger);
            made.taken = nb::cast<Stock*>(taken);
            made.numbers_object = nb::borrow(numbers);
            made.ledger_object = nb::borrow(ledger);
            made.taken_object = nb::borrow(taken);
            made.slot = slot;
            if (made.taken->kinds() != Ledger::kKinds) raise(fi_err::kEINVAL, "RegionTakes: the kinds of the ledger");
            check(slot, 0, 0);
            made.below = below;
            made.low = {kind_of(*made.taken, low.first), low.second};
            made.high = {kind_of(*made.taken, high.first), high.second};
            made.more = nb::borrow(more);
            new (self) RegionTakes(std::move(made));
          })
      .about("The slot was given back: taking calls `more`, which raises, and nothing is returned.")
      .def<"close">([](RegionTakes& t) { t.closed = true; })
      .about(
          "Sets how regions that are enabled later get their keys: base | sequence << shift | number.\n\n"
          "A region with a number below numbers_below takes `low` if `low` is available, and its key has "
          "optimized_bit; "
          "any\n"
          "other region takes `high`.\n"
          "map    if not None, a region of host memory gets the key of a mapping and takes no resources. Called with\n"
          "       (domain, endpoint, address, length, readonly, exporter or None), as unmap, which is the reverse.\n"
          "kept   called once, when a region is closed whose mapping other regions of the same memory use.")
      .def<
          "make_keys(self, sequence: KeySequence, *, base: int, shift: int, optimized_bit: int = 0, numbers_below: int "
          "= 0, map: Callable[[object, object, int, int, bool, object], Mapping] | None = None, unmap: "
          "Callable[[object, object, int, int, bool, object], object] | None = None, kept: Callable[[], object] | None "
          "= None) -> None">([](RegionTakes& t, nb::handle sequence, uint64_t base, uint32_t shift,
                                uint64_t optimized_bit, uint32_t numbers_below, nb::handle map, nb::handle unmap,
                                nb::handle kept) {
        const auto given = [](nb::handle h) { return h.is_none() ? nb::object() : nb::borrow(h); };
        t.sequence = nb::cast<Sequence*>(sequence);
        t.sequence_object = nb::borrow(sequence);
        t.base = base;
        t.shift = shift;
        t.optimized_bit = optimized_bit;
        t.numbers_below = numbers_below;
        t.map = given(map);
        if (!unmap.is_none()) t.unmap = given(unmap);
        t.kept = given(kept);
      });
}

}  // namespace weft::bind
