// cpp/nic/connection.hpp: the state of one connected endpoint, which the calls of fi_cm(3) and its peer's messages
// change.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "nic/args.hpp"
#include "nic/cm.hpp"

namespace weft::nic {

class Endpoint;

#define WEFT_CM_NEWS(X)                                                  \
  X(none, 0, "Nothing that an application hears of.")                    \
  X(connected, 1, "The endpoint is connected.")                          \
  X(rejected, 2, "The peer has rejected; the endpoint may try again.")   \
  X(failed, 3, "The request or the answer failed, or the peer is lost.") \
  X(ended, 4, "The peer has ended the connection, or is gone.")
WEFT_ENUM(CmNews, uint8_t, WEFT_CM_NEWS, "What a message of connecting means for an endpoint.");

#define WEFT_CM_STATES(X)                      \
  X(idle, 0, "No connection was asked for.")   \
  X(connecting, 1, "A request is under way.")  \
  X(accepting, 2, "An answer is under way.")   \
  X(connected, 3, "Transfers reach the peer.") \
  X(shut_down, 4, "The connection has ended.")
WEFT_ENUM(CmState, uint8_t, WEFT_CM_STATES, "The states of a connected endpoint.");

// The caller serializes the calls: by the lock of the event queue, from which the messages come.
class Connection {
 public:
  explicit Connection(Endpoint& ep) noexcept : ep_(ep) {}

  [[nodiscard]] CmState state() const noexcept { return state_; }
  [[nodiscard]] const std::optional<wire::EpAddress>& peer() const noexcept { return peer_; }
  [[nodiscard]] uint64_t number() const noexcept { return number_; }
  // Of an idle endpoint; number: of the connection, random. A refused post leaves the endpoint idle. Both throw
  // std::bad_alloc.
  PostResult connect(const wire::EpAddress& to, uint64_t number, std::span<const std::byte> data);
  PostResult accept(const wire::EpAddress& from, uint64_t number, std::span<const std::byte> data);
  // The call whose message has this kind: connect(), accept(), shutdown().
  PostResult step(CmKind kind, const wire::EpAddress& to, uint64_t number, std::span<const std::byte> data);
  // Tells the peer, if there is one.
  void shutdown();
  CmNews take(const CmEvent& message);

 private:
  void leave(CmState state);

  Endpoint& ep_;
  CmState state_ = CmState::idle;
  std::optional<wire::EpAddress> peer_;
  uint64_t number_ = 0;  // of the connection
};

}  // namespace weft::nic
