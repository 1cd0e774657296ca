// tests/cpp/stepwise.hpp: does something between any two instructions of a call, as another thread or process could.
#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WEFT_TEST_STEPWISE 1

#include <ucontext.h>
#include <x86intrin.h>
#include <csignal>
#include <cstdint>

#include <functional>

namespace weft::test {

inline constinit thread_local uint64_t t_steps_left = 0;
inline constinit thread_local const std::function<void()>* t_other = nullptr;

// Calls work(), and other() in the midst of it, after `steps` of its instructions. False: work() has fewer.
// The processor's trap flag ends each instruction with a signal; in the signal's handler the flag is off.
template <typename Work>
[[gnu::noinline]] bool interrupted(uint64_t steps, Work&& work, const std::function<void()>& other) {
  constexpr uint64_t kTrap = 0x100;
  struct sigaction mine{}, old{};
  mine.sa_flags = SA_SIGINFO;
  mine.sa_sigaction = [](int, siginfo_t*, void* context) {
    if (t_other == nullptr || t_steps_left-- != 0) return;
    (*std::exchange(t_other, nullptr))();
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~static_cast<greg_t>(kTrap);
  };
  ::sigaction(SIGTRAP, &mine, &old);
  t_steps_left = steps;
  t_other = &other;
  __writeeflags(__readeflags() | kTrap);
  work();
  __writeeflags(__readeflags() & ~kTrap);
  ::sigaction(SIGTRAP, &old, nullptr);
  return std::exchange(t_other, nullptr) == nullptr;
}

}  // namespace weft::test

#endif
