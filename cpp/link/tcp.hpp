// cpp/link/tcp.hpp: the link between hosts.
//
// One connection for each pair of NICs and VNI: the NIC that needs it first calls; the other NIC uses the same
// connection. (Tie-break for simultaneous calls: the NIC with the smaller uuid rejects the other's call and keeps its
// own. A NIC that has already received the other's hello waits for that greeting instead of calling.) A connection
// carries no packets before both sides have proved that they know the secret (tcp_auth.hpp); without a secret the NIC
// neither listens nor calls.
//
// Addresses: routes.hpp maps NIC numbers to addresses of other hosts. A listening NIC also binds an abstract socket
// name, so that processes of the same host and user find that they can use shm instead of tcp.
//
// Lost connections: operations under way fail, with the reason in the error (hang-up; no route to the host; no answer
// in time), and nothing is sent twice. The next operation calls again. The NIC notices a dead host within about
// `timeout_ns`: it sets TCP_USER_TIMEOUT, and pings on an idle connection give the kernel unacknowledged data.
//
// Threads spin only briefly: polls of the application read the sockets, and the engine reads them for about 30 us after
// a packet, because the next packet often follows soon; then the engine waits in epoll. While a thread polls, up to
// four sockets are kept out of epoll, because each wake-up costs the sender about 0.2 us a packet.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/lock.hpp"
#include "link/epoll.hpp"
#include "link/link.hpp"
#include "link/routes.hpp"
#include "link/tcp_peer.hpp"

namespace weft::link {

// Records that are not encrypted are still authenticated.
enum class Encryption : uint8_t { automatic, on, off };  // automatic: everywhere but between loopback addresses

struct TcpConfig {
  uint64_t timeout_ns = 5'000'000'000;  // to notice a dead host; also the limit of a call and of a greeting
  uint64_t hurry_ns = 1'000'000'000;    // for a caller's next message, while half of the callers' limit is used
  Encryption encryption = Encryption::automatic;
  bool here_by_shm = true;  // use the shm link between processes of this host
  bool log = false;         // to stderr, too
};

// Limits of callers whose greeting is under way: of all addresses, and of one address (IPv6: one /64 network).
constexpr size_t kCallersMax = 256, kCallersOfOneMax = 64;

class TcpLink final : public Link, private TcpControl {
 public:
  TcpLink(const TcpConfig& config, Routes& routes, mem::Table& table, Clock& clock, Random& random, Waiter& waiter);
  ~TcpLink() override;

  // Sets the secret key that the NICs share, and the library for the proofs. Throws Error(EBUSY): another key is in use
  // already.
  void set_secret(const Sodium& sodium, const wire::Bytes32& key);
  [[nodiscard]] bool has_secret() const;
  // Throws Error(EBUSY): the link is in use.
  void set_timeout(uint64_t timeout_ns);
  void set_encryption(Encryption when);
  // Accepts calls at `on` (port 0: any free port). `known_as`: the address for peers, needed if `on` is a wildcard.
  // Returns the address for peers. Throws EACCES (no secret), EADDRINUSE, EBUSY (already listens elsewhere), EINVAL.
  wire::HostAddress listen(const wire::HostAddress& on, std::optional<wire::HostAddress> known_as);
  [[nodiscard]] std::optional<wire::HostAddress> listening() const;
  [[nodiscard]] std::vector<std::string> log() const;  // the latest failures, oldest first
  struct Statistics {
    uint64_t accepted = 0, called = 0, refused = 0, lost = 0;
  };
  [[nodiscard]] Statistics statistics() const;

  void claim(const wire::EpAddress& address, uint32_t ep_index, uint32_t ep_generation) override;
  void release(const wire::EpAddress& address) noexcept override;
  Resolving resolve(const wire::EpAddress& address, const std::shared_ptr<void>& token, Found* found) override;
  [[nodiscard]] std::optional<wire::EpAddress> local_name(const wire::EpAddress& address) override;
  [[nodiscard]] std::optional<std::string> name_of(const wire::EpAddress& address) const override {
    return address.nic >= wire::kRemoteNic ? std::optional(routes_.text_of(address)) : std::nullopt;
  }
  [[nodiscard]] std::optional<Place> place_of(const wire::EpAddress& address) const override {
    const auto route = routes_.find(address.nic);
    return route ? std::optional(Place{text_of(route->host), route->nic}) : std::nullopt;
  }
  [[nodiscard]] std::string explain(const wire::EpAddress& address) const override;
  Status submit(Peer& peer, wire::Frame& frame, std::span<const std::byte> payload) override;
  void request_segment(Peer&, uint32_t) override {}
  void hang_up(Peer& peer, Status why) noexcept override;
  // True while there is traffic, and about 10 ms longer; then the engine waits for the sockets.
  [[nodiscard]] bool maybe_ready() const noexcept override { return hot_.load(std::memory_order_relaxed) > 0; }
  size_t poll(FrameSink& sink, size_t budget) override;
  size_t poll_events(FrameSink& sink) override;
  // Ends when the connections are idle: polls then no longer read them.
  void leave_to_polls() override;
  bool prepare_sleep() override;
  [[nodiscard]] bool has_timers() const override;
  void before_fork() override { mutex_.lock_at_fork(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock_after_fork(); }
  void after_fork_in_child() noexcept override;
  [[nodiscard]] std::vector<std::shared_ptr<Peer>> peers() const override;
  [[nodiscard]] bool each_peer(PeerTest holds, uint32_t argument) const override;

 private:
  // Names in events_; all other names are pending greetings.
  static constexpr uint64_t kNameListener = 1, kNameTimer = 2, kNameData = 3;
  static constexpr uint64_t kRetryNs = 50'000'000, kBusyNs = 200'000'000;

  struct Pending {  // a connection whose greeting is under way
    UniqueFd fd;
    std::unique_ptr<Handshake> greeting;  // outbound: set once the socket is connected
    wire::HostAddress remote;             // the other end
    uint16_t vni = 0;
    bool outbound = false, connecting = false;
    bool heard = false;       // inbound: `hello` has arrived
    bool busy = false;        // outbound: the peer answered `busy`
    uint64_t waiting_ns = 0;  // inbound: since when we wait for the caller's next message; 0: ours is due
    uint64_t deadline_ns = 0;
    wire::Greeting hello;
    std::array<std::byte, sizeof(wire::Greeting)> in{};
    size_t have = 0;
    std::vector<TcpPeer::Call> calls;
  };
  struct Retry {
    TcpPeer::Call call;
    uint64_t at_ns;       // when to call, unless there is a connection by then
    bool waited = false;  // waits for the peer's own greeting: calls as soon as that greeting fails; waits only once
  };
  struct Happened {
    enum Kind { resolved, down } kind;
    std::shared_ptr<void> token;
    Status status;
    std::shared_ptr<Peer> peer;
    uint32_t ep_index = 0, ep_generation = 0;
  };

  wire::ResolveBody on_resolve(TcpPeer& peer, const wire::ResolveBody& asked) override;
  void on_resolved(TcpPeer& peer, const wire::ResolveBody& answer) override;
  bool may_name(uint32_t ep_index, uint32_t ep_generation, uint16_t vni) override;
  [[nodiscard]] bool polled() const noexcept override { return !armed_.load(std::memory_order_relaxed); }

  // All require mutex_.
  bool start();
  void reach(const Route& route, TcpPeer::Call call, bool may_wait = true);
  [[nodiscard]] std::shared_ptr<TcpPeer> find(const wire::HostAddress& host, uint16_t vni) const;
  void ask(TcpPeer& peer, const Route& route, TcpPeer::Call call);
  void call(const Route& route, TcpPeer::Call call);
  void accept_all();
  [[nodiscard]] bool has_room_for(UniqueFd& caller, const wire::HostAddress& from);
  bool evict_silent(const wire::HostAddress* of);
  void hurry_callers(const wire::HostAddress* of);
  void answer_hellos();
  void take_hellos();
  [[nodiscard]] bool greets(const wire::HostAddress& host, uint16_t vni) const;
  [[nodiscard]] bool crosses_ours(const Pending& p);
  void on_pending(uint64_t id, uint32_t events);
  void hear(uint64_t id, bool hello_only);
  void on_greeting(uint64_t id, const wire::Greeting& in);
  void go_live(uint64_t id);
  void give_up(uint64_t id, Status status, const std::string& why);
  void drop(const std::shared_ptr<TcpPeer>& peer);
  void happen(Happened&& what);
  void tick();
  void set_timer(bool on);
  void note(const wire::HostAddress& host, const std::string& what, bool logged = true);
  [[nodiscard]] Handshake::Self self(const wire::HostAddress& remote);
  void arm(bool armed);
  void watch();  // adds sockets to epoll or removes them, depending on armed_ and their number

  void deliver(FrameSink& sink);
  void warm() noexcept;

  TcpConfig config_;
  Routes& routes_;
  mem::Table& table_;
  Clock& clock_;
  Random& random_;
  Waiter& waiter_;
  std::array<uint8_t, 16> uuid_{};
  std::optional<TcpSecret> secret_;  // set once

  std::optional<EpollSet> events_;  // listener, greetings, timer, and data_ while it is armed
  std::optional<EpollSet> data_;    // connections
  UniqueFd timer_, listener_, here_, spare_fd_;
  std::optional<wire::HostAddress> bound_, known_as_;

  mutable RankedMutex<lock_rank::kTcp> mutex_;
  std::unordered_map<wire::EpAddress, std::pair<uint32_t, uint32_t>, wire::EpAddressHash> claimed_ GUARDED_BY(mutex_);
  std::map<uint64_t, Pending> pending_ GUARDED_BY(mutex_);
  std::deque<uint64_t> unanswered_ GUARDED_BY(mutex_);  // callers whose hello awaits our answer
  std::vector<std::shared_ptr<TcpPeer>> live_;  // the polling thread changes it under mutex_ and reads it without
  std::vector<Retry> retries_ GUARDED_BY(mutex_);
  std::vector<Happened> happened_ GUARDED_BY(mutex_);
  std::deque<std::string> log_ GUARDED_BY(mutex_);
  std::map<wire::HostAddress, std::string> reasons_ GUARDED_BY(mutex_);
  Statistics statistics_ GUARDED_BY(mutex_);
  uint64_t next_id_ GUARDED_BY(mutex_) = 16;
  bool timer_on_ GUARDED_BY(mutex_) = false;
  bool data_watched_ GUARDED_BY(mutex_) = false, all_watched_
                                                 GUARDED_BY(mutex_) = false;  // the result of the last watch()
  std::atomic<bool> armed_{false};                                            // changed with mutex_
  std::atomic<size_t> live_count_{0}, happened_count_{0};
  std::atomic<int32_t> hot_{0};
  std::atomic<bool> heard_{false};  // a packet arrived since a thread last prepared to sleep
  std::atomic<uint32_t> busy_{0};   // polls that found packets since watch() added the sockets
  uint64_t heard_ns_ = 0;
};

}  // namespace weft::link
