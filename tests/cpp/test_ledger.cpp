// tests/cpp/test_ledger.cpp: the resources of a device, shared between processes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <vector>

#include "base/status.hpp"
#include "host/host.hpp"
#include "mem/ledger.hpp"

namespace {

using weft::Error;
using weft::UniqueFd;
using weft::host::calendar;
using weft::mem::Ledger;

constexpr uint64_t kId = 77;

struct File {
  explicit File(int32_t total) : fd(weft::make_memfd("ledger of a test", Ledger::bytes())) {
    Ledger made(fd.get(), calendar());
    Ledger::Counts totals;
    totals.fill(total);
    made.begin(kId, totals);
  }
  UniqueFd fd;
};

Ledger::Limits limits(uint32_t service, int32_t most, int32_t reserved) {
  Ledger::Limits made;
  made.service = service;
  made.most.fill(most);
  made.reserved.fill(reserved);
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ledger)

BOOST_AUTO_TEST_CASE(test_users_of_a_service_share_its_limit_exactly) {
  const File file(1000);
  Ledger ours(file.fd.get(), calendar()), theirs(file.fd.get(), calendar());
  const std::vector all{limits(1, 10, 0)};
  const uint32_t a = ours.open({1, 1, 1}, 1), b = theirs.open({2, 1, 1}, 1);
  ours.set_limits(all);
  BOOST_TEST(ours.take(a, 3, 7));
  BOOST_TEST(!theirs.take(b, 3, 4));
  BOOST_TEST(theirs.take(b, 3, 3));
  BOOST_TEST(!ours.take(a, 3, 1));
  BOOST_TEST(ours.take(a, 2, 10));  // another kind
  theirs.give(b, 3, 1);
  BOOST_TEST(ours.there(1, 3) == 1);
  ours.drop(b, {9, 9, 9});  // no longer that process's: nothing happens
  BOOST_TEST(ours.there(1, 3) == 1);
  ours.drop(b, {2, 1, 1});
  BOOST_TEST(ours.there(1, 3) == 3);
}

BOOST_AUTO_TEST_CASE(test_reserved_resources_are_kept_from_other_services) {
  const File file(20);
  Ledger book(file.fd.get(), calendar());
  const std::vector all{limits(1, 20, 5), limits(2, 20, 0)};
  const uint32_t b = book.open({2, 1, 1}, 2);
  book.set_limits(all);
  BOOST_TEST(book.there(2, 0) == 15);
  BOOST_TEST(!book.take(b, 0, 16));
  BOOST_TEST(book.take(b, 0, 15));
  const uint32_t a = book.open({1, 1, 1}, 1);
  book.set_limits(all);
  BOOST_TEST(book.take(a, 0, 5));
  BOOST_TEST(!book.take(a, 0, 1));
}

BOOST_AUTO_TEST_CASE(test_process_killed_in_the_ledger_leaves_its_sums_right) {
  const File file(1000);
  Ledger book(file.fd.get(), calendar());
  const std::vector all{limits(1, 100, 0)};
  const uint32_t ours = book.open({1, 1, 1}, 1);
  book.set_limits(all);
  BOOST_TEST(book.take(ours, 0, 40));
  for (uint64_t round = 0; round < 200; ++round) {
    int ready[2];
    BOOST_REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const uint32_t mine = book.open({100 + round, 1, 1}, 1);
      (void)!::write(ready[1], "!", 1);
      for (;;) {
        if (book.take(mine, 0, 3)) book.give(mine, 0, 2);
        if (book.there(1, 0) < 10) book.give(mine, 0, 40);
      }
    }
    char one;
    BOOST_REQUIRE(::read(ready[0], &one, 1) == 1);
    ::usleep(static_cast<useconds_t>(round * 37 % 900));  // kill the child at different places
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    int32_t theirs = 0;
    const int32_t there = book.there(1, 0);  // the first holder of the lock after the child computes the sums again
    book.check();
    for (const Ledger::Held& held : book.held()) {
      if (held.who.pid == 100 + round) {
        theirs = held.held[0];
        book.drop(held.slot, held.who);
      }
    }
    BOOST_REQUIRE((theirs >= 0 && theirs <= 60));
    BOOST_REQUIRE(there == 60 - theirs);
    BOOST_REQUIRE(book.there(1, 0) == 60);
  }
}

BOOST_AUTO_TEST_CASE(test_unused_units_of_a_process_are_there_for_the_others) {
  const File file(1000);
  Ledger ours(file.fd.get(), calendar()), theirs(file.fd.get(), calendar());
  const uint32_t a = ours.open({1, 1, 1}, 1), b = theirs.open({2, 1, 1}, 1), c = theirs.open({3, 1, 1}, 2);
  ours.set_limits(std::vector{limits(1, 900, 0), limits(2, 300, 0)});
  for (int i = 0; i < 500; ++i) BOOST_REQUIRE(ours.take(a, 0, 1));
  for (int i = 0; i < 200; ++i) ours.give(a, 0, 1);
  BOOST_TEST(ours.held()[0].held[0] == 300);
  BOOST_TEST(theirs.take(b, 0, 600));
  BOOST_TEST(!theirs.take(b, 0, 1));
  BOOST_TEST(!ours.take(a, 0, 1));
  BOOST_TEST(theirs.take(c, 0, 100));  // the device has 1000
  BOOST_TEST(!theirs.take(c, 0, 1));
  ours.give(a, 0, 1);
  BOOST_TEST(theirs.take(c, 0, 1));  // a unit that another service's process has in its cache
  BOOST_TEST(!ours.take(a, 0, 1));
  BOOST_TEST(ours.there(1, 0) == 0);
}

BOOST_AUTO_TEST_CASE(test_lower_limit_is_in_force_for_what_is_returned_later) {
  const File file(1000);
  Ledger book(file.fd.get(), calendar());
  const uint32_t a = book.open({1, 1, 1}, 1);
  book.set_limits(std::vector{limits(1, 500, 0)});
  for (int i = 0; i < 100; ++i) BOOST_REQUIRE(book.take(a, 0, 1));
  book.set_limits(std::vector{limits(1, 50, 0)});
  BOOST_TEST(!book.take(a, 0, 1));
  for (int i = 0; i < 50; ++i) {
    book.give(a, 0, 1);
    BOOST_REQUIRE(!book.take(a, 0, 1));
  }
  book.give(a, 0, 1);
  BOOST_TEST(book.take(a, 0, 1));
  BOOST_TEST(!book.take(a, 0, 1));
}

// The process is killed while it takes units out of the cache of ours, which uses the cache at the same time.
BOOST_AUTO_TEST_CASE(test_process_killed_while_it_empties_another_cache_leaves_the_sums_right) {
  const File file(1000);
  Ledger book(file.fd.get(), calendar());
  const uint32_t ours = book.open({1, 1, 1}, 1);
  book.set_limits(std::vector{limits(1, 100, 0)});
  BOOST_TEST(book.take(ours, 0, 20));
  for (uint64_t round = 0; round < 200; ++round) {
    int ready[2];
    BOOST_REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const uint32_t mine = book.open({100 + round, 1, 1}, 1);
      (void)!::write(ready[1], "!", 1);
      for (;;) {
        if (book.take(mine, 0, 75)) book.give(mine, 0, 75);
      }
    }
    char one;
    BOOST_REQUIRE(::read(ready[0], &one, 1) == 1);
    for (uint64_t i = 0; i < 20 + round * 7; ++i) {
      if (book.take(ours, 0, 2)) book.give(ours, 0, 2);
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    int32_t theirs = 0;
    const int32_t there = book.there(1, 0);
    book.check();
    for (const Ledger::Held& held : book.held()) {
      if (held.who.pid == 1) BOOST_REQUIRE(held.held[0] == 20);
      if (held.who.pid == 100 + round) {
        theirs = held.held[0];
        book.drop(held.slot, held.who);
      }
    }
    BOOST_REQUIRE((theirs == 0 || theirs == 75));
    BOOST_REQUIRE(there == 80 - theirs);
    BOOST_REQUIRE(book.there(1, 0) == 80);
  }
}

BOOST_AUTO_TEST_CASE(test_ledger_of_another_boot_or_file_is_told_by_its_id) {
  const File file(1);
  const Ledger book(file.fd.get(), calendar());
  BOOST_TEST(book.is(kId));
  BOOST_TEST(!book.is(kId + 1));
  const UniqueFd zeros = weft::make_memfd("ledger of a test", Ledger::bytes());
  BOOST_TEST(!Ledger(zeros.get(), calendar()).is(0));
}

BOOST_AUTO_TEST_SUITE_END()
