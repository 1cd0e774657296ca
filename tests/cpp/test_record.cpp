// tests/cpp/test_record.cpp: settings as bytes: written records are read, damaged records are refused with a text, and
// versions of a table may differ.
#include <set>

#include "base/record.hpp"
#include "fabric.hpp"
#include "nic/config.hpp"

namespace weft::test {

namespace {

using Bytes = std::vector<std::byte>;

// Two versions of one table.
struct Inner {
  WEFT_TABLE(901, Inner, "Of both versions.");
  WEFT_FIELD(1, low, int16_t, -5, none, "A number with a sign.");
};
using Inners = std::array<Inner, 2>;
using Numbers = std::array<uint32_t, 2>;
using MoreNumbers = std::array<uint32_t, 3>;
struct Old {
  WEFT_TABLE(900, Old, "The old version.");
  WEFT_FIELD_IN(1, size, uint32_t, 7, bytes, 1, 100, "A number of a range.");
  WEFT_FIELD(2, name, std::string, "none", none, "A text.");
  WEFT_FIELD(3, inners, Inners, {}, none, "Tables.");
  WEFT_FIELD(4, numbers, Numbers, {}, none, "Numbers.");
  WEFT_FIELD(5, labels, Labels, {}, none, "Names of numbers.");
};
struct New {
  WEFT_TABLE(900, New, "The new version.");
  WEFT_FIELD_IN(1, size, uint32_t, 7, bytes, 1, 100, "A number of a range.");
  WEFT_FIELD(2, name, std::string, "none", none, "A text.");
  WEFT_FIELD(3, inners, Inners, {}, none, "Tables.");
  WEFT_FIELD(4, numbers, MoreNumbers, {}, none, "Numbers.");
  WEFT_FIELD(5, labels, Labels, {}, none, "Names of numbers.");
  WEFT_FIELD(6, limit, uint64_t, 3, none, "What the old version does not have.");
};

// The code of the refusal, 0 if there is none; its text into `why`.
template <typename T>
int refusal(std::span<const std::byte> bytes, std::string* why = nullptr) {
  try {
    (void)from_record<T>(bytes);
    return 0;
  } catch (const Error& e) {
    if (why != nullptr) *why = e.what();
    return e.fi_code();
  }
}

template <typename T>
bool same(const T& a, const T& b) {
  return equal(table_of<T>(), &a, &b);
}

void seal(Bytes* record, uint16_t table) {
  seal_record(record, table);
}

nic::EndpointConfig unusual() {
  nic::EndpointConfig c;
  c.caps = ~uint64_t{0};
  c.vni = 77;
  c.tells_lengths = false;
  c.reorder = {true, 9, 1, 2, 3, nic::TargetOrder::relaxed};
  c.messages.match.mode = nic::MatchMode::hybrid;
  c.messages.requests.posted_min = 12;
  c.rules.iov_max = 1;
  c.rules.key_forms[2] = {1, 1, 2, 63, 4};
  c.rules.key_form_count = 3;
  c.rules.atomics[0][0] = 0;
  c.rules.errnos[5] = -3;
  c.rules.flag_names = std::make_shared<const std::vector<std::pair<uint64_t, std::string>>>(
      std::vector<std::pair<uint64_t, std::string>>{{1, "one"}, {uint64_t{1} << 63, ""}});
  return c;
}

const TableInfo* const kTables[] = {
    &table_of<StatusCode>(),          &table_of<StatusMap>(),          &table_of<nic::AddressText>(),
    &table_of<nic::RegionRules>(),    &table_of<nic::DomainConfig>(),  &table_of<nic::PidRange>(),
    &table_of<nic::MessageConfig>(),  &table_of<nic::RxModeConfig>(),  &table_of<nic::RxBufferConfig>(),
    &table_of<nic::OpRules>(),        &table_of<nic::MsgRules>(),      &table_of<nic::KeyForm>(),
    &table_of<nic::TrafficRules>(),   &table_of<nic::ReorderConfig>(), &table_of<nic::CommandQueueConfig>(),
    &table_of<nic::EndpointConfig>(), &table_of<nic::QueueConfig>(),   &table_of<nic::CounterConfig>(),
};

}  // namespace

BOOST_AUTO_TEST_SUITE(record)

BOOST_AUTO_TEST_CASE(test_ids_names_and_tags_are_given_once) {
  std::set<uint16_t> ids;
  for (const TableInfo* table : kTables) {
    BOOST_TEST(ids.insert(table->id).second, table->name);
    std::set<std::string> names;
    std::set<uint16_t> tags;
    for (const FieldInfo& field : table->fields) {
      BOOST_TEST(names.insert(field.name).second, field.name);
      BOOST_TEST(tags.insert(field.tag).second, field.name);
      BOOST_TEST(std::string(field.text).ends_with('.'), field.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(test_settings_are_read_as_they_were_written) {
  const nic::EndpointConfig c = unusual();
  BOOST_TEST(same(from_record<nic::EndpointConfig>(record_of(c)), c));
  BOOST_TEST(!same(from_record<nic::EndpointConfig>(record_of(c)), nic::EndpointConfig{}));
  nic::DomainConfig d;
  d.addresses.form = std::string("a\0b", 3);
  d.statuses.entries[3] = {-1, 4};
  d.regions.key_end = 99;
  BOOST_TEST(same(from_record<nic::DomainConfig>(record_of(d)), d));
}

BOOST_AUTO_TEST_CASE(test_defaults_of_every_table_are_read_as_they_were_written) {
  for (const TableInfo* table : kTables) {
    with_defaults(*table, [&](const void* defaults) {
      Bytes record = write_record(*table, defaults);
      with_defaults(*table, [&](const void* other) {
        void* read = const_cast<void*>(other);  // made for this call
        read_record(record, *table, read);
        BOOST_TEST(equal(*table, read, defaults), table->name);
      });
    });
  }
  nic::EndpointConfig read = unusual();
  read_record(record_of(nic::EndpointConfig{}), table_of<nic::EndpointConfig>(), &read);
  BOOST_TEST(same(read, nic::EndpointConfig{}));
}

BOOST_AUTO_TEST_CASE(test_record_that_was_cut_or_is_longer_is_refused) {
  Bytes record = record_of(unusual());
  for (size_t n = 0; n < record.size(); ++n) {
    std::string why;
    BOOST_REQUIRE(refusal<nic::EndpointConfig>(std::span(record).first(n), &why) == fi_err::kEPROTO);
    BOOST_REQUIRE(why.starts_with("a record of EndpointConfig: "));
  }
  record.push_back(std::byte{0});
  BOOST_TEST(refusal<nic::EndpointConfig>(record) == fi_err::kEPROTO);
}

BOOST_AUTO_TEST_CASE(test_body_that_was_cut_within_a_field_is_refused_though_its_checksum_is_right) {
  const Bytes whole = record_of(Old{});
  size_t refused = 0, taken = 0;
  for (size_t n = kRecordHeadBytes; n < whole.size(); ++n) {
    Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
    seal(&part, 900);
    const int code = refusal<Old>(part);
    BOOST_REQUIRE((code == 0 || code == fi_err::kEPROTO));
    ++(code == 0 ? taken : refused);
  }
  BOOST_TEST(taken == 5u);  // before each of the five fields
  BOOST_TEST(refused > 100u);
}

BOOST_AUTO_TEST_CASE(test_each_changed_byte_is_found) {
  const Bytes record = record_of(nic::QueueConfig{});
  for (size_t at = 0; at < record.size(); ++at) {
    Bytes changed = record;
    changed[at] ^= std::byte{0x40};
    BOOST_TEST(refusal<nic::QueueConfig>(changed) != 0, "byte " << at);
  }
}

BOOST_AUTO_TEST_CASE(test_record_of_another_table_or_format_is_refused_with_a_text) {
  std::string why;
  BOOST_TEST(refusal<nic::QueueConfig>(record_of(nic::CounterConfig{}), &why) == fi_err::kEINVAL);
  BOOST_TEST(why == "a record of QueueConfig: these bytes are a record of table 18, not of table 17");
  Bytes record = record_of(nic::QueueConfig{});
  record[4] = std::byte{2};
  BOOST_TEST(refusal<nic::QueueConfig>(record, &why) == fi_err::kEOPNOTSUPP);
  BOOST_TEST(why.find("format 2 is not known here") != std::string::npos);
  record[0] = std::byte{'w'};
  BOOST_TEST(refusal<nic::QueueConfig>(record, &why) == fi_err::kEPROTO);
  BOOST_TEST(why.find("no record of Weft") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(test_new_field_at_its_default_is_skipped_by_an_old_reader) {
  New made;
  made.size = 50;
  made.numbers = {1, 2, 3};
  const Old read = from_record<Old>(record_of(made));
  BOOST_TEST(read.size == 50u);
  BOOST_TEST((read.numbers == Numbers{1, 2}));
}

BOOST_AUTO_TEST_CASE(test_new_field_that_was_set_is_refused_by_an_old_reader) {
  New made;
  made.limit = 4;
  std::string why;
  BOOST_TEST(refusal<Old>(record_of(made), &why) == fi_err::kEOPNOTSUPP);
  BOOST_TEST(why.find("field 6 is not known here, and is not at its default") != std::string::npos);
  BOOST_TEST(why.find("try: the same version on both sides") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(test_field_that_an_old_writer_lacks_keeps_its_default) {
  Old made;
  made.numbers = {8, 9};
  made.inners[1].low = 300;
  const New read = from_record<New>(record_of(made));
  BOOST_TEST(read.limit == 3u);
  BOOST_TEST((read.numbers == MoreNumbers{8, 9, 0}));
  BOOST_TEST(read.inners[1].low == 300);
  BOOST_TEST(read.inners[0].low == -5);
}

BOOST_AUTO_TEST_CASE(test_value_that_its_field_does_not_take_is_refused) {
  Old made;
  made.size = 101;  // C++ sets what it likes
  std::string why;
  BOOST_TEST(refusal<Old>(record_of(made), &why) == fi_err::kEPROTO);
  BOOST_TEST(why == "a record of Old: field 1 (size) does not take the value 101");
  made.size = 0;
  BOOST_TEST(refusal<Old>(record_of(made)) == fi_err::kEPROTO);
  nic::RxModeConfig mode;
  mode.mode = static_cast<nic::MatchMode>(4);
  BOOST_TEST(refusal<nic::RxModeConfig>(record_of(mode), &why) == fi_err::kEPROTO);
  BOOST_TEST(why.find("it is unlimited, hardware, hybrid or software") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(test_field_of_another_kind_or_twice_is_refused) {
  const Bytes record = record_of(Inner{});
  Bytes other = record;
  other[kRecordHeadBytes + 2] = static_cast<std::byte>(FieldKind::text);
  seal(&other, 901);
  std::string why;
  BOOST_TEST(refusal<Inner>(other, &why) == fi_err::kEPROTO);
  BOOST_TEST(why.find("field 1 (low) has kind 5, not 3") != std::string::npos);
  Bytes twice = record;
  twice.insert(twice.end(), record.begin() + kRecordHeadBytes, record.end());
  seal(&twice, 901);
  BOOST_TEST(refusal<Inner>(twice, &why) == fi_err::kEPROTO);
  BOOST_TEST(why.find("field 1 (low) is there twice") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(test_rules_that_offer_more_than_the_nic_can_do_are_cut) {
  nic::OpRules rules;
  for (auto& family : rules.atomics) family.fill(~0u);
  const auto read = from_record<nic::OpRules>(record_of(rules));
  BOOST_TEST((read.atomics == nic::all_atomics()));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace weft::test
