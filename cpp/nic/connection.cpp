// cpp/nic/connection.cpp: see connection.hpp.
#include "nic/connection.hpp"

#include "nic/endpoint.hpp"

namespace weft::nic {

PostResult Connection::connect(const wire::EpAddress& to, uint64_t number, std::span<const std::byte> data) {
  number_ = number;
  state_ = CmState::connecting;
  const PostResult r = ep_.cm().send(to, CmKind::request, number_, data);
  if (r.refusal != Refusal::none) state_ = CmState::idle;
  return r;
}

PostResult Connection::accept(const wire::EpAddress& from, uint64_t number, std::span<const std::byte> data) {
  number_ = number;
  peer_ = from;
  state_ = CmState::accepting;
  ep_.connect_to(from);  // first: the peer may write at once
  const PostResult r = ep_.cm().send(from, CmKind::accept, number, data);
  if (r.refusal != Refusal::none) leave(CmState::idle);
  return r;
}

void Connection::leave(CmState state) {
  ep_.connect_to(std::nullopt);
  state_ = state;
  peer_.reset();
}

void Connection::shutdown() {
  if (state_ == CmState::connected && peer_) (void)ep_.cm().send(*peer_, CmKind::shutdown, number_, {});
  if (state_ == CmState::connected || state_ == CmState::accepting) {
    leave(CmState::shut_down);
  } else {
    state_ = CmState::shut_down;
  }
}

PostResult Connection::step(CmKind kind, const wire::EpAddress& to, uint64_t number, std::span<const std::byte> data) {
  if (kind == CmKind::request) return connect(to, number, data);
  if (kind == CmKind::accept) return accept(to, number, data);
  shutdown();
  return {};
}

CmNews Connection::take(const CmEvent& m) {
  const bool ours = m.connection == number_;
  const bool has_peer = state_ == CmState::connected || state_ == CmState::accepting;
  switch (m.kind) {
    case CmKind::accept:
      if (state_ != CmState::connecting || !ours) return CmNews::none;
      peer_ = m.source;
      state_ = CmState::connected;
      ep_.connect_to(m.source);
      return CmNews::connected;
    case CmKind::delivered:
      if (state_ != CmState::accepting || m.what != CmKind::accept) return CmNews::none;
      state_ = CmState::connected;
      return CmNews::connected;
    case CmKind::reject:
      if (state_ != CmState::connecting || !ours) return CmNews::none;
      state_ = CmState::idle;
      return CmNews::rejected;
    case CmKind::failed:
      if (!ours || (m.what != CmKind::request && m.what != CmKind::accept)) return CmNews::none;
      if (state_ != CmState::connecting && state_ != CmState::accepting) return CmNews::none;
      leave(m.what == CmKind::request ? CmState::idle : CmState::shut_down);
      return CmNews::failed;
    case CmKind::shutdown:
    case CmKind::lost:
      if (m.kind == CmKind::lost && state_ == CmState::connecting && ours) {  // nobody will answer the request
        leave(CmState::idle);
        return CmNews::failed;
      }
      if (!has_peer || (m.kind == CmKind::shutdown && m.source != *peer_)) return CmNews::none;
      leave(CmState::shut_down);
      return CmNews::ended;
    default:
      return CmNews::none;
  }
}

}  // namespace weft::nic
