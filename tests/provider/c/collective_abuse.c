/* Legal, but unusual ends of groups, and sizes that no key has: PROVIDER MEMBERS CASE. */
#include <pthread.h>
#include <signal.h>

#include "group.h"

static const fi_addr_t none = FI_ADDR_NOTAVAIL;

/* The group of a failed join is closed after everything else. */
static void late(void) {
  struct fid_av_set* set = whole_set();
  struct fid_mc* mc = NULL;
  if (me != members - 1) MUST(fi_join_collective(ep, none, set, 0, &mc, &contexts[1]));
  meet();
  if (me == members - 1) raise(SIGKILL);
  if (joined(mc) == 0) puts("a join without a member");
  MUST(fi_close(&set->fid));
  finish(me == members - 2 ? SIGKILL : 0);
  MUST(fi_close(&mc->fid));
  puts("and the group");
}

/* Groups of one set, joined at the same time, closed in another order than they were joined in. */
static void many(void) {
  struct fid_av_set* set = whole_set();
  struct fid_mc* mcs[8];
  uint64_t in = 1ull << me, out;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 8; ++i) MUST(fi_join_collective(ep, none, set, 0, &mcs[i], &contexts[1]));
    for (int i = 0; i < 8; ++i) {
      struct fi_eq_entry entry;
      uint32_t event;
      long n;
      while ((n = fi_eq_read(eq, &event, &entry, sizeof(entry), 0)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
      MUST(n);
    }
    for (int i = 0; i < 8; ++i) {
      int at = (3 * i + round) % 8;
      out = 0;
      POST(fi_allreduce(ep, &in, 1, NULL, &out, NULL, fi_mc_addr(mcs[at]), FI_UINT64, FI_BOR, 0, &contexts[2]));
      done(&contexts[2]);
      if (out != (1ull << members) - 1) printf("group %d: %" PRIu64 "\n", at, out);
      if (at % 2) MUST(fi_close(&mcs[at]->fid));
    }
    for (int i = 6; i >= 0; i -= 2) MUST(fi_close(&mcs[i]->fid));
  }
  puts("24 groups");
  MUST(fi_close(&set->fid));
  meet();
  finish(0);
}

/* A group is closed while reductions are under way in it; then the members join another one. */
static void busy(void) {
  struct fid_av_set* set = whole_set();
  for (int round = 0; round < 20; ++round) {
    struct fid_mc* mc = join(set);
    uint64_t in = 1, out[4];
    for (int i = 0; i < 4; ++i)
      POST(fi_allreduce(ep, &in, 1, NULL, &out[i], NULL, fi_mc_addr(mc), FI_UINT64, FI_BOR, 0, &contexts[10 + i]));
    if (me == round % members) {
      MUST(fi_close(&mc->fid));
      mc = NULL;
    }
    for (int got = 0; got < 4;) { /* each call has a completion, or an error */
      struct fi_cq_tagged_entry e;
      struct fi_cq_err_entry error = {0};
      long n = fi_cq_read(cq, &e, 1);
      if (n == -FI_EAVAIL) n = fi_cq_readerr(cq, &error, 0);
      if (n == 1) ++got;
      if (n < 0 && n != -FI_EAGAIN) MUST(n);
    }
    if (mc != NULL) MUST(fi_close(&mc->fid));
    meet();
  }
  puts("each call ended");
  MUST(fi_close(&set->fid));
  finish(0);
}

/* A child that ends by exit(), with all that libfabric does then, while a join of its parent is in flight. */
static void forked(void) {
  struct fid_av_set* set = whole_set();
  struct fid_mc* mc;
  int status = -1;
  if (me == 0) {
    MUST(fi_join_collective(ep, none, set, 0, &mc, &contexts[1]));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
      MUST(fi_close(&mc->fid));
      MUST(fi_close(&set->fid));
      MUST(fi_close(&ep->fid));
      exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0) printf("the child ended with %d\n", status);
  }
  meet();
  if (me != 0) MUST(fi_join_collective(ep, none, set, 0, &mc, &contexts[1]));
  if (joined(mc) != 0) exit(4);
  POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[2]));
  done(&contexts[2]);
  puts("joined");
  meet();
  MUST(fi_close(&mc->fid));
  MUST(fi_close(&set->fid));
  finish(0);
}

/* The program ends without closing anything: groups are joined, and one is being joined. */
static void leaves(void) {
  struct fid_av_set* set = whole_set();
  struct fid_mc *mc = join(set), *second;
  POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[2]));
  done(&contexts[2]);
  meet();
  if (me == 0) {
    MUST(fi_join_collective(ep, none, set, 0, &second, &contexts[1]));
    puts("left");
    exit(0);
  }
  int status = 0;
  if (me < members - 1) wait(&status);
  exit(0);
}

static _Atomic int ready;
static struct fid_mc* failed_mc;

static void* close_group(void* delay) {
  ++ready;
  while (ready != 2) continue;
  for (volatile long i = 0; i < (long)delay; ++i) continue;
  MUST(fi_close(&failed_mc->fid));
  return NULL;
}

/* The group of a failed join and its endpoint are closed by two threads at once. The join fails because the endpoint of
 * the other member is closed. */
static void together(void) {
  for (int round = 0; round < 200; ++round) {
    struct fid_ep* gone;
    char name[NAME_BYTES];
    size_t size = sizeof(name);
    MUST(fi_endpoint(domain, info, &gone, NULL));
    MUST(fi_ep_bind(gone, &cq->fid, FI_TRANSMIT | FI_RECV));
    MUST(fi_ep_bind(gone, &av->fid, 0));
    MUST(fi_enable(gone));
    MUST(fi_getname(&gone->fid, name, &size));
    if (fi_av_insert(av, name, 1, &addrs[1], 0, NULL) != 1) exit(3);
    struct fi_av_set_attr attr = {.start_addr = none, .end_addr = none};
    struct fid_av_set* set;
    MUST(fi_av_set(av, &attr, &set, NULL));
    MUST(fi_av_set_insert(set, addrs[0]));
    MUST(fi_av_set_insert(set, addrs[1]));
    MUST(fi_close(&gone->fid));
    MUST(fi_join_collective(ep, none, set, 0, &failed_mc, &contexts[1]));
    struct fi_eq_entry entry;
    struct fi_eq_err_entry error = {0};
    uint32_t event;
    long n;
    while ((n = fi_eq_read(eq, &event, &entry, sizeof(entry), 0)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
    if (n != -FI_EAVAIL) exit(4);
    MUST(fi_eq_readerr(eq, &error, 0));
    pthread_t thread;
    ready = 0;
    pthread_create(&thread, NULL, close_group, (void*)(long)(round % 50 * 8));
    while (ready != 1) continue;
    ++ready;
    MUST(fi_close(&ep->fid));
    pthread_join(thread, NULL);
    MUST(fi_close(&set->fid));
    MUST(fi_av_remove(av, addrs, 2, 0));
    MUST(fi_endpoint(domain, info, &ep, NULL));
    MUST(fi_ep_bind(ep, &eq->fid, 0));
    MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    MUST(fi_ep_bind(ep, &av->fid, 0));
    MUST(fi_enable(ep));
    size = sizeof(name);
    MUST(fi_getname(&ep->fid, name, &size));
    if (fi_av_insert(av, name, 1, &addrs[0], 0, NULL) != 1) exit(3);
  }
  finish(0);
}

static void keys(void) {
  struct fid_av_set* set;
  struct fid_mr* mr;
  static const size_t sizes[] = {SIZE_MAX, SIZE_MAX / 2, 1ull << 40, 257};
  char memory[64];
  uint8_t key[8] = {0};
  for (int i = 0; i < 4; ++i) {
    struct fi_av_set_attr attr = {.start_addr = none, .end_addr = none, .comm_key_size = sizes[i], .comm_key = key};
    struct iovec iov = {memory, sizeof(memory)};
    struct fi_mr_attr of_region = {.mr_iov = &iov, .iov_count = 1, .access = FI_SEND, .auth_key = key};
    of_region.auth_key_size = sizes[i];
    refused("fi_av_set", fi_av_set(av, &attr, &set, NULL));
    refused("fi_mr_regattr", fi_mr_regattr(domain, &of_region, 0, &mr));
  }
  finish(0);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  begin(argc, argv);
  static const struct {
    const char* name;
    void (*run)(void);
  } cases[] = {{"late", late}, {"many", many}, {"busy", busy}, {"forked", forked}, {"leaves", leaves}, {"keys", keys}, {"together", together}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i)
    if (!strcmp(cases[i].name, argv[3])) cases[i].run();
  return 0;
}
