// cpp/nic/snapshot.hpp: the state of this process's NIC for viewers: domains, endpoints, queues, counters, peers.
//
// A NIC keeps no account for viewers. A snapshot reads the state that the data path needs anyway, when a viewer asks
// for one: the thread that makes progress calls Viewers::answer() between two rounds.
#pragma once

#include <cstddef>

namespace weft::nic {

class Nic;

// The viewers that wait for an answer (host/viewers.hpp). Called under the progress lock.
class Viewers {
 public:
  // Answers those that have asked, with Nic::snapshot(). Returns their number.
  virtual size_t answer(Nic& nic) noexcept = 0;

 protected:
  ~Viewers() = default;
};

}  // namespace weft::nic
