/* One member of a group whose members are processes of any language: PROVIDER MEMBERS ME [END]. It prints its address,
 * reads those of all members, and prints what it receives. tests/provider/member.py does the same in Python.
 * END: the last member waits to be killed: "join", while the others wait for it to join, and close the group when they
 * read a line, or "reduce", while all are in a group, in which the others reduce when they read a line. */
#include "group.h"

static void say(const char* what) {
  puts(what);
  while (me == members - 1) pause();
}

static void until_told(void) {
  char line[8];
  while (fgets(line, sizeof(line), stdin) != NULL && line[0] != 'g') {
  }
}

static void joins_without_the_last(struct fid_av_set* set) {
  struct fid_mc* mc;
  if (me != members - 1) MUST(fi_join_collective(ep, FI_ADDR_NOTAVAIL, set, 0, &mc, &contexts[1]));
  say("joining");
  if (joined(mc) == 0) puts("a join without a member");
  until_told();
  MUST(fi_close(&mc->fid));
}

static void reduces_without_the_last(struct fid_av_set* set) {
  struct fid_mc* mc = join(set);
  int64_t in = 1, out = 77;
  say("in a group");
  until_told();
  POST(fi_allreduce(ep, &in, 1, NULL, &out, NULL, fi_mc_addr(mc), FI_INT64, FI_SUM, 0, &contexts[3]));
  int more = 0;
  long r = completed(&contexts[3], &more);
  printf("an allreduce without a member: err %ld, prov_errno %d; the result %" PRId64 "\n", -r, more, out);
  MUST(fi_close(&mc->fid));
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  members = atoi(argv[2]);
  me = atoi(argv[3]);
  setvbuf(stdout, NULL, _IOLBF, 0);
  open_member(argv[1]);
  unsigned char name[NAME_BYTES] = {0};
  size_t size = sizeof(name);
  MUST(fi_getname(&ep->fid, name, &size));
  printf("me ");
  for (size_t i = 0; i < size; ++i) printf("%02x", name[i]);
  puts("");
  for (int m = 0; m < members; ++m) {
    char hex[2 * NAME_BYTES + 1];
    unsigned char peer[NAME_BYTES] = {0};
    if (scanf("%512s", hex) != 1) return 2;
    for (size_t i = 0; i < strlen(hex) / 2; ++i) sscanf(hex + 2 * i, "%2hhx", &peer[i]);
    if (fi_av_insert(av, peer, 1, &addrs[m], 0, NULL) != 1) return 3;
  }
  struct fid_av_set* set = whole_set();
  for (int round = 0; round < 2; ++round) { /* the second group is joined while the first is open no more */
    struct fid_mc* mc = join(set);
    fi_addr_t to = fi_mc_addr(mc);
    int64_t in[4] = {me, 10 * me, -me, round}, out[4] = {0};
    POST(fi_barrier(ep, to, &contexts[2]));
    done(&contexts[2]);
    POST(fi_allreduce(ep, in, 4, NULL, out, NULL, to, FI_INT64, FI_SUM, 0, &contexts[3]));
    done(&contexts[3]);
    printf("sum %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n", out[0], out[1], out[2], out[3]);
    for (int root = 0; root < members; ++root) {
      uint32_t word = (uint32_t)(100 * round + me);
      double half = me + 0.5, most = 0;
      POST(fi_broadcast(ep, &word, 1, NULL, to, addrs[root], FI_UINT32, 0, &contexts[4]));
      done(&contexts[4]);
      POST(fi_reduce(ep, &half, 1, NULL, root == me ? &most : NULL, NULL, to, addrs[root], FI_DOUBLE, FI_MAX, 0,
                     &contexts[5]));
      done(&contexts[5]);
      printf("root %d: %u %g\n", root, word, root == me ? most : members - 0.5);
    }
    MUST(fi_close(&mc->fid));
  }
  if (argc > 4) strcmp(argv[4], "join") ? reduces_without_the_last(set) : joins_without_the_last(set);
  MUST(fi_close(&set->fid));
  me = members; /* it has no child */
  finish(0);
  return 0;
}
