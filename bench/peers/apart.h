/* Two processes that measure each other run on two processors: on one, each figure is the scheduler's. */
#pragma once
#include <sched.h>

/* The calling thread stays on the n-th of the processors that it may use; other threads stay where they are. Call it when
 * the library has started its threads, which would inherit the one processor. */
static inline void run_apart(int n) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < 2) return; /* a launcher has chosen already */
  n %= CPU_COUNT(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || n-- != 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}
