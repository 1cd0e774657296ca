// tests/fuzz/fuzz_telemetry.cpp: the page of a device's counts, whose file two processes count in, and a third one
// writes into. Every writer has a block of its own or the shared one; while nobody else writes, a count is the sum of
// the additions.
#include <unistd.h>

#include "base/mapping.hpp"
#include "nic/telemetry.hpp"
#include "target.hpp"

using namespace weft;
using fuzz::must;
using nic::Telemetry;
using nic::TelemetryPage;
using nic::TelemetryPages;
using nic::TelemetryWriter;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::run(data, size, [](fuzz::Input& in) {
    constexpr uint32_t kNic = 3;
    const size_t bytes = in.below(8) != 0 ? TelemetryPage::kBytes : in.take<uint16_t>();
    const UniqueFd file = make_memfd("weft-fuzz-counts", bytes);
    for (uint32_t n = in.below(4); n > 0 && bytes >= 8; --n) {  // the file's counts at the start
      const auto value = in.take<uint64_t>();
      must(::pwrite(file.get(), &value, 8, static_cast<off_t>(in.take<uint16_t>() % (bytes / 8) * 8)) == 8, "a write");
    }
    TelemetryPages processes[2];
    bool counts = true;
    for (TelemetryPages& process : processes) {
      try {
        process.attach(kNic, file.get());
        must(bytes >= TelemetryPage::kBytes, "a file that is too short was taken for a page");
      } catch (const Error& e) {
        must(e.fi_code() == fi_err::kEINVAL && bytes < TelemetryPage::kBytes, "a page was refused");
        counts = false;
      }
    }
    if (!counts) return;
    Mapping third = Mapping::shared(file.get(), TelemetryPage::kBytes, true, "what a third process writes into");
    std::array<uint64_t, nic::kTelemetryCount> sums;
    const auto look = [&](TelemetryPages& process, size_t what) {
      return process.of(kNic).total(static_cast<Telemetry>(what));
    };
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = look(processes[0], i);
    std::vector<std::unique_ptr<TelemetryWriter>> writers;
    for (int step = 0; step < 200 && !in.empty(); ++step) {
      const size_t what = in.below(nic::kTelemetryCount);
      switch (in.below(5)) {
        case 0:
          if (writers.size() < 40) writers.push_back(processes[in.below(2)].writer(kNic));
          break;
        case 1:
          if (!writers.empty()) writers.erase(writers.begin() + in.below(static_cast<uint32_t>(writers.size())));
          break;
        case 2: {
          const size_t at = in.take<uint16_t>() % (TelemetryPage::kBytes / 8) * 8;
          const auto value = in.take<uint64_t>();
          std::memcpy(third.data() + at, &value, 8);
          for (size_t i = 0; i < sums.size(); ++i) sums[i] = look(processes[0], i);
          break;
        }
        default:
          if (!writers.empty()) {
            TelemetryWriter& writer = *writers[in.below(static_cast<uint32_t>(writers.size()))];
            must(!writer.link_down() || writer.page()->down.load() != 0, "the state of a link");
            const auto n = in.take<uint64_t>();
            writer.add(static_cast<Telemetry>(what), n);
            sums[what] += n;
          }
      }
      must(look(processes[0], what) == sums[what] && look(processes[1], what) == sums[what], "a count is wrong");
    }
  });
}
