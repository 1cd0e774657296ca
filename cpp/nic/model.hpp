// cpp/nic/model.hpp: the features that only Slingshot's hardware has for an endpoint: it counts traffic and knows the
// state of links, answers page requests, has a command queue, and lets operations overtake each other. Endpoints of
// providers without such hardware have no model, and each question here costs them one load. Callers hold the domain's
// lock.
#pragma once

#include <memory>
#include <optional>

#include "nic/command_queue.hpp"
#include "nic/paging.hpp"
#include "nic/reorder.hpp"
#include "nic/traffic.hpp"

namespace weft::nic {

struct EndpointConfig;

class Model {
 public:
  // No model where the configuration asks for none. The port and the aliases outlive the model. Throws std::bad_alloc.
  Model(TxPort& tx, const EndpointConfig& config, const Aliases& aliases);

  // The endpoint has got its address, at this NIC. Throws std::bad_alloc.
  void begin(Domain& domain, uint32_t nic) {
    if (parts_ != nullptr) parts_->traffic.begin(domain, nic);
  }
  // True if a posted operation has nothing to ask of the model.
  [[nodiscard]] bool is_plain() const noexcept {
    return parts_ == nullptr || (!parts_->commands && parts_->reorder == nullptr && parts_->pager.at_a_time() == 0);
  }

  // Traffic.
  [[nodiscard]] bool flows(const Route& route) const noexcept {
    return parts_ == nullptr || parts_->traffic.flows(route);
  }
  [[nodiscard]] bool is_down(Route& route) noexcept { return parts_ != nullptr && parts_->traffic.is_down(route); }
  [[nodiscard]] bool is_cut_off(const Route& route) const noexcept {
    return parts_ != nullptr && parts_->traffic.is_cut_off(route);
  }
  [[nodiscard]] bool counts() const noexcept { return parts_ != nullptr && parts_->traffic.counted(); }
  [[nodiscard]] uint16_t travel(OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key,
                                uint64_t flags) const noexcept {
    return parts_ != nullptr ? parts_->traffic.how(kind, family, datatype, key, flags) : 0;
  }
  void count(Route& route, OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key, uint64_t flags,
             uint64_t bytes, bool event, bool framed) noexcept {
    if (parts_ != nullptr) [[unlikely]]
      count_traffic(route, kind, family, datatype, key, flags, bytes, event, framed);
  }
  void count_message(uint64_t flags, uint64_t bytes) noexcept {
    if (parts_ != nullptr) [[unlikely]]
      parts_->traffic.count_message(flags, bytes);
  }

  // The others; null: the endpoint has none.
  [[nodiscard]] CommandQueue* commands() const noexcept {
    return parts_ != nullptr && parts_->commands ? &*parts_->commands : nullptr;
  }
  [[nodiscard]] Reorder* reorder() const noexcept { return parts_ != nullptr ? parts_->reorder.get() : nullptr; }
  [[nodiscard]] Pager* pager() const noexcept {
    return parts_ != nullptr && parts_->pager.at_a_time() != 0 ? &parts_->pager : nullptr;
  }

 private:
  // Out of line: inlined, it cost every put 2 ns, for registers that the call saves.
  [[gnu::noinline]] void count_traffic(Route& route, OpKind kind, AtomicFamily family, Datatype datatype, uint64_t key,
                                       uint64_t flags, uint64_t bytes, bool event, bool framed) noexcept;

  struct Parts {
    Parts(TxPort& tx, const EndpointConfig& config, const Aliases& aliases);
    Traffic traffic;
    Pager pager;
    std::optional<CommandQueue> commands;
    std::unique_ptr<Reorder> reorder;
  };
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft::nic
