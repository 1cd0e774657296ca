// tests/fuzz/fuzz_record.cpp: records of settings, which another process makes. Any bytes are read or refused; a record
// that was read is the same after it was written and read again. The checksum is made right, so that the bytes behind
// it count.
#include "base/record.hpp"
#include "nic/config.hpp"
#include "target.hpp"

using namespace weft;
using fuzz::must;

namespace {

template <typename T>
void check(const std::vector<std::byte>& bytes) {
  T read{};
  try {
    read = from_record<T>(bytes);
  } catch (const Error& e) {
    const int code = e.fi_code();
    must(code == fi_err::kEPROTO || code == fi_err::kEOPNOTSUPP || code == fi_err::kEINVAL, "an error of no record");
    must(std::string_view(e.what()).starts_with("a record of "), "a refusal that does not say what was read");
    return;
  }
  const T again = from_record<T>(record_of(read));
  must(equal(table_of<T>(), &read, &again), "a record that reads differently after it was written again");
}

template <typename T>
void fuzz_table(fuzz::Input& in, size_t size) {
  std::vector<std::byte> record = record_of(T{});
  const bool sealed = !in.coin();
  if (in.coin()) {  // a body of the input's bytes
    record.resize(kRecordHeadBytes);
    const auto body = in.bytes(size);
    record.insert(record.end(), body.begin(), body.end());
  } else {
    if (in.coin()) record.resize(in.take<uint16_t>() % (record.size() + 1));
    if (!record.empty()) in.patch(record);
  }
  if (sealed && record.size() >= kRecordHeadBytes) seal_record(&record, table_of<T>().id);
  check<T>(record);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::run(data, size, [&](fuzz::Input& in) {
    switch (in.below(4)) {
      case 0:
        return fuzz_table<nic::EndpointConfig>(in, size);
      case 1:
        return fuzz_table<nic::DomainConfig>(in, size);
      case 2:
        return fuzz_table<nic::QueueConfig>(in, size);
      default:
        return fuzz_table<nic::OpRules>(in, size);
    }
  });
}
