// tests/cpp/test_nic_pages.cpp: pages that fail behind a region, or behind an application's own buffer, end the
// operation
// that touched them with EFAULT at its initiator, on every path; both NICs continue.
#include <fcntl.h>

#include "fabric.hpp"
#include "page.hpp"

namespace {

using namespace weft;
using namespace weft::test;

/// Pages of a file whose second half is cut off, or lost through another change of the mapping.
class Failing {
 public:
  enum Way { cut_off, unmapped, closed };
  explicit Failing(size_t bytes, Way way) : bytes_(bytes), way_(way), fd_(::memfd_create("pages", MFD_CLOEXEC)) {
    BOOST_REQUIRE(::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    BOOST_REQUIRE(p != MAP_FAILED);
    at = static_cast<std::byte*>(p);
    std::memset(at, 5, bytes);
  }
  ~Failing() { ::munmap(at, bytes_); }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;

  void fail() const {
    if (way_ == cut_off) BOOST_REQUIRE(::ftruncate(fd_.get(), static_cast<off_t>(bytes_ / 2)) == 0);
    // Replaces munmap(), so that no other memory of the test is mapped there.
    if (way_ == unmapped) {
      void* p = ::mmap(at + bytes_ / 2, bytes_ / 2, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      BOOST_REQUIRE(p != MAP_FAILED);
    }
    if (way_ == closed) BOOST_REQUIRE(::mprotect(at + bytes_ / 2, bytes_ / 2, PROT_NONE) == 0);
  }
  std::byte* at;

 private:
  size_t bytes_;
  Way way_;
  UniqueFd fd_;
};

constexpr uint64_t kFailing = 77, kListed = 78;
constexpr size_t kBytes = size_t{1} << 20;
constexpr Path kAll[] = {Path::self, Path::cma, Path::ring, Path::strict, Path::tcp};

nic::AtomicArgs add_of(uint64_t dest, std::span<const iovec> operand, std::span<const iovec> result,
                       std::span<const wire::RmaRange> remote, AtomicFamily family) {
  nic::AtomicArgs args;
  args.dest = dest;
  args.family = family;
  args.op = AtomicOp::sum;
  args.datatype = Datatype::uint64;
  args.operand = operand;
  args.result = family == AtomicFamily::base ? std::span<const iovec>{} : result;
  args.remote = remote;
  args.context = 3;
  return args;
}

BOOST_AUTO_TEST_SUITE(nic_pages)

/// Reads, writes and atomics, short and long, of one piece and of several, on pages that the owner has lost.
BOOST_AUTO_TEST_CASE(test_region_that_loses_pages_answers_fault_on_every_path) {
  for (const Path path : kAll) {
    for (const auto way : {Failing::cut_off, Failing::unmapped, Failing::closed}) {
      BOOST_TEST_CONTEXT("path " << path << ", way " << way) {
        Pair pair(pair_of(path));
        const Failing pages(kBytes, way);
        auto region = pair.b->reg(pages.at, kBytes, kFailing);
        const iovec halves[] = {{pair.memory, 64}, {pages.at + kBytes / 2, kBytes / 2}};
        auto listed = pair.b->reg_list(halves, kListed);
        std::vector<std::byte> mine(kBytes, std::byte{9});
        BOOST_TEST(pair.run(write_of(pair.dest, mine.data(), kBytes, 0, kFailing)).error == 0);
        pages.fail();
        const uint64_t lost = kBytes / 2;
        for (const size_t n : {size_t{1}, size_t{8}, size_t{200}, size_t{5000}, size_t{70'000}, kBytes / 2}) {
          BOOST_TEST_CONTEXT("bytes " << n) {
            BOOST_TEST(pair.run(write_of(pair.dest, mine.data(), n, lost, kFailing)).status == Status::fault);
            BOOST_TEST(pair.run(read_of(pair.dest, mine.data(), n, lost, kFailing)).status == Status::fault);
            // Across the edge, and with only a later buffer of the region lost.
            BOOST_TEST(pair.run(read_of(pair.dest, mine.data(), n, lost - 1, kFailing)).error == (n == 1 ? 0 : 14));
            BOOST_TEST(pair.run(write_of(pair.dest, mine.data(), n, 64, kListed)).status == Status::fault);
            BOOST_TEST(pair.run(read_of(pair.dest, mine.data(), n, 64, kListed)).status == Status::fault);
          }
        }
        uint64_t one = 1, before = 0;
        const iovec operand{&one, 8}, result{&before, 8};
        const wire::RmaRange there{lost, 8, kFailing};
        for (const auto family : {AtomicFamily::base, AtomicFamily::fetch}) {
          BOOST_TEST(
              (pair.a->ep->post_atomic(add_of(pair.dest, {&operand, 1}, {&result, 1}, {&there, 1}, family)).refusal ==
               Refusal::none));
          BOOST_TEST(pair.wait().status == Status::fault);
        }
        // The remaining part of the region works, and so does all other memory.
        BOOST_TEST(pair.run(write_of(pair.dest, mine.data(), 5000, 0, kFailing)).error == 0);
        BOOST_TEST(pair.write(mine.data(), 4096, 0).error == 0);
        std::vector<std::byte> back(4096);
        BOOST_TEST(pair.read(back.data(), 4096, 0).error == 0);
        BOOST_TEST(std::equal(back.begin(), back.end(), mine.begin()));
      }
    }
  }
}

/// The same for the application's own buffer, as source and as destination.
BOOST_AUTO_TEST_CASE(test_local_buffer_without_pages_is_a_fault_on_every_path) {
  for (const Path path : kPaths) {
    for (const auto way : {Failing::cut_off, Failing::unmapped, Failing::closed}) {
      BOOST_TEST_CONTEXT("path " << path << ", way " << way) {
        PairConfig config = pair_of(path);
        config.bytes = kBytes;
        Pair pair(config);
        const Failing mine(kBytes, way);
        BOOST_TEST(pair.write(mine.at, kBytes, 0).error == 0);
        mine.fail();
        std::byte* const lost = mine.at + kBytes / 2;
        for (const size_t n : {size_t{1}, size_t{8}, size_t{200}, size_t{5000}, size_t{70'000}, kBytes / 2}) {
          BOOST_TEST_CONTEXT("bytes " << n) {
            BOOST_TEST(pair.write(lost, n, 0).status == Status::fault);
            BOOST_TEST(pair.read(lost, n, 0).status == Status::fault);
            Access given = write_of(pair.dest, lost, n, 0, pair.key());
            given.inject = true;
            if (n <= 200) BOOST_TEST(pair.run(given).status == Status::fault);
          }
        }
        uint64_t word = 1;
        const iovec here{&word, 8}, there{lost, 8};
        const wire::RmaRange target{0, 8, pair.key()};
        for (const bool result_lost : {false, true}) {
          const auto args = add_of(pair.dest, {result_lost ? &here : &there, 1}, {result_lost ? &there : &here, 1},
                                   {&target, 1}, AtomicFamily::fetch);
          BOOST_TEST((pair.a->ep->post_atomic(args).refusal == Refusal::none));
          BOOST_TEST(pair.wait().status == Status::fault);
        }
        std::vector<std::byte> back(kBytes / 2);
        BOOST_TEST(pair.write(mine.at, kBytes / 2, 0).error == 0);
        BOOST_TEST(pair.read(back.data(), kBytes / 2, 0).error == 0);
        BOOST_TEST(std::equal(back.begin(), back.end(), mine.at));
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
