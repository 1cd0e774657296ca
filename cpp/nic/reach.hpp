// cpp/nic/reach.hpp: translates a target's memory to addresses of this process, and copies to and from the memory.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "link/link.hpp"
#include "mem/device.hpp"
#include "mem/table.hpp"

namespace weft::nic {

constexpr uint32_t kMaxPieces = 64;

// A piece of the target: direct (a pointer) or in the peer's address space.
struct Piece {
  std::byte* pointer;  // null: not mapped in this process
  uint64_t remote;     // the owner's virtual address
  uint64_t length;
  bool device;  // the pointer is for a device's runtime, not for loads and stores
};

enum class Reach { direct, device, cma, mixed, frames, missing };

// Device memory that peers have shared, open while the pieces are used.
using Opened = std::vector<std::shared_ptr<mem::Devices::Opened>>;

// Adds the pieces of [view.offset, view.offset + length) of a region. *missing: number of a segment that is not mapped
// yet. The caller keeps `opened` while it uses the pieces.
Reach translate(const link::Peer& peer, mem::Devices& devices, const mem::MrView& view, uint64_t length, Piece* pieces,
                uint32_t* count, uint32_t* missing, Opened* opened);

// Moves bytes between local buffers and pieces, in order.
// With `devices`: a part of either side is device memory (bit i of `of_device`: local[i]), and its runtime copies.
Status move(link::Peer& peer, bool to_peer, const iovec* local, size_t local_count, const Piece* pieces, uint32_t count,
            const mem::Devices* devices = nullptr, uint8_t of_device = 0);

}  // namespace weft::nic
