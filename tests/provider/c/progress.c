/* Whether a thread that polls an empty queue yields the core: where nobody posts, while another thread posts, and once it
 * has posted an operation itself (FI_THREAD_SAFE). */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pair.h"

#define POLLS 20480 /* the provider makes fewer between two yields, however long these take */
#define STEP 32     /* polls between two posts: a poll at which a yield is due always finds that something was posted */

static char memory[64];
static uint64_t key;
static _Thread_local int polls, yields;
static _Atomic long turn; /* even: the poster's */

/* In place of the C library's, for the provider too. */
int sched_yield(void) {
  yields += polls;
  return (int)syscall(SYS_sched_yield);
}

static void wait_for(long mine) {
  while (turn % 2 != mine) syscall(SYS_sched_yield);
}

static void post(void) { POST(fi_inject_write(sides[A].ep, memory, 8, sides[A].peer, place(memory, 0), key)); }

static const char* yields_or_not(int beside_a_poster) {
  struct fi_cq_tagged_entry e;
  yields = 0;
  for (int i = 0; i < POLLS; ++i) {
    if (beside_a_poster && i % STEP == 0) {
      ++turn;
      wait_for(1);
    }
    polls = 1;
    fi_cq_read(sides[A].rx, &e, 1);
    polls = 0;
  }
  return yields != 0 ? "yields" : "does not yield";
}

static void* poller(void* unused) {
  (void)unused;
  printf("nobody posts: %s\n", yields_or_not(0));
  printf("another thread posts: %s\n", yields_or_not(1));
  post();
  printf("it posts, too: %s\n", yields_or_not(1));
  return NULL;
}

int main(int argc, char** argv) {
  threading = FI_THREAD_SAFE;
  begin(argc, argv, FI_RMA);
  struct fid_mr* mr = region(B, memory, sizeof(memory), FI_REMOTE_WRITE, 5);
  key = fi_mr_key(mr);
  turn = 1; /* the poller's first ++turn gives the poster its turn */
  pthread_t thread;
  pthread_create(&thread, NULL, poller, NULL);
  for (int i = 0; i < 2 * POLLS / STEP; ++i) {
    wait_for(0);
    post();
    ++turn;
  }
  pthread_join(thread, NULL);
  MUST(fi_close(&mr->fid));
  end();
  return 0;
}
