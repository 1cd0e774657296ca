// cpp/nic/reach.hpp: where a target's memory lies for this process, and copies to it and from it.
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
  std::byte* pointer;  // null: this process cannot name it
  uint64_t remote;     // the owner's virtual address
  uint64_t length;
  bool device;  // the pointer is for a device's runtime, not for load and store
};

enum class Reach { direct, device, cma, mixed, frames, missing };

// Device memory that peers have shared, open while the pieces are used.
using Opened = std::vector<std::shared_ptr<mem::Devices::Opened>>;

// Adds the pieces in which [view.offset, view.offset + length) of a region lies. missing: a segment, *missing, that is
// not mapped yet. What `opened` gets stays open while the pieces are used.
Reach translate(const link::Peer& peer, mem::Devices& devices, const mem::MrView& view, uint64_t length, Piece* pieces,
                uint32_t* count, uint32_t* missing, Opened* opened);

// Moves bytes between local buffers and pieces, in order.
// With `devices`: some of either side is a device's memory (bit i of `of_device`: local[i]), and its runtime copies.
Status move(link::Peer& peer, bool to_peer, const iovec* local, size_t local_count, const Piece* pieces, uint32_t count,
            const mem::Devices* devices = nullptr, uint8_t of_device = 0);

}  // namespace weft::nic
