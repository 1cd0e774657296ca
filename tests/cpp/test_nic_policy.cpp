// tests/cpp/test_nic_policy.cpp: what a provider's policy gives the NIC as plain data: the codes of statuses, endpoint
// numbers, late keys, mappings, and the names of endpoints in texts.
#include <set>

#include "fabric.hpp"

namespace weft::test {

namespace {

struct Entry {
  int err, prov;
  bool operator==(const Entry&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Entry& e) {
  return out << "(" << e.err << ", " << e.prov << ")";
}

Entry of(const StatusMap& map, Status status) {
  return {map[status].err, map[status].prov};
}

// A region whose key is made when it is enabled.
std::shared_ptr<nic::MemoryRegion> late(Side& side, std::byte* memory, size_t length) {
  const iovec v{memory, length};
  nic::RegionExtra extra;
  extra.later = true;
  auto region = side.domain->register_region({&v, 1}, mem::kRemoteRead | mem::kRemoteWrite, 0, false, false, 0, extra);
  side.regions.push_back(region);
  return region;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nic_policy)

BOOST_AUTO_TEST_CASE(test_status_map_defaults_to_the_man_pages_codes) {
  StatusMap map;
  for (size_t i = 0; i < kStatusCount; ++i) {
    const auto status = static_cast<Status>(i);
    BOOST_TEST(of(map, status) == (Entry{fi_errno(status), static_cast<int>(i)}));
  }
  map.entries[static_cast<size_t>(Status::no_key)] = {fi_err::kEIO, 18};
  BOOST_TEST(of(map, Status::no_key) == (Entry{fi_err::kEIO, 18}));
  BOOST_TEST(of(map, Status::stale_key) == (Entry{fi_err::kEKEYREJECTED, 2}));
}

// A peer's frame contains the status, which may be any number.
BOOST_AUTO_TEST_CASE(test_status_map_unknown_status_is_protocol) {
  const StatusMap map;
  for (const int number : {static_cast<int>(kStatusCount), 1000, -1}) {
    BOOST_TEST(of(map, static_cast<Status>(number)) == of(map, Status::protocol));
  }
}

BOOST_AUTO_TEST_CASE(test_failed_operation_is_reported_as_the_map_says) {
  PairConfig config;
  config.a.domain.statuses.entries[static_cast<size_t>(Status::no_key)] = {fi_err::kEIO, 18};
  Pair pair(std::move(config));
  BOOST_REQUIRE(post(*pair.a->ep, write_of(pair.dest, "x", 1, 0, 4711)).refusal == Refusal::none);
  CqEntry entry;
  CqError error;
  pair.until([&] { return pair.a->read_error(&entry, &error); }, "the error");
  BOOST_TEST(error.err == fi_err::kEIO);
  BOOST_TEST(error.prov_errno == 18);
  BOOST_TEST(error.status == Status::no_key);
  BOOST_TEST(error.key == 4711U);
  BOOST_TEST((error.peer == pair.b->ep->address()));
  BOOST_TEST((error.own == pair.a->ep->address()));
}

BOOST_AUTO_TEST_CASE(test_text_names_endpoints_in_the_form_of_the_domain) {
  PairConfig config;
  config.a.domain.addresses = {"nid 0x{nic:x} ({nic}) pid {pid} vni {vni}, {pid}", 0xff};
  config.b.domain.nic = 0x1234;
  Pair pair(std::move(config));
  const Completion c = pair.run(write_of(pair.dest, "x", 1, 0, 4711));
  const std::string pid = std::to_string(pair.b->ep->address().pid);
  BOOST_TEST(c.text.find("on nid 0x34 (52) pid " + pid + " vni 0, " + pid + ":") != std::string::npos, c.text);
  BOOST_TEST(c.text.find("weft://") == std::string::npos, c.text);
}

BOOST_AUTO_TEST_CASE(test_endpoint_numbers_are_chosen_from_the_range) {
  SideConfig config;
  config.domain.nic = 77;
  config.ep.pids = {500, 503};
  Side side(config);
  std::set<uint32_t> seen{side.ep->address().pid};
  for (int i = 0; i < 3; ++i) seen.insert(side.extra_endpoint(config)->address().pid);
  BOOST_TEST((seen == std::set<uint32_t>{500, 501, 502, 503}));
  auto more = side.make_endpoint(config);
  BOOST_CHECK_EXCEPTION(more->enable(config.domain.nic, std::nullopt), Error,
                        [](const Error& e) { return e.fi_code() == fi_err::kEADDRINUSE; });
  side.endpoints[1]->close();
  BOOST_TEST(side.extra_endpoint(config)->address().pid == side.endpoints[1]->address().pid);
  // A number that the application chooses may lie outside the range.
  config.pid = 9;
  BOOST_TEST(side.extra_endpoint(config)->address().pid == 9U);
}

BOOST_AUTO_TEST_CASE(test_region_with_a_late_key_has_no_entry_before_enable) {
  for (const Path path : {Path::self, Path::direct, Path::strict}) {
    PairConfig config;
    config.path = path;
    Pair pair(std::move(config));
    std::byte* memory = pair.allocate(64);
    const uint64_t key = 0xc0ffee0000000001, live = pair.b->nic().statistics().regions;
    const auto region = late(*pair.b, memory, 64);
    BOOST_TEST(region->key() == wire::kKeyNotAvail);
    BOOST_TEST(pair.b->nic().statistics().regions == live);
    BOOST_TEST(pair.run(write_of(pair.dest, "x", 1, 0, key)).status == Status::no_key);
    BOOST_CHECK_THROW(region->enable(), Error);
    BOOST_CHECK_THROW(region->enable(wire::kKeyNotAvail), Error);
    BOOST_CHECK_EXCEPTION(region->enable(pair.key()), Error,
                          [](const Error& e) { return e.fi_code() == fi_err::kENOKEY; });
    region->enable(key);
    BOOST_TEST(region->key() == key);
    BOOST_TEST(pair.run(write_of(pair.dest, "x", 1, 0, key)).error == 0);
    std::string why;
    BOOST_TEST(region->close(&why));
    BOOST_TEST(pair.run(write_of(pair.dest, "x", 1, 0, key)).status == Status::no_key);
  }
}

BOOST_AUTO_TEST_CASE(test_late_key_of_the_nic_is_made_by_enable) {
  PairConfig config;
  config.b.domain.prov_key = true;
  Pair pair(std::move(config));
  std::byte* memory = pair.allocate(64);
  const auto region = late(*pair.b, memory, 64);
  BOOST_CHECK_THROW(region->enable(5), Error);
  region->enable();
  BOOST_TEST(region->key() != wire::kKeyNotAvail);
  BOOST_TEST(pair.run(write_of(pair.dest, "x", 1, 0, region->key())).error == 0);
}

BOOST_AUTO_TEST_CASE(test_counter_bound_before_a_late_key_counts) {
  PairConfig config;
  config.path = Path::self;
  Pair pair(std::move(config));
  std::byte* memory = pair.allocate(64);
  const auto region = late(*pair.b, memory, 64);
  const auto counter = std::make_shared<nic::Counter>();
  pair.b->domain->bind_region_counter(region, counter, flag::kRemoteWrite);
  region->enable(99);
  BOOST_TEST(pair.run(write_of(pair.dest, "x", 1, 0, 99)).error == 0);
  pair.until([&] { return counter->value() == 1; }, "the counter");
}

BOOST_AUTO_TEST_CASE(test_mapping_has_whole_pages_and_ends_with_its_endpoint) {
  Pair pair({});
  std::byte* memory = pair.allocate(8192);
  const auto other = pair.b->extra_endpoint();
  const auto mapping = pair.b->domain->map_memory(*other, reinterpret_cast<uint64_t>(memory) + 5000, 10,
                                                  mem::kRemoteRead | mem::kRemoteWrite, 0xabc);
  const uint64_t there = pair.a->av->insert(other->address());
  BOOST_TEST(pair.run(write_of(there, "start", 5, 0, 0xabc)).error == 0);
  BOOST_TEST(pair.run(write_of(there, "page", 4, ~uint64_t{0} - 903, 0xabc)).error == 0);  // -904: 4096
  BOOST_TEST(pair.run(write_of(there, "past", 4, ~uint64_t{0} - 904, 0xabc)).status == Status::bounds);
  BOOST_TEST(pair.run(write_of(there, "past", 4, 3192 - 3, 0xabc)).status == Status::bounds);
  pair.b->fence();
  BOOST_TEST(std::memcmp(memory + 5000, "start", 5) == 0);
  BOOST_TEST(std::memcmp(memory + 4096, "page", 4) == 0);
  BOOST_TEST(pair.run(write_of(pair.dest, "x", 1, 0, 0xabc)).status == Status::wrong_endpoint);
  other->close();
  BOOST_TEST(mapping->closed());
  BOOST_TEST(pair.run(write_of(there, "x", 1, 0, 0xabc)).status == Status::no_endpoint);
}

BOOST_AUTO_TEST_CASE(test_mapping_ends_before_its_place_is_allocated_again) {
  Pair pair({});
  std::byte* memory = pair.allocate(4096);
  const auto mapping = pair.b->domain->map_memory(*pair.b->ep, reinterpret_cast<uint64_t>(memory), 4096,
                                                  mem::kRemoteRead | mem::kRemoteWrite, 0xabc);
  BOOST_TEST(pair.run(write_of(pair.dest, "x", 1, 0, 0xabc)).error == 0);
  pair.b->nic().segments().free(memory);
  BOOST_TEST(mapping->closed());
  BOOST_TEST(pair.run(write_of(pair.dest, "x", 1, 0, 0xabc)).status == Status::no_key);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace weft::test
