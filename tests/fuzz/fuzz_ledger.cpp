// tests/fuzz/fuzz_ledger.cpp: the ledger of a device's resources, whose file another process writes into between the
// calls of two. Every call ends, with a result or with an Error, and touches nothing outside the file. While nobody
// writes into the file, the taken resources are at most the existing resources.
//
// The bytes of the lock stay as they are: it is a robust mutex of the C library, which trusts its own memory.
#include <pthread.h>

#include "base/mapping.hpp"
#include "mem/ledger.hpp"
#include "target.hpp"

using namespace weft;
using fuzz::must;
using mem::Ledger;

namespace {

constexpr uint64_t kId = 77;
constexpr int32_t kTotal = 1000;
constexpr uint32_t kServices = 3;
constexpr size_t kLockBegin = 16, kLockEnd = kLockBegin + sizeof(pthread_mutex_t);  // Ledger::Head

// Refusals are allowed: a full ledger, a lock that is held.
template <typename Call>
void allowed(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    must(e.fi_code() == fi_err::kENOSPC, "an error that no call has");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::run(data, size, [](fuzz::Input& in) {
    const UniqueFd fd = make_memfd("weft-fuzz-ledger", Ledger::bytes());
    Ledger books[2] = {Ledger(fd.get(), host::calendar()), Ledger(fd.get(), host::calendar())};
    Mapping whole = Mapping::shared(fd.get(), Ledger::bytes(), true, "what another process writes into");
    const std::span<std::byte> bytes{whole.data(), Ledger::bytes()};
    Ledger::Counts totals;
    totals.fill(kTotal);
    books[0].begin(kId, totals);
    must(books[1].is(kId), "a ledger that was begun is one");
    struct Mine {
      uint32_t slot;
      std::array<int32_t, Ledger::kKinds> taken;
    };
    std::vector<Mine> mine;
    bool written = false;
    for (int step = 0; step < 100 && !in.empty(); ++step) {
      Ledger& book = books[in.below(2)];
      const uint32_t service = 1 + in.below(kServices);
      const size_t kind = in.below(Ledger::kKinds);
      static constexpr uint64_t kCounts[] = {1, 2, 8, 64, 129, kTotal, 0};
      switch (in.below(10)) {
        case 0:
        case 1: {  // another process writes: near a field that is in use, because most of the file is zero
          static constexpr uint64_t kWords[] = {0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, ~uint64_t{0}, 511, 512};
          size_t at = in.take<uint32_t>() * size_t{4} % (bytes.size() - 8);
          const size_t end = std::min(bytes.size() - 8, at + 65536);
          while (at < end && bytes[at] == std::byte{0}) ++at;
          at = at / 4 * 4 + in.below(8) * 4;
          if (at + 4 > bytes.size() || (at + 4 > kLockBegin && at < kLockEnd)) break;
          const auto value = static_cast<uint32_t>(in.number(kWords));
          std::memcpy(bytes.data() + at, &value, 4);
          written = true;
          break;
        }
        case 2:
          if (mine.size() < 8) {
            allowed([&] {
              const uint32_t slot = book.open({100 + mine.size(), 5, 1}, service);
              must(slot < Ledger::kSlotsMax, "a slot outside the file");
              mine.push_back({slot, {}});
            });
          }
          break;
        case 3:
        case 4:
        case 5:
          if (!mine.empty()) {
            Mine& of = mine[in.below(static_cast<uint32_t>(mine.size()))];
            const auto count = static_cast<int32_t>(in.number(kCounts) % (kTotal + 1));
            if (book.take(of.slot, kind, count)) of.taken[kind] += count;
          }
          break;
        case 6:
          if (!mine.empty()) {
            Mine& of = mine[in.below(static_cast<uint32_t>(mine.size()))];
            const int32_t count = std::min(static_cast<int32_t>(in.number(kCounts) % (kTotal + 1)), of.taken[kind]);
            book.give(of.slot, kind, count);
            of.taken[kind] -= count;
          }
          break;
        case 7: {
          std::array<Ledger::Limits, kServices> all;
          for (uint32_t i = 0; i < kServices; ++i) {
            all[i].service = i + 1;
            all[i].most.fill(static_cast<int32_t>(in.below(4)) * kTotal / 3);
            all[i].reserved.fill(in.coin() ? kTotal / 4 : 0);
          }
          allowed([&] { book.set_limits(all); });
          break;
        }
        case 8:
          if (!mine.empty()) {
            const size_t which = in.below(static_cast<uint32_t>(mine.size()));
            if (in.coin()) {
              book.close(mine[which].slot);
            } else {
              const auto held = book.held();
              if (held.empty()) break;
              const Ledger::Held& one = held[in.below(static_cast<uint32_t>(held.size()))];
              must(one.slot < Ledger::kSlotsMax, "a slot outside the file");
              if (one.slot != mine[which].slot) break;
              book.drop(one.slot, one.who);
            }
            mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(which));
          }
          break;
        default:
          (void)book.there(service, kind);
      }
      if (written) continue;
      book.check();
      for (size_t k = 0; k < Ledger::kKinds; ++k) {
        int32_t taken = 0;
        for (const Mine& of : mine) taken += of.taken[k];
        must(taken <= kTotal, "more was taken than there is");
      }
    }
    for (const Mine& of : mine) books[0].close(of.slot);
    if (!written) must(books[1].held().empty(), "resources of nobody");
  });
}
