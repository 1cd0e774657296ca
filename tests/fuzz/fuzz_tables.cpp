// tests/fuzz/fuzz_tables.cpp: an initiator whose peer writes anything into its own memory table, ring and staging
// memory,
// before and between the initiator's accesses.
#include "target.hpp"

using namespace weft;
using namespace weft::fuzz;

namespace {

// The rogue itself trusts its own table, so this class restores the correct table while the rogue works.
class TwoFaced {
 public:
  TwoFaced(Node& rogue, std::span<std::byte> table)
      : rogue_(rogue), table_(table), whole_(table.begin(), table.end()), shown_(whole_) {}
  ~TwoFaced() { std::ranges::copy(whole_, table_.begin()); }
  TwoFaced(const TwoFaced&) = delete;
  TwoFaced& operator=(const TwoFaced&) = delete;
  void patch(Input& in, size_t at) {
    in.patch(table_.subspan(at, std::min<size_t>(128, table_.size() - at)));
    lied_ = true;
  }
  void progress() {
    if (!lied_) return rogue_.progress();
    shown_.assign(table_.begin(), table_.end());
    std::ranges::copy(whole_, table_.begin());
    rogue_.progress();
    whole_.assign(table_.begin(), table_.end());
    std::ranges::copy(shown_, table_.begin());
  }

 private:
  Node& rogue_;
  std::span<std::byte> table_;
  std::vector<std::byte> whole_, shown_;
  bool lied_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return run(data, size, [](Input& in) {
    Node rogue({});
    std::vector<Shared> shared = shared_memory();  // all memory so far is the rogue's: the victim does not exist yet
    const auto table = std::ranges::find_if(shared, [](const Shared& s) { return s.name.starts_with("table"); });
    must(table != shared.end(), "a node has a table to share");
    const std::span<std::byte> bytes = table->bytes;
    std::erase_if(shared,
                  [](const Shared& s) { return !s.name.starts_with("ring") && !s.name.starts_with("staging"); });
    must(!shared.empty(), "a node has rings and staging memory that live as long as it");
    Node victim({});
    const uint64_t dest = victim.insert(rogue);
    if (in.coin()) must(rogue.serves(victim), "the handshake of two good nodes");
    TwoFaced faces(rogue, bytes);
    for (int step = 0; step < 200 && !in.empty(); ++step) {
      switch (in.below(8)) {
        case 0:
        case 1:
        case 2: {  // near a field that is in use: most of the table is zero
          size_t at = in.take<uint16_t>() * size_t{64} % bytes.size();
          const size_t end = std::min(bytes.size() - 8, at + 65536);
          while (at < end && bytes[at] == std::byte{0}) ++at;
          faces.patch(in, at & ~size_t{63});
          break;
        }
        case 3: {
          const Shared& s = shared[in.below(static_cast<uint32_t>(shared.size()))];
          const size_t at = in.take<uint16_t>() * size_t{64} % s.bytes.size();
          in.patch(s.bytes.subspan(at, std::min<size_t>(128, s.bytes.size() - at)));
          break;
        }
        case 4:
        case 5:
          victim.post(in, dest);
          break;
        case 6:
          faces.progress();
          break;
        default:
          victim.progress();
          (void)victim.collect();
      }
    }
    victim.progress(8);
    (void)victim.collect();
    victim.check_guards();
  });
}
