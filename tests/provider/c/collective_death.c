/* The last member of a group dies by SIGKILL: argv[3] says when: "join", while the others join and it has not, "joining",
 * when it has called fi_join_collective and another has not, or "reduce", while the others wait for its contribution. */
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include "group.h"

static void failed(const char* what, void* context) {
  int more = 0;
  long r = completed(context, &more);
  printf("%s: err %ld, prov_errno %d\n", what, -r, more);
}

static int process; /* a descriptor of the last member's process */

static void know_the_last(void) {
  if (me == members - 1) __atomic_store_n(&common->last, getpid(), __ATOMIC_SEQ_CST);
  meet();
  process = (int)syscall(SYS_pidfd_open, common->last, 0);
  if (process < 0) exit(2);
}

static void until_its_end(void) {
  struct pollfd ended = {.fd = process, .events = POLLIN};
  while (poll(&ended, 1, -1) != 1) {
  }
}

static void die(void) {
  usleep(50000); /* the others' frames are under way, or have come */
  raise(SIGKILL);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  begin(argc, argv);
  int last = me == members - 1, killed = me == members - 2 ? SIGKILL : 0;
  know_the_last();
  struct fid_av_set* set = whole_set();
  struct fid_mc* mc = NULL;
  if (strcmp(argv[3], "reduce") != 0) {
    int waits = !strcmp(argv[3], "join") ? last : me == 0;
    if (!waits) MUST(fi_join_collective(ep, FI_ADDR_NOTAVAIL, set, 0, &mc, &contexts[1]));
    meet();
    if (last) die();
    if (waits) {
      until_its_end(); /* no member can hear of this one's join before */
      MUST(fi_join_collective(ep, FI_ADDR_NOTAVAIL, set, 0, &mc, &contexts[1]));
    }
    if (joined(mc) == 0) puts("a join without a member");
    refused("fi_barrier of a failed join", fi_barrier(ep, fi_mc_addr(mc), NULL));
    /* A failed join keeps nothing from being closed. */
    MUST(fi_close(&set->fid));
    MUST(fi_close(&mc->fid));
  } else {
    uint64_t in[2] = {1, (uint64_t)me}, out[2] = {77, 78};
    mc = join(set);
    for (int i = 0; i < 10; ++i) {
      POST(fi_allreduce(ep, in, 2, NULL, out, NULL, fi_mc_addr(mc), FI_UINT64, FI_BOR, 0, &contexts[2]));
      done(&contexts[2]);
    }
    meet();
    if (last) die();
    out[0] = 77;
    POST(fi_allreduce(ep, in, 2, NULL, out, NULL, fi_mc_addr(mc), FI_UINT64, FI_BOR, 0, &contexts[3]));
    POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[4]));
    failed("an allreduce without a member", &contexts[3]);
    failed("the barrier behind it", &contexts[4]);
    POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[5]));
    failed("a later barrier", &contexts[5]);
    printf("the result: %s\n", out[0] == 77 ? "as it was" : "written");
    MUST(fi_close(&mc->fid));
    MUST(fi_close(&set->fid));
  }
  finish(killed);
  return 0;
}
