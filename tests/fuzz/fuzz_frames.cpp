// tests/fuzz/fuzz_frames.cpp: a properly connected peer sends frames with any content, changes them while they lie in
// the
// ring, and overwrites the memory that it shares with its victim.
#include "nic/group.hpp"
#include "target.hpp"

using namespace weft;
using namespace weft::fuzz;

namespace {

constexpr uint64_t kSetKey = 77;  // of a collective group that the victim wants to join with its peer

// The number of one of the victim's first operations, in a slot and with a sequence number.
uint64_t operation(Input& in) {
  return (uint64_t{1} + in.below(4)) << nic::OpTable::kSlotBits | in.below(4);
}

wire::Frame frame_from(Input& in, Node& victim, uint64_t op_id) {
  static constexpr uint64_t kKeys[] = {kKey, kWordsKey, 44};
  static constexpr uint64_t kAddrs[] = {0, 8, 512, Node::kBytes - 8, Node::kBytes, ~uint64_t{0}};
  static constexpr uint64_t kLengths[] = {8, 0, 16, 64, 1024, Node::kBytes, ~uint64_t{0}};
  static constexpr uint64_t kSmall[] = {0, 1, 2, 3, 8, 64};
  wire::Frame f;
  f.kind = static_cast<wire::FrameKind>(1 + in.below(wire::kFrameKindMax));
  f.flags = static_cast<uint8_t>(in.take<uint8_t>() & wire::flags_mask(f.kind));
  f.family = static_cast<uint8_t>(in.below(3));
  f.datatype = static_cast<uint8_t>(in.below(24));
  f.atomic_op = static_cast<uint8_t>(in.below(24));
  f.status = static_cast<int32_t>(in.number(kLengths));
  // Answers name operations that the victim has under way; requests have their own number, by which the target finds
  // them in
  // the ring.
  const bool names_ours =
      wire::is_answer(f.kind) || f.kind == wire::FrameKind::done || f.kind == wire::FrameKind::ready;
  f.op_id = names_ours && in.coin() ? operation(in) : op_id;
  f.access.key = in.number(kKeys);
  f.access.addr = in.number(kAddrs);
  f.access.length = in.number(kLengths);
  f.access.frag_offset = in.number(kSmall);
  f.access.data = in.number(kSmall);
  if (f.kind == wire::FrameKind::message) {
    f.message = {.tag = in.below(4),
                 .data = 5,
                 .length = in.number(kLengths),
                 .key = in.number(kKeys),
                 .sequence = in.below(8),
                 .sender = in.below(2)};
  }
  if (f.kind == wire::FrameKind::pull) f.pull.message = operation(in);
  if (f.kind == wire::FrameKind::reduce) {
    f.reduce = {};
    f.reduce.group = kSetKey + in.below(2);
    f.reduce.value = in.number(kSmall);
    f.reduce.from = in.below(3);
    f.reduce.to = in.below(2);
    f.reduce.sequence = static_cast<uint32_t>(in.number(kSmall));
    f.reduce.block = in.below(4);
    f.reduce.what = static_cast<uint8_t>(1 + in.below(wire::kReduceWhatMax));
    f.reduce.tier = static_cast<uint8_t>(in.below(2));
  }
  const bool known = in.below(8) != 0;
  f.ep_index = known ? victim.ep().index() : in.take<uint8_t>();
  f.ep_generation = known ? victim.generation() : in.take<uint8_t>();
  f.source = {0, in.take<uint8_t>(), 0, 0};
  return f;
}

// The frame with this number in a ring, with the bytes around it.
std::span<std::byte> in_the_ring(const std::vector<Shared>& shared, uint64_t op_id) {
  for (const Shared& s : shared) {
    if (!s.name.starts_with("ring")) continue;
    for (size_t at = 256; at + 256 <= s.bytes.size(); at += 8) {
      if (std::memcmp(s.bytes.data() + at, &op_id, sizeof(op_id)) == 0) {
        return s.bytes.subspan(at - 32, 256);  // from the slot's state word on
      }
    }
  }
  return {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return run(data, size, [](Input& in) {
    const uint8_t mode = in.take<uint8_t>();
    Node rogue({.strict = (mode & 2) != 0});
    const std::vector<Shared> own = shared_memory();
    Node victim({.strict = (mode & 1) != 0});
    must(victim.serves(rogue), "the handshake of two good nodes");
    nic::GroupConfig group;
    group.members = {victim.ep().address(), rogue.ep().address()};
    group.key = kSetKey;
    (void)victim.ep().join(std::move(group));
    link::Link* way = nullptr;
    std::shared_ptr<link::Peer> peer;
    for (link::Link* l : rogue.nic().links()) {
      for (const auto& p : l->peers()) {
        if (!p->same_process) way = l, peer = p;
      }
    }
    must(peer != nullptr, "the rogue knows its victim");
    const uint64_t back = victim.insert(rogue);
    std::vector<Shared> shared;
    // The memory that a peer may write: its own staging memory, and the rings of both sides. Rings go with a
    // connection.
    const auto look = [&] {
      if (!shared.empty() && victim.nic().downs() + rogue.nic().downs() == 0) return;
      shared = shared_memory();
      std::erase_if(shared, [&](const Shared& s) {
        const bool mine = std::ranges::any_of(own, [&](const Shared& o) { return o.inode == s.inode; });
        return !s.name.starts_with("ring") && !(mine && s.name.starts_with("staging"));
      });
    };
    bool scribbled = false;
    uint64_t op_id = 0x7e57'0000'0000'0000;
    for (int step = 0; step < 200 && !in.empty(); ++step) {
      switch (in.below(8)) {
        case 0:
        case 1:
        case 2: {
          wire::Frame f = frame_from(in, victim, ++op_id);
          std::vector<std::byte> payload(std::min<size_t>(in.take<uint16_t>(), 2000), std::byte{3});
          if (!payload.empty()) in.patch(payload);
          (void)way->submit(*peer, f, payload);
          break;
        }
        case 3: {  // changed after it was published
          wire::Frame f = frame_from(in, victim, ++op_id);
          (void)way->submit(*peer, f, {});
          look();
          if (const auto slot = in_the_ring(shared, op_id); !slot.empty()) {
            const bool content_only = in.coin();
            in.patch(slot.subspan(content_only ? 32 : 0));
            scribbled |= !content_only;
          }
          break;
        }
        case 4: {  // anywhere in the shared memory
          look();
          if (shared.empty()) break;
          const Shared& s = shared[in.below(static_cast<uint32_t>(shared.size()))];
          scribbled = true;
          const size_t at = in.take<uint32_t>() % s.bytes.size();
          in.patch(s.bytes.subspan(at & ~size_t{255}, std::min<size_t>(256, s.bytes.size() - (at & ~size_t{255}))));
          break;
        }
        case 5:
          victim.post(in, back);
          break;
        case 6:
          rogue.progress();
          (void)rogue.collect();
          break;
        default:
          victim.progress();
          (void)victim.collect();
      }
    }
    victim.progress(8);
    (void)victim.collect();
    victim.check_guards();
    if (!scribbled && (mode & 4) != 0) {
      Node good({});
      must(victim.serves(good), "a victim serves others whatever its peer sent");
    }
  });
}
