// tests/cpp/raw_peer.hpp: a client of the shm link that writes the handshake itself, correctly or not.
#pragma once

#include <poll.h>
#include <sys/un.h>

#include "fabric.hpp"
#include "link/shm.hpp"
#include "ring/mpsc.hpp"

namespace weft::test {

using wire::Hello;
using wire::HelloType;
using wire::RejectReason;

class RawPeer {
 public:
  // Private: like a strict peer, without a table and segments. Otherwise the peer shares the ring with others.
  explicit RawPeer(const wire::EpAddress& address, bool is_private_ = true)
      : is_private(is_private_), shape(link::area_shape(is_private_)), address_(address) {
    fd_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const int n =
        std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "weft-%u-%u-%u-%u-%u", wire::kHelloVersion,
                      static_cast<unsigned>(::geteuid()), address.nic, address.vni, address.pid);
    BOOST_REQUIRE(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&name),
                            static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n))) == 0);
    ring_fd = make_memfd("test-ring", shape.ring_bytes());
    ring_mapping = Mapping::shared(ring_fd.get(), shape.ring_bytes(), true, "ring");
    clear_ring();
    staging_fd = make_memfd("test-staging", shape.staging_bytes());
    table_fd = make_memfd("test-table", mem::TableLayout(kRegions).bytes);
    for (const UniqueFd* fd : {&ring_fd, &staging_fd, &table_fd}) seal_size(fd->get());
  }
  static constexpr uint32_t kRegions = 64;

  [[nodiscard]] Hello good_hello() const {
    Hello h;
    h.type = HelloType::hello;
    h.flags = is_private ? wire::kHelloStrict | wire::kHelloPrivate : 0;
    h.uuid.fill(0x5a);
    h.address = address_;
    h.producer_id = 1;
    h.ring_slot_count = shape.slot_count;
    h.staging_bytes = shape.staging_bytes();
    h.table_bytes = mem::TableLayout(kRegions).bytes;
    h.mr_count_max = kRegions;
    return h;
  }
  void clear_ring() {
    (void)ring::MpscConsumer::create(std::span(ring_mapping.data(), ring_mapping.size()), shape.slot_count);
  }
  void send(std::span<const std::byte> bytes, const std::vector<int>& fds) const {
    iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * 260));
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
    }
    (void)!::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  }
  void send(const Hello& h, const std::vector<int>& fds) const { send(std::as_bytes(std::span(&h, 1)), fds); }
  [[nodiscard]] std::vector<int> good_fds() const {
    std::vector<int> fds{ring_fd.get(), staging_fd.get()};
    if (!is_private) fds.push_back(table_fd.get());
    return fds;
  }

  struct Answer {
    bool hung_up = false;
    std::optional<Hello> hello;
    std::vector<UniqueFd> fds;
  };
  // Returns the next packet, or reports that the other side hung up.
  Answer next(const Side& side) const {
    Answer answer;
    const bool came = poll_until(
        [&] {
          alignas(8) std::byte bytes[4096];
          alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)];
          iovec iov{bytes, sizeof(bytes)};
          msghdr message{};
          message.msg_iov = &iov;
          message.msg_iovlen = 1;
          message.msg_control = control;
          message.msg_controllen = sizeof(control);
          const ssize_t n = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
          if (n < 0 && errno == EAGAIN) return false;
          if (n <= 0) {
            answer.hung_up = true;
            return true;
          }
          answer.hello = wire::parse_hello(std::span(bytes, static_cast<size_t>(n)));
          for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
            const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count; ++i) {
              int fd;
              std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
              answer.fds.emplace_back(fd);
            }
          }
          return true;
        },
        [&] { side.progress(); });
    BOOST_TEST_REQUIRE(came);
    return answer;
  }
  [[nodiscard]] bool answered() const {  // or hung up on
    pollfd heard{fd_.get(), POLLIN, 0};
    return ::poll(&heard, 1, 0) == 1;
  }
  // Reads everything up to the hang-up; returns the reason if the other side gave one.
  RejectReason until_hung_up(const Side& side) const {
    RejectReason why = RejectReason::none;
    for (;;) {
      const Answer a = next(side);
      if (a.hung_up) return why;
      if (a.hello && a.hello->type == HelloType::reject) why = a.hello->reason;
    }
  }
  // A complete handshake; afterwards the test can put frames into the other side's ring.
  Hello shake_hands(const Side& side) {
    send(good_hello(), good_fds());
    auto a = next(side);
    BOOST_REQUIRE((a.hello && a.hello->type == HelloType::welcome && a.fds.size() >= 2));
    their_ring = Mapping::shared(a.fds[0].get(), shape.ring_bytes(), true, "their ring");
    producer = ring::MpscProducer::attach(std::span(their_ring.data(), their_ring.size()), shape.slot_count,
                                          static_cast<uint16_t>(a.hello->producer_id));
    BOOST_REQUIRE(producer.has_value());
    their_fds = std::move(a.fds);
    return *a.hello;
  }
  void push(std::span<const std::byte> bytes, uint32_t kind = 0) {
    auto claim = producer->try_claim();
    if (!claim) return;
    std::memcpy(claim.payload().data(), bytes.data(), bytes.size());
    if (producer->publish(claim, bytes.size(), kind))
      (void)!::send(fd_.get(), "", wire::kDoorbellBytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  const bool is_private;
  const link::AreaShape shape;
  UniqueFd ring_fd, staging_fd, table_fd;
  std::vector<UniqueFd> their_fds;
  Mapping ring_mapping, their_ring;
  std::optional<ring::MpscProducer> producer;

 private:
  wire::EpAddress address_;
  UniqueFd fd_;
};

inline void expect_serves(Pair& pair) {
  const auto data = pattern(300);
  const auto done = pair.write(data.data(), 300, 0);
  BOOST_TEST(done.error == 0, done.text);
}

}  // namespace weft::test
