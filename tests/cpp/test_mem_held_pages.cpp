// tests/cpp/test_mem_held_pages.cpp: NIC and process share a page until a fork. A page written afterwards is a new page
// for the process, and the NIC keeps the old one.
#include "mem/held_pages.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "base/mapping.hpp"
#include "page.hpp"

namespace {

using weft::mem::HeldPages;
using weft::test::kPage;

/// Pages of private memory, filled with 1.
class Memory {
 public:
  explicit Memory(size_t pages, int how = MAP_PRIVATE) : size_(pages * kPage) {
    void* p = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(p != MAP_FAILED);
    bytes = static_cast<volatile uint8_t*>(p);
    for (size_t i = 0; i < size_; ++i) bytes[i] = 1;
  }
  ~Memory() { ::munmap(const_cast<uint8_t*>(bytes), size_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] uint64_t address(size_t page = 0) const {
    return reinterpret_cast<uint64_t>(const_cast<uint8_t*>(bytes)) + page * kPage;
  }
  volatile uint8_t* bytes;

 private:
  size_t size_;
};

volatile uint8_t* at(uint64_t address) {
  return reinterpret_cast<volatile uint8_t*>(address);  // NOLINT: an address of the process
}

void fork_of(HeldPages& pages) {
  pages.before_fork();
  pages.after_fork_in_parent();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mem_held_pages)

BOOST_AUTO_TEST_CASE(process_and_nic_have_one_page_until_a_fork) {
  HeldPages pages;
  const Memory memory(2);
  const int owner = 0;
  const uint64_t alias = pages.hold(&owner, memory.address(), 2 * kPage, false);
  BOOST_REQUIRE(alias != memory.address());
  BOOST_TEST(pages.original(&owner, alias + 5) == memory.address() + 5);
  BOOST_TEST(int{*at(alias)} == 1);
  *at(alias) = 7;
  BOOST_TEST(int{memory.bytes[0]} == 7);
  fork_of(pages);
  BOOST_TEST(int{memory.bytes[0]} == 7);
  memory.bytes[0] = 8;
  *at(alias) = 9;
  BOOST_TEST(int{memory.bytes[0]} == 8);
  *at(alias + kPage) = 5;  // neither process has written to the second page
  BOOST_TEST(int{memory.bytes[kPage]} == 5);
  const int next = 0;
  const uint64_t again = pages.hold(&next, memory.address(), kPage, false);
  *at(again) = 4;
  BOOST_TEST(int{memory.bytes[0]} == 4);
  BOOST_TEST(int{*at(alias)} == 9);
  pages.release(&owner);
  BOOST_TEST(pages.any());
  *at(again) = 3;
  BOOST_TEST(int{memory.bytes[0]} == 3);
  pages.release(&next);
  BOOST_TEST(!pages.any());
  BOOST_TEST(int{memory.bytes[0]} == 3);
  BOOST_TEST(int{memory.bytes[kPage]} == 5);
}

BOOST_AUTO_TEST_CASE(pages_of_several_owners_are_held_until_the_last_releases_them) {
  HeldPages pages;
  const Memory memory(3);
  const int first = 0, second = 0;
  const uint64_t one = pages.hold(&first, memory.address(), 2 * kPage, false);
  const uint64_t two = pages.hold(&second, memory.address(1), 2 * kPage, false);
  *at(one + kPage) = 6;
  BOOST_TEST(int{*at(two)} == 6);
  pages.release(&first);
  *at(two) = 5;
  BOOST_TEST(int{memory.bytes[kPage]} == 5);
  pages.release(&second);
  BOOST_TEST(int{memory.bytes[kPage]} == 5);
}

BOOST_AUTO_TEST_CASE(pages_that_are_kept_from_children_stay_the_processes_own) {
  HeldPages pages;
  const Memory memory(1);
  const int owner = 0;
  const uint64_t alias = pages.hold(&owner, memory.address(), kPage, true);
  fork_of(pages);
  memory.bytes[0] = 8;
  BOOST_TEST(int{*at(alias)} == 8);
  *at(alias) = 9;
  BOOST_TEST(int{memory.bytes[0]} == 9);
  pages.release(&owner);
  BOOST_TEST(int{memory.bytes[0]} == 9);
}

BOOST_AUTO_TEST_CASE(other_memory_is_not_held) {
  HeldPages pages;
  const Memory memory(2), shared(1, MAP_SHARED);
  const int owner = 0;
  for (const auto& [address, length] : {std::pair{memory.address() + 1, kPage},
                                        {memory.address(), kPage - 1},
                                        {memory.address(), size_t{0}},
                                        {shared.address(), kPage}}) {
    BOOST_TEST(pages.hold(&owner, address, length, false) == address);
  }
  BOOST_TEST(!pages.any());
  pages.release(&owner);  // of an owner that holds nothing
}

BOOST_AUTO_TEST_CASE(memory_that_was_replaced_meanwhile_is_left_alone) {
  HeldPages pages;
  const Memory memory(1);
  const int owner = 0;
  pages.hold(&owner, memory.address(), kPage, false);
  void* fresh = ::mmap(const_cast<uint8_t*>(memory.bytes), kPage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  BOOST_REQUIRE(fresh != MAP_FAILED);
  memory.bytes[0] = 77;
  fork_of(pages);
  BOOST_TEST(int{memory.bytes[0]} == 77);
  pages.release(&owner);
  BOOST_TEST(int{memory.bytes[0]} == 77);
}

BOOST_AUTO_TEST_CASE(memory_that_was_replaced_is_left_alone_by_a_release) {
  HeldPages pages;
  const Memory memory(1);
  const int owner = 0;
  pages.hold(&owner, memory.address(), kPage, false);
  const weft::UniqueFd file = weft::make_memfd("weft-test", kPage);
  void* fresh =
      ::mmap(const_cast<uint8_t*>(memory.bytes), kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0);
  BOOST_REQUIRE(fresh != MAP_FAILED);
  pages.release(&owner);
  memory.bytes[0] = 77;  // reaches the file: no private copy has taken its place
  uint8_t written = 0;
  BOOST_TEST(::pread(file.get(), &written, 1, 0) == 1);
  BOOST_TEST(int{written} == 77);
}

BOOST_AUTO_TEST_SUITE_END()
