/* Whether a poll that finds no entry, but serves the frame of a peer, counts as work: then the thread does not yield the
 * core. The frames are messages of this process to itself, which wait until a poll serves them. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pair.h"

#define POLLS 20480 /* the provider makes fewer between two yields, however long these take */
#define STEP 32     /* polls between two messages: fewer than between two yields */

static int polls, yields;

/* In place of the C library's, for the provider too. */
int sched_yield(void) {
  yields += polls;
  return (int)syscall(SYS_sched_yield);
}

static const char* yields_or_not(struct fid_cntr* cntr, int served) {
  struct fi_cq_tagged_entry e;
  yields = 0;
  for (int i = 0; i < POLLS; ++i) {
    if (served && i % STEP == 0) POST(fi_inject(sides[A].ep, &i, sizeof(i), sides[A].peer));
    polls = 1;
    if (cntr != NULL) {
      fi_cntr_read(cntr);
    } else {
      fi_cq_read(sides[A].rx, &e, 1);
    }
    polls = 0;
  }
  return yields != 0 ? "yields" : "does not yield";
}

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG);
  struct fid_cntr* cntr; /* of no endpoint: it counts nothing */
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  printf("an empty queue: %s\n", yields_or_not(NULL, 0));
  printf("an empty queue, serving: %s\n", yields_or_not(NULL, 1));
  printf("a counter: %s\n", yields_or_not(cntr, 0));
  printf("a counter, serving: %s\n", yields_or_not(cntr, 1));
  MUST(fi_close(&cntr->fid));
  end();
  return 0;
}
