// tests/cpp/test_mem_device.cpp: which device memory of peers is open, and for how long.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <set>
#include <vector>

#include "mem/device.hpp"

using namespace weft;
using namespace weft::mem;

namespace {

// "Device memory" is the memory in this list; opening it returns another address.
class TestRuntime final : public DeviceRuntime {
 public:
  [[nodiscard]] uint32_t iface() const noexcept override { return 1; }
  [[nodiscard]] uint64_t device_count() const noexcept override { return 1; }
  std::optional<DeviceMemory> find(uint64_t address) noexcept override {
    if (address - base >= bytes.size()) return std::nullopt;
    DeviceMemory found;
    found.iface = 1;
    found.base = base;
    found.length = bytes.size();
    return found;
  }
  [[nodiscard]] uint64_t identity(uint64_t address) noexcept override { return find(address) ? 1 : 0; }
  bool copy(void* to, const void* from, size_t length) noexcept override {
    ++copies;
    std::memcpy(to, from, length);
    return !fails;
  }
  void prepare(uint64_t) noexcept override {}
  void share(DeviceNote& note) noexcept override { note.has_ipc = 1; }
  std::byte* open(const DeviceNote& note) noexcept override {
    if (refuses) return nullptr;
    auto* at = reinterpret_cast<std::byte*>(0x100000 + note.base);
    BOOST_TEST(opened.insert(at).second);
    return at;
  }
  void close(std::byte* at) noexcept override { BOOST_TEST(opened.erase(at) == 1u); }
  int export_dmabuf(uint64_t, uint64_t, std::string*) noexcept override { return -1; }

  std::vector<std::byte> bytes = std::vector<std::byte>(64);
  uint64_t base = reinterpret_cast<uint64_t>(bytes.data());
  std::set<std::byte*> opened;
  int copies = 0;
  bool fails = false, refuses = false;
};

struct Fixture {
  Fixture() {
    auto made = std::make_unique<TestRuntime>();
    runtime = made.get();
    devices.add(std::move(made));
  }
  static DeviceNote note(uint64_t base, uint64_t id = 1) {
    DeviceNote n;
    n.iface = 1;
    n.has_ipc = 1;
    n.base = base;
    n.length = 0x1000;
    n.buffer_id = id;
    return n;
  }
  Devices devices;
  TestRuntime* runtime;
  int owner_a = 0, owner_b = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(mem_device)

BOOST_AUTO_TEST_CASE(devices_open_peer_memory_once_and_close_it_at_its_death) {
  Fixture f;
  const auto first = f.devices.open(&f.owner_a, Fixture::note(0x1000));
  BOOST_TEST(first == f.devices.open(&f.owner_a, Fixture::note(0x1000)));
  BOOST_TEST(f.runtime->opened.size() == 1u);
  f.devices.forget(&f.owner_b);
  BOOST_TEST(f.runtime->opened.size() == 1u);
  f.devices.forget(&f.owner_a);
  BOOST_TEST(f.runtime->opened.size() == 1u);  // a copy still uses the mapping
}

BOOST_AUTO_TEST_CASE(devices_close_an_older_allocation_at_the_address) {
  Fixture f;
  f.devices.open(&f.owner_a, Fixture::note(0x1000, 1));
  f.devices.open(&f.owner_b, Fixture::note(0x9000, 1));
  f.devices.open(&f.owner_a, Fixture::note(0x1000, 2));
  BOOST_TEST(f.runtime->opened.size() == 2u);
}

BOOST_AUTO_TEST_CASE(what_was_refused_is_not_asked_for_again) {
  Fixture f;
  f.runtime->refuses = true;
  BOOST_TEST(!f.devices.open(&f.owner_a, Fixture::note(0x1000)));
  f.runtime->refuses = false;
  BOOST_TEST(!f.devices.open(&f.owner_a, Fixture::note(0x1000)));
  BOOST_TEST(static_cast<bool>(f.devices.open(&f.owner_a, Fixture::note(0x1000, 2))));
}

BOOST_AUTO_TEST_CASE(open_memory_is_bounded) {
  Fixture f;
  for (uint64_t i = 1; i <= 500; ++i) f.devices.open(&f.owner_a, Fixture::note(i * 0x1000));
  BOOST_TEST(f.runtime->opened.size() == 64u);
}

BOOST_AUTO_TEST_CASE(without_peer_to_peer_nothing_is_opened_or_shared) {
  Fixture f;
  f.devices.set_p2p(false);
  BOOST_TEST(!f.devices.open(&f.owner_a, Fixture::note(0x1000)));
  BOOST_TEST(f.devices.note(*f.devices.find(f.runtime->base), true).has_ipc == 0u);
}

BOOST_AUTO_TEST_CASE(copies_go_by_the_runtime_where_a_side_is_a_devices) {
  Fixture f;
  std::byte host[8]{}, other[8]{};
  void* there = f.runtime->bytes.data();
  BOOST_TEST((f.devices.copy({host, false}, {other, false}, 8) == Status::ok));
  BOOST_TEST(f.runtime->copies == 0);
  BOOST_TEST((f.devices.copy({there, true}, {host, false}, 8) == Status::ok));
  BOOST_TEST((f.devices.copy({host, false}, {there, true}, 8) == Status::ok));
  BOOST_TEST(f.runtime->copies == 2);
  // Freed device memory is not mistaken for host memory.
  BOOST_TEST((f.devices.copy({reinterpret_cast<void*>(8), true}, {host, false}, 8) == Status::device));
  f.runtime->fails = true;
  BOOST_TEST((f.devices.copy({host, false}, {there, true}, 8) == Status::device));
}

BOOST_AUTO_TEST_SUITE_END()
