// The provider for C programs: records, struct fi_info in the sizes of old and new libfabrics, addresses.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <random>

#include "provider/info.hpp"
#include "provider/objects.hpp"
#include "provider/record.hpp"

namespace {

using namespace weft;
using provider::Record;

Record example() {
  Record r;
  r.add("ask", std::string_view("getinfo"));
  r.add("number", ~uint64_t{0});
  r.add("list", uint64_t{1});
  r.add("list", uint64_t{2});
  r.add("bytes", std::string_view("a\0b", 3));
  Record inner;
  inner.add("x", uint64_t{7});
  r.add("inner", inner);
  r.add("inner", inner);
  return r;
}

// A libfabric that allocates the parts of an fi_info in the sizes of its version, so that a sanitizer sees any access
// beyond them.
size_t g_domain_bytes = 0;

ofi::Info* allocate(const ofi::Info*) {
  auto* const info = static_cast<ofi::Info*>(std::calloc(1, sizeof(ofi::Info)));
  info->tx = static_cast<ofi::TxAttr*>(std::calloc(1, sizeof(ofi::TxAttr)));
  info->rx = static_cast<ofi::RxAttr*>(std::calloc(1, sizeof(ofi::RxAttr)));
  info->ep = static_cast<ofi::EpAttr*>(std::calloc(1, sizeof(ofi::EpAttr)));
  info->domain = static_cast<ofi::DomainAttr*>(std::calloc(1, g_domain_bytes));
  info->fabric = static_cast<ofi::FabricAttr*>(std::calloc(1, sizeof(ofi::FabricAttr)));
  return info;
}

void release(ofi::Info* info) {
  if (info->nic != nullptr) info->nic->fid.ops->close(&info->nic->fid);
  for (void* part :
       {static_cast<void*>(info->domain->name), static_cast<void*>(info->fabric->name), info->src_addr, info->dest_addr,
        static_cast<void*>(info->tx), static_cast<void*>(info->rx), static_cast<void*>(info->ep),
        static_cast<void*>(info->domain), static_cast<void*>(info->fabric), static_cast<void*>(info)}) {
    std::free(part);
  }
}

int silent(const provider::FiProvider*, int, int) {
  return 0;
}

provider::Front front(uint32_t version, size_t domain_bytes) {
  g_domain_bytes = domain_bytes;
  return {"weft", version, allocate, release, silent, nullptr, nullptr};
}

constexpr uint64_t kNewBits = uint64_t{1} << 45 | uint64_t{1} << 46;

Record offer() {
  Record r;
  r.add("caps", uint64_t{6} | kNewBits);
  r.add("tx.size", uint64_t{1024});
  r.add("domain.name", std::string_view("cxi0"));
  r.add("domain.mr_mode", uint64_t{0x220});
  r.add("domain.max_ep_auth_key", uint64_t{3});
  r.add("domain.max_cntr_value", uint64_t{99});
  r.add("src_addr", std::string_view("weft://0/1\0", 11));
  r.add("nic.name", std::string_view("cxi0"));
  r.add("nic.speed", uint64_t{200});
  return r;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(provider_library)

BOOST_AUTO_TEST_CASE(record_of_every_kind_of_value_is_read_back) {
  Record back;
  BOOST_TEST_REQUIRE(Record::parse(example().bytes(), &back));
  BOOST_TEST(back.text("ask") == "getinfo");
  BOOST_TEST(back.number("number") == ~uint64_t{0});
  BOOST_TEST(back.numbers("list") == (std::vector<uint64_t>{1, 2}), boost::test_tools::per_element());
  BOOST_TEST(back.text("bytes").size() == 3u);
  BOOST_TEST(back.all("inner").size() == 2u);
  BOOST_TEST(back.nested("inner").number("x") == 7u);
  BOOST_TEST(back.number("absent", 5) == 5u);
  BOOST_TEST(!back.has("absent"));
}

BOOST_AUTO_TEST_CASE(record_that_is_cut_or_of_another_version_is_refused) {
  const std::string bytes = example().bytes();
  Record back;
  size_t whole = 0;
  for (size_t n = 0; n < bytes.size(); ++n) whole += Record::parse(std::string_view(bytes).substr(0, n), &back) ? 1 : 0;
  BOOST_TEST(whole == 7u);  // after the head and between the entries: shorter records
  std::string other = bytes;
  other[2] = 2;
  BOOST_TEST(!Record::parse(other, &back));
}

BOOST_AUTO_TEST_CASE(record_of_random_bytes_reads_nothing_beyond_them) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = example().bytes();
    for (int i = 0; i < 4; ++i) bytes[3 + random() % (bytes.size() - 3)] = static_cast<char>(random());
    const std::unique_ptr<char[]> exact(new char[bytes.size()]);
    std::memcpy(exact.get(), bytes.data(), bytes.size());
    Record back;
    (void)Record::parse({exact.get(), bytes.size()}, &back);
  }
}

BOOST_AUTO_TEST_CASE(info_for_an_old_libfabric_stays_within_its_structs) {
  const provider::Front old = front(provider::version(1, 17), 192);
  ofi::Info* const info = provider::info_of(old, offer());
  BOOST_TEST_REQUIRE(info != nullptr);
  BOOST_TEST(info->caps == 6u);  // the bits of 2.x mean other things to it
  BOOST_TEST(info->tx->size == 1024u);
  BOOST_TEST(std::string(info->domain->name) == "cxi0");
  BOOST_TEST(info->src_addrlen == 11u);
  const Record back = provider::record_of(*info, provider::version(1, 17));
  BOOST_TEST(back.number("domain.mr_mode") == 0x220u);
  BOOST_TEST(!back.has("domain.max_ep_auth_key"));
  release(info);
}

BOOST_AUTO_TEST_CASE(info_for_a_new_libfabric_has_the_later_fields) {
  const provider::Front now = front(provider::version(2, 5), sizeof(ofi::DomainAttr));
  ofi::Info* const info = provider::info_of(now, offer());
  BOOST_TEST_REQUIRE(info != nullptr);
  BOOST_TEST(info->caps == (uint64_t{6} | kNewBits));
  BOOST_TEST(info->domain->max_ep_auth_key == 3u);
  BOOST_TEST(info->domain->max_cntr_value == 99u);
  release(info);
}

BOOST_AUTO_TEST_CASE(nic_of_an_info_is_copied_whole) {
  const provider::Front now = front(provider::version(2, 5), sizeof(ofi::DomainAttr));
  ofi::Info* const info = provider::info_of(now, offer());
  BOOST_TEST_REQUIRE(info != nullptr);
  ofi::FidNic* copy = nullptr;
  BOOST_TEST(info->nic->fid.ops->control(&info->nic->fid, ofi::kDup, &copy) == 0);
  release(info);
  BOOST_TEST(std::string(copy->device->name) == "cxi0");
  BOOST_TEST(copy->link->speed == 200u);
  BOOST_TEST(copy->bus != nullptr);
  BOOST_TEST(copy->fid.ops->close(&copy->fid) == 0);
}

BOOST_AUTO_TEST_CASE(address_of_each_form_is_parsed_back) {
  provider::Domain domain;
  char bytes[provider::kAddressBytesMax];
  wire::EpAddress found;
  bool has_pid = false;
  domain.addr_format = 9;  // FI_ADDR_STR
  size_t size = provider::address_bytes(domain, {3, 77, 12, 0}, bytes);
  BOOST_TEST(std::string(bytes) == "weft://3/12/77");
  BOOST_TEST(size == provider::address_size(domain, bytes));
  BOOST_TEST(provider::parse_address(domain, bytes, size, &found, &has_pid));
  BOOST_TEST((found == wire::EpAddress{3, 77, 12, 0} && has_pid));
  for (const char* wrong : {"weft://", "weft://1", "weft://1/2/3/4", "weft://1/70000/3", "tcp://1/2/3", "weft://1/2/x"})
    BOOST_TEST(!provider::parse_address(domain, wrong, std::strlen(wrong) + 1, &found, &has_pid), wrong);
  domain.addr_format = 15;  // FI_ADDR_CXI
  domain.fabric_base = 5u << 20;
  domain.vni = 10;
  size = provider::address_bytes(domain, {5u << 20 | 0x840, 9, 10, 0}, bytes);
  BOOST_TEST(size == 8u);
  BOOST_TEST(provider::parse_address(domain, bytes, size, &found, &has_pid));
  BOOST_TEST((found == wire::EpAddress{5u << 20 | 0x840, 9, 10, 0} && has_pid));
  BOOST_TEST(!provider::parse_address(domain, bytes, 4, &found, &has_pid));
}

BOOST_AUTO_TEST_SUITE_END()
