// cpp/host/world.hpp: which processes run, and the clock of what they do, for the objects of cpp/sync.
#pragma once

#include "sync/word.hpp"

namespace weft::host {

class HostWorld final : public sync::World {
 public:
  HostWorld();
  [[nodiscard]] sync::Who self() const noexcept override { return self_; }
  // Asks kill(2), and reads /proc/<pid>/stat: about 10 us. A zombie has ended, and so has a process whose pid another
  // process has now. A process that runs another program after exec() has the same start time, and counts as running.
  // Without the /proc of this pid namespace a process has ended only if no process has its pid.
  [[nodiscard]] bool gone(sync::Who who) noexcept override;
  [[nodiscard]] uint64_t now_ns() noexcept override;
  void fence_all() noexcept override;
  void take_part() noexcept override;

 private:
  sync::Who self_;
  bool sees_processes_ = false;  // /proc shows the processes of this pid namespace
};

}  // namespace weft::host
