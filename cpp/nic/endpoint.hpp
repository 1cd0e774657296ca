// cpp/nic/endpoint.hpp: an endpoint: its life, its bindings, and the effects of peers' operations. Its own operations
// are TxPort's (tx_port.hpp), arriving messages RxPort's (rx_port.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nic/connection.hpp"
#include "nic/entry.hpp"
#include "nic/rx_port.hpp"
#include "nic/tx_port.hpp"
#include "wire/address.hpp"

namespace weft::nic {

class Group;
class Groups;
struct GroupConfig;

class Endpoint final : public std::enable_shared_from_this<Endpoint>, public TxPort, private Receiver {
 public:
  Endpoint(Domain* domain, const EndpointConfig& config);

  void bind_cq(std::shared_ptr<CompletionQueue> cq, uint64_t flags);
  void bind_counter(std::shared_ptr<Counter> counter, uint64_t flags);
  void bind_av(std::shared_ptr<AddressVector> av);
  // Claims the address; without a pid the NIC chooses one. Throws EADDRINUSE, ENOAV, ENOCQ, EOPBADSTATE.
  // vnis: under FI_AV_AUTH_KEY all VNIs of the endpoint's address vector; otherwise empty.
  // try_only: releases the claimed address at once and checks nothing else.
  enum class Claim : uint8_t { keep, try_only };
  uint32_t enable(uint32_t nic, std::optional<uint32_t> pid, std::span<const uint16_t> vnis = {},
                  Claim claim = Claim::keep);
  void close() noexcept;
  size_t cancel(uint64_t context);
  // Directs transfers to this peer, the only one that may access the endpoint's regions. nullopt: no peer.
  void connect_to(const std::optional<wire::EpAddress>& peer);

  // Of an endpoint of the type FI_EP_MSG.
  [[nodiscard]] Connection& connection() noexcept { return connection_; }

  // Refused with rx_full if no more receives fit, with no_claim if the context has claimed no message.
  PostResult post_receive(const ReceiveArgs& args);
  // OPT_MIN_MULTI_RECV, for receives that are posted later.
  void set_min_multi_recv(uint64_t bytes) noexcept;
  // MessageConfig::mode and requests. False: too late, the endpoint is enabled.
  [[nodiscard]] bool set_match_mode(const MessageConfig& config) noexcept;
  // The oldest messages that no receive has taken, with the senders' fi_addr; *total: their number. Empty for an
  // endpoint that is not enabled or receives nothing. Throws std::bad_alloc.
  struct Unreceived {
    RxCompletion message;
    uint64_t source;  // FI_ADDR_NOTAVAIL: not in the address vector
  };
  [[nodiscard]] std::vector<Unreceived> unreceived(size_t max, size_t* total);
  // Begins to join a collective group (group.hpp). Throws EINVAL, EOPBADSTATE.
  std::shared_ptr<Group> join(GroupConfig config);
  // The group that calls name by this number; null: none of this endpoint's.
  [[nodiscard]] std::shared_ptr<Group> group(uint64_t address) const noexcept;

  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  [[nodiscard]] uint32_t generation() const noexcept { return generation_; }
  // The receive side; null until enable(), and for endpoints that receive no messages.
  [[nodiscard]] RxPort* port() const noexcept { return port_.load(std::memory_order_acquire); }

  // ---- for the other classes of the room ---------------------------------------------------------------------------
  // Called by Domain::run_software(), without a lock.
  void software_progress() noexcept;
  // Calls put(name, value) for each number and text that describes the endpoint: snapshot.cpp.
  template <typename Put>
  void put_state(Put&& put) const;
  // These hold the domain's lock. An access of a peer has ended: counts it. Delivers the entry of a peer's write with
  // data; returns the answer's flag: 0, NoRoom.
  [[nodiscard]] Counter* remote_counter(bool read) const noexcept {
    return read ? remote_read_cntr_.get() : remote_write_cntr_.get();
  }
  uint8_t receive_data(link::Peer& peer, const CqEntry& entry, bool* over) noexcept;
  [[nodiscard]] Receiver* receiver() noexcept { return this; }
  [[nodiscard]] bool shut() const noexcept { return shut_; }
  [[nodiscard]] CompletionQueue* rx_queue() const noexcept { return rx_cq_.get(); }
  [[nodiscard]] const Counter* recv_counter() const noexcept { return recv_cntr_.get(); }
  [[nodiscard]] const std::shared_ptr<Groups>& groups() const noexcept { return groups_; }
  Groups& make_groups();

 private:
  [[nodiscard]] uint32_t table_flags() const noexcept;
  void on_room() noexcept override;
  void on_receive_room() noexcept override;

  Connection connection_{*this};
  std::shared_ptr<CompletionQueue> rx_cq_;
  std::shared_ptr<Counter> remote_write_cntr_, remote_read_cntr_, recv_cntr_;
  std::unique_ptr<RxPort> port_owner_;
  std::atomic<RxPort*> port_{nullptr};  // set by enable(), if the endpoint receives messages
  bool rx_selective_ = false;
  bool shut_ = false;         // peers have been told that rx_cq_ has no room
  uint64_t shut_number_ = 0;  // grows each time that peers are told
  uint32_t index_ = 0, generation_ = 0;
  std::vector<uint16_t> vnis_;      // all VNIs of this endpoint
  std::shared_ptr<Groups> groups_;  // null: none was ever joined, nor has a peer called
};

}  // namespace weft::nic
