// cpp/nic/cm_port.hpp: the connection messages of one endpoint, and its reports to the event queue.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "nic/args.hpp"
#include "nic/cm.hpp"
#include "nic/op.hpp"
#include "wire/frame.hpp"

namespace weft::nic {

class TxPort;

class CmPort {
 public:
  explicit CmPort(TxPort& tx) noexcept : tx_(tx) {}

  // ---- for callers without a lock ----------------------------------------------------------------------------------
  // The queue receives, with the token, arriving messages and the outcomes of sent ones.
  // listens: the endpoint accepts connection requests.
  void bind(std::shared_ptr<CmQueue> queue, uint64_t token, bool listens);
  // Posts a message to the endpoint at `to`. Refused like transfers when queues are full.
  PostResult send(const wire::EpAddress& to, CmKind kind, uint64_t connection, std::span<const std::byte> data);

  // A listener closes: refuses requests from now on, and rejects those that wait.
  void refuse_waiting() noexcept;

  // ---- for the other classes of the room, which hold the domain's lock ---------------------------------------------
  [[nodiscard]] bool bound() const noexcept { return queue_ != nullptr; }
  // A local event; the token is filled in. Out of memory the event is lost.
  void tell(CmEvent event) noexcept;
  // A peer's message.
  Status take(CmEvent event) noexcept;
  // A peer is lost: tells the endpoint that is connected to it, or that awaits its answer.
  void on_peer_down(const std::shared_ptr<link::Peer>& peer) noexcept;
  // The number of the last connection request that the endpoint has sent.
  [[nodiscard]] uint64_t requested() const noexcept { return request_; }
  bool advance(Op* op);
  // Called by TxPort::finish(): the outcome of a message.
  void report(Op& op, const Route& route) noexcept;

 private:
  void tell_explained(CmEvent event, const Route& route) noexcept;  // with the text of a failure

  TxPort& tx_;
  std::shared_ptr<CmQueue> queue_;
  bool listens_ = false, takes_requests_ = false;
  uint64_t token_ = 0, request_ = 0;
  uint64_t asked_ = ~uint64_t{0};  // the fi_addr to which the last request went
};

}  // namespace weft::nic
