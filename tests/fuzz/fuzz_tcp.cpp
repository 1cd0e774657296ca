// tests/fuzz/fuzz_tcp.cpp: strangers and members at the tcp link's listener: greetings with any content; and, from a
// peer
// that knows the secret and seals what it makes up, packets of every kind with any content, whole or in pieces.
#include <netinet/in.h>

#include "target.hpp"
#include "wire/tcp.hpp"

using namespace weft;
using namespace weft::fuzz;

namespace {

class Caller {
 public:
  explicit Caller(Node& victim, bool encrypt = false) : victim_(victim) {
    sockaddr_storage name;
    const wire::HostAddress at = *victim.host().tcp().listening();
    const socklen_t length = link::to_sockaddr(at, &name);
    fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&name), length) != 0) {
      if (errno == EADDRNOTAVAIL) throw NoRoom{};
      broken(std::strerror(errno));
    }
    // Release the port at once: a run makes more connections than there are ports.
    const linger at_once{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    link::Handshake::Self self{{1, 2, 3}, test::key_of("a nonce"), test::key_of("a scalar"), {}, 0, encrypt};
    hand_.emplace(true, secret_, self, 0, at);
    // Until the victim has accepted it, the peer seals with a key of its own.
    keys_.send = wire::Seal(secret_.sodium, std::span(secret_.key).first<wire::kSealKeyBytes>(), encrypt);
  }
  void send(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) return;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }
  void say(const wire::Greeting& g, Input* patch = nullptr) const {
    std::array<std::byte, sizeof(wire::Greeting)> out;
    wire::emit_greeting(g, out);
    if (patch != nullptr) patch->patch(out);
    send(out);
  }
  [[nodiscard]] const wire::Greeting& hello() const { return hand_->hello(); }
  size_t drain() const {
    std::array<std::byte, 65536> nowhere;
    size_t all = 0;
    for (ssize_t n; (n = ::recv(fd_.get(), nowhere.data(), nowhere.size(), MSG_DONTWAIT)) > 0;)
      all += static_cast<size_t>(n);
    return all;
  }
  // Runs the whole greeting; the input may change the last message.
  bool greet(Input* patch) {
    say(hand_->hello());
    for (;;) {
      std::array<std::byte, sizeof(wire::Greeting)> in;
      size_t have = 0;
      for (int i = 0; i < 1000 && have < in.size(); ++i) {
        victim_.progress();
        const ssize_t n = ::recv(fd_.get(), in.data() + have, in.size() - have, MSG_DONTWAIT);
        if (n == 0) return false;
        if (n > 0) have += static_cast<size_t>(n);
      }
      const auto heard = have == in.size() ? wire::parse_greeting(in) : std::nullopt;
      if (!heard) return false;
      wire::Greeting out;
      switch (hand_->on(*heard, &out)) {
        case link::Handshake::Step::reply:
          say(out, patch);
          break;
        case link::Handshake::Step::last:
          say(out, patch);
          [[fallthrough]];
        case link::Handshake::Step::done:
          keys_ = hand_->keys();
          return true;
        default:
          return false;
      }
    }
  }
  // A packet of any kind with a head from the input, sealed as by a member.
  std::vector<std::byte> packet(Input& in) {
    static constexpr uint64_t kLengths[] = {0, 8, 64, 1024, Node::kBytes, 20'000, ~uint64_t{0}};
    static constexpr uint64_t kKeys[] = {kKey, kWordsKey, 44};
    wire::PacketPrefix p;
    p.type = static_cast<wire::PacketType>(1 + in.below(6));
    const size_t body = wire::body_bytes(p.type);
    std::vector<std::byte> out(sizeof(p) + body), payload;
    if (p.type == wire::PacketType::frame) {
      wire::FrameBody b;
      wire::Frame& f = b.frame;
      f.kind = static_cast<wire::FrameKind>(1 + in.below(wire::kFrameKindMax));
      f.flags = static_cast<uint8_t>(in.take<uint8_t>() & wire::flags_mask(f.kind));
      f.family = static_cast<uint8_t>(in.below(3));
      f.datatype = static_cast<uint8_t>(in.below(24));
      f.atomic_op = static_cast<uint8_t>(in.below(24));
      f.op_id = 1 + in.below(4);
      f.access.key = in.number(kKeys);
      f.access.addr = in.number(kLengths);
      f.access.length = in.number(kLengths);
      f.access.frag_offset = in.number(kLengths);
      if (f.kind == wire::FrameKind::message) {
        f.message = {.tag = in.below(4),
                     .data = 5,
                     .length = in.number(kLengths),
                     .key = in.number(kKeys),
                     .sequence = in.below(8),
                     .sender = in.below(2)};
      }
      f.status = static_cast<int32_t>(in.number(kLengths));
      const bool known = in.below(8) != 0;
      f.ep_index = known ? victim_.ep().index() : in.take<uint8_t>();
      f.ep_generation = known ? victim_.generation() : in.take<uint8_t>();
      f.staged_chunk = static_cast<uint32_t>(in.number(kLengths));
      b.done = {.op_id = in.below(4), .cost = in.below(4), .there = in.below(3)};
      payload.resize(std::min<size_t>(in.take<uint16_t>(), 30'000), std::byte{3});
      std::memcpy(out.data() + sizeof(p), &b, sizeof(b));
    } else if (p.type == wire::PacketType::done) {
      const wire::DoneBody b{.op_id = in.below(4), .cost = in.below(4), .there = in.below(3)};
      std::memcpy(out.data() + sizeof(p), &b, sizeof(b));
    } else if (body != 0) {
      wire::ResolveBody b;
      b.id = in.below(4);
      b.address = in.coin() ? victim_.ep().address() : wire::EpAddress{0, 5, 0, 0};
      b.status = static_cast<int32_t>(in.below(40));
      std::memcpy(out.data() + sizeof(p), &b, sizeof(b));
    }
    p.length = static_cast<uint32_t>(body + payload.size());
    if (in.below(16) == 0) p.length = in.take<uint32_t>();
    std::memcpy(out.data(), &p, sizeof(p));
    if (in.coin()) in.patch(out);
    // Sealed as its length requires, or as one record if the stated length is wrong.
    const bool apart = payload.size() > wire::kTogetherMax;
    if (!apart) out.insert(out.end(), payload.begin(), payload.end());
    const auto seal = [&](size_t clear) {
      const size_t content = out.size() - clear;
      out.resize(out.size() + wire::kTagBytes);
      keys_.send.close(out.data(), clear, content);
    };
    seal(sizeof(p));
    if (apart) {
      std::vector<std::byte> second = payload;
      second.resize(second.size() + wire::kTagBytes);
      keys_.send.close(second.data(), 0, payload.size());
      out.insert(out.end(), second.begin(), second.end());
    }
    if (in.below(32) == 0) in.patch(out);  // a damaged one
    return out;
  }

 private:
  Node& victim_;
  UniqueFd fd_;
  const link::TcpSecret secret_{test::sodium(), test::key_of(kSecret)};
  std::optional<link::Handshake> hand_;
  link::SessionKeys keys_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return run(data, size, [](Input& in) {
    const uint8_t mode = in.take<uint8_t>();
    Node victim({.shm = false, .tcp = true});
    std::vector<std::unique_ptr<Caller>> strangers;
    auto member = std::make_unique<Caller>(victim, (mode & 4) != 0);
    const bool in_it = member->greet((mode & 1) != 0 ? &in : nullptr);
    must(in_it || (mode & 1) != 0, "a member is let in");
    for (int step = 0; step < 100 && !in.empty(); ++step) {
      switch (in.below(8)) {
        case 0:
        case 1:
        case 2:
        case 3:
          member->send(member->packet(in));
          break;
        case 4: {  // one half now, the rest after the victim has polled
          const auto whole = member->packet(in);
          const size_t cut = in.take<uint16_t>() % whole.size();
          member->send(std::span(whole).first(cut));
          victim.progress(2);
          member->send(std::span(whole).subspan(cut));
          break;
        }
        case 5:
          if (strangers.size() < 4) strangers.push_back(std::make_unique<Caller>(victim));
          strangers.back()->say(strangers.back()->hello(), &in);
          if (in.coin()) strangers.back()->send(in.bytes(in.take<uint8_t>()));
          break;
        case 6:
          (void)member->drain();
          for (auto& s : strangers) (void)s->drain();
          break;
        default:
          victim.progress(2);
          (void)victim.collect();
      }
    }
    victim.progress(8);
    (void)victim.collect();
    victim.check_guards();
    if ((mode & 2) != 0) {
      member.reset();
      strangers.clear();
      Node friendly({.shm = false, .tcp = true});
      must(victim.serves(friendly), "a victim serves others whoever called it");
    }
  });
}
