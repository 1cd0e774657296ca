// cpp/mem/maps.cpp: see maps.hpp.
#include "mem/maps.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/status.hpp"

namespace weft::mem {

namespace {

struct Line {
  uint64_t begin, end, offset, inode;
  uint32_t major, minor;
  bool readable, writable, shared;
  bool on_disk;  // the path names a file; false for memfds, pseudo files and System V shared memory
  bool system_v;
  bool stack;
  bool held;  // of a file of HeldPages
};

// Calls each(line) for the mappings that overlap the range, in order, until each() returns false.
template <typename Each>
void lines(uint64_t begin, uint64_t end, Each&& each) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/maps", "re"), std::fclose);
  if (!file) throw Error(fi_err::kEIO, std::string("cannot open /proc/self/maps: ") + std::strerror(errno));
  char text[4352];
  while (std::fgets(text, sizeof(text), file.get()) != nullptr) {
    Line line{};
    char rights[5] = {};
    int path = 0;
    if (std::sscanf(text, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &line.begin, &line.end,
                    rights, &line.offset, &line.major, &line.minor, &line.inode, &path) < 7) {
      continue;
    }
    if (line.begin >= end) return;
    if (line.end <= begin) continue;
    line.readable = rights[0] == 'r';
    line.writable = rights[1] == 'w';
    line.shared = rights[3] == 's';
    const auto begins = [&](std::string_view with) {
      return path != 0 && std::string_view(text + path).starts_with(with);
    };
    line.system_v = begins("/SYSV");
    line.stack = begins("[stack");
    line.held = begins(std::string("/memfd:") + kHeldPagesFile);
    line.on_disk = begins("/") && !begins("/memfd:") && !line.system_v;
    if (!each(line)) return;
  }
}

std::string hex(uint64_t n) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%" PRIx64, n);
  return text;
}

}  // namespace

CachedMapping describe_system_memory(uint64_t address, uint64_t length) {
  CachedMapping found;
  found.address = address;
  found.length = length;
  found.persistent = true;
  uint64_t at = address;
  const uint64_t end = address + length;
  lines(address, end, [&](const Line& line) {
    if (line.begin > at) return false;  // a hole
    if (at == address) {
      found.buffer_id = line.inode == 0 ? 0 : (uint64_t{line.major} << 20 | line.minor) << 40 ^ line.inode;
      found.user = line.inode == 0 ? 0 : line.offset + (address - line.begin);
    }
    found.persistent = found.persistent && line.shared && line.on_disk;
    found.host_access = found.host_access && line.readable;
    at = line.end;
    return at < end;
  });
  if (at < end) {
    throw Error(fi_err::kEFAULT, "nothing is mapped at " + hex(at) + ", which is part of the " +
                                     std::to_string(length) + " bytes at " + hex(address));
  }
  return found;
}

namespace {

// The first address of the range that is not mapped, or in a mapping for which is(line) is false.
template <typename Is>
std::optional<uint64_t> first_not(uint64_t begin, uint64_t end, Is&& is) {
  uint64_t at = begin;
  lines(begin, end, [&](const Line& line) {
    if (line.begin > at || !is(line)) return false;
    at = line.end;
    return at < end;
  });
  return at < end ? std::optional(at) : std::nullopt;
}

}  // namespace

std::optional<uint64_t> first_not_persistent(uint64_t address, uint64_t length) {
  return first_not(address, address + length, [](const Line& line) { return line.shared && line.on_disk; });
}

std::optional<uint64_t> first_not_writable(uint64_t address, uint64_t length) {
  return first_not(address, address + length, [](const Line& line) { return line.writable; });
}

bool is_plain_memory(uint64_t begin, uint64_t end) {
  return !first_not(begin, end, [](const Line& line) {
    return line.writable && !line.shared && (line.inode == 0 || line.held) && !line.stack;
  });
}

bool is_mapped_from(uint64_t begin, uint64_t end, uint64_t inode) {
  return !first_not(begin, end, [=](const Line& line) { return line.inode == inode; });
}

bool has_system_v_memory(uint64_t begin, uint64_t end) {
  bool found = false;
  lines(begin, end, [&](const Line& line) { return !(found = line.system_v); });
  return found;
}

}  // namespace weft::mem
