/* Wrong use of sets, joins, groups and their calls: what each call answers. One process: a group of one member, and one
 * whose other member never comes. */
#include "group.h"

static long set_of(fi_addr_t start, fi_addr_t end, size_t count, uint64_t stride, uint64_t flags, struct fid_av_set** set) {
  struct fi_av_set_attr attr = {
      .count = count, .start_addr = start, .end_addr = end, .stride = stride, .flags = flags};
  return fi_av_set(av, &attr, set, NULL);
}

static struct fid_av_set* empty_set(struct fid_av* of) {
  struct fi_av_set_attr attr = {.start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL};
  struct fid_av_set* set;
  MUST(fi_av_set(of, &attr, &set, NULL));
  return set;
}

static void sets(fi_addr_t self, fi_addr_t other, struct fid_av* second) {
  const fi_addr_t none = FI_ADDR_NOTAVAIL;
  struct fid_av_set *a, *b, *c;
  refused("fi_av_set with half a range", set_of(0, none, 1, 1, 0, &a));
  refused("fi_av_set with a stride alone", set_of(none, none, 1, 2, 0, &a));
  refused("fi_av_set backwards", set_of(1, 0, 1, 1, 0, &a));
  long r = set_of(0, 1, 0, 1, 0, &a);
  refused("fi_av_set of a range without a count", r);
  if (r == 0) MUST(fi_close(&a->fid));
  refused("fi_av_set with unknown flags", set_of(none, none, 0, 0, 1ull << 3, &a));
  uint8_t key[24] = {0};
  struct fi_av_set_attr keyed = {
      .start_addr = none, .end_addr = none, .comm_key_size = sizeof(key), .comm_key = key};
  refused("fi_av_set with a key of 24 bytes", fi_av_set(av, &keyed, &a, NULL));
  keyed.comm_key = NULL;
  refused("fi_av_set with the size of no key", fi_av_set(av, &keyed, &a, NULL));
  refused("fi_av_set without attributes", fi_av_set(av, NULL, &a, NULL));
  MUST(set_of(none, none, 0, 0, FI_UNIVERSE, &a));
  b = empty_set(av);
  c = empty_set(second);
  refused("fi_av_set_insert of a member", fi_av_set_insert(a, self));
  refused("fi_av_set_insert of nobody", fi_av_set_insert(a, FI_ADDR_NOTAVAIL));
  refused("fi_av_set_remove of a stranger", fi_av_set_remove(b, other));
  refused("fi_av_set_union of another vector", fi_av_set_union(a, c));
  refused("fi_av_set_intersect of another vector", fi_av_set_intersect(a, c));
  refused("fi_av_set_diff of another vector", fi_av_set_diff(a, c));
  refused("fi_av_set_remove", fi_av_set_remove(a, other));
  refused("fi_av_set_remove, again", fi_av_set_remove(a, other));
  MUST(fi_av_set_insert(b, other));
  MUST(fi_av_set_union(a, b));
  refused("fi_av_set_insert of a member of the union", fi_av_set_insert(a, other));
  MUST(fi_av_set_intersect(a, b));
  refused("fi_av_set_remove of what the intersection has not", fi_av_set_remove(a, self));
  MUST(fi_av_set_diff(a, b));
  refused("fi_av_set_remove of what the difference has not", fi_av_set_remove(a, other));
  fi_addr_t addr = 0;
  MUST(fi_av_set_addr(a, &addr));
  printf("fi_av_set_addr: %s\n", addr == FI_ADDR_NOTAVAIL ? "FI_ADDR_NOTAVAIL" : "an address");
  refused("fi_close of a vector with a set", fi_close(&second->fid));
  MUST(fi_close(&a->fid));
  MUST(fi_close(&b->fid));
  MUST(fi_close(&c->fid));
}

static void joins(fi_addr_t self, fi_addr_t other, struct fid_av* second) {
  const fi_addr_t none = FI_ADDR_NOTAVAIL;
  struct fid_mc* mc;
  struct fid_av_set *alone = empty_set(av), *wrong = empty_set(av), *foreign = empty_set(second);
  struct fid_ep *disabled, *bare;
  refused("fi_join_collective of an empty set", fi_join_collective(ep, none, wrong, 0, &mc, NULL));
  MUST(fi_av_set_insert(wrong, other));
  refused("fi_join_collective of a set without the endpoint", fi_join_collective(ep, none, wrong, 0, &mc, NULL));
  MUST(fi_av_set_insert(wrong, self));
  MUST(fi_av_set_insert(wrong, 77));
  refused("fi_join_collective of a number that is nobody's", fi_join_collective(ep, none, wrong, 0, &mc, NULL));
  MUST(fi_av_set_insert(foreign, self));
  refused("fi_join_collective of a set of another vector", fi_join_collective(ep, none, foreign, 0, &mc, NULL));
  MUST(fi_av_set_insert(alone, self));
  refused("fi_join_collective to an address", fi_join_collective(ep, 0, alone, 0, &mc, NULL));
  refused("fi_join_collective without a set", fi_join_collective(ep, none, NULL, 0, &mc, NULL));
  refused("fi_join", fi_join(ep, "", 0, &mc, NULL));
  MUST(fi_endpoint(domain, info, &disabled, NULL));
  refused("fi_join_collective before fi_enable", fi_join_collective(disabled, none, alone, 0, &mc, NULL));
  MUST(fi_close(&disabled->fid));
  MUST(fi_endpoint(domain, info, &bare, NULL));
  MUST(fi_ep_bind(bare, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(bare, &av->fid, 0));
  MUST(fi_enable(bare));
  refused("fi_join_collective without an event queue", fi_join_collective(bare, none, alone, 0, &mc, NULL));
  MUST(fi_close(&bare->fid));
  struct fi_info *less = fi_dupinfo(info), *found;
  less->caps = FI_MSG;
  less->tx_attr->caps = less->rx_attr->caps = 0;
  MUST(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, less, &found));
  found->caps &= ~FI_COLLECTIVE;
  MUST(fi_endpoint(domain, found, &bare, NULL));
  refused("fi_join_collective without FI_COLLECTIVE", fi_join_collective(bare, none, alone, 0, &mc, NULL));
  MUST(fi_close(&bare->fid));
  fi_freeinfo(less);
  fi_freeinfo(found);
  MUST(fi_close(&alone->fid));
  MUST(fi_close(&wrong->fid));
  MUST(fi_close(&foreign->fid));
}

static void calls(fi_addr_t self, fi_addr_t other) {
  struct fid_av_set *alone = empty_set(av), *both = empty_set(av);
  struct fid_mc *mc, *waiting;
  uint64_t in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {0};
  MUST(fi_av_set_insert(alone, self));
  MUST(fi_av_set_insert(both, self));
  MUST(fi_av_set_insert(both, other));
  MUST(fi_join_collective(ep, FI_ADDR_NOTAVAIL, both, 0, &waiting, &contexts[1]));
  refused("fi_barrier of a group that is not joined", fi_barrier(ep, fi_mc_addr(waiting), NULL));
  refused("fi_close of a set with a group", fi_close(&both->fid));
  refused("fi_close of an endpoint with a group", fi_close(&ep->fid));
  refused("fi_av_set_insert while a group uses the set", fi_av_set_insert(both, 78));
  MUST(fi_close(&waiting->fid));
  refused("fi_barrier of a closed group", fi_barrier(ep, fi_mc_addr(waiting), NULL));
  MUST(fi_join_collective(ep, FI_ADDR_NOTAVAIL, alone, 0, &mc, &contexts[1]));
  struct fi_eq_entry event;
  uint32_t number;
  long r;
  while ((r = fi_eq_read(eq, &number, &event, 16, 0)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
  refused("fi_eq_read of a join into 16 bytes", r);
  if (r >= 0 || joined(mc) < 0) exit(4); /* an event that was read does not come again */
  MUST(fi_join_collective(ep, FI_ADDR_NOTAVAIL, alone, 0, &waiting, &contexts[1]));
  while ((r = fi_eq_read(eq, &number, &event, sizeof(event), FI_PEEK)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
  MUST(r);
  MUST(fi_close(&waiting->fid));
  refused("fi_eq_read of a closed group's join", fi_eq_read(eq, &number, &event, sizeof(event), 0));
  fi_addr_t to = fi_mc_addr(mc);
  refused("fi_barrier of no group", fi_barrier(ep, 0, NULL));
  refused("fi_barrier2 with unknown flags", fi_barrier2(ep, to, 1ull << 3, NULL));
  refused("fi_allreduce of nothing", fi_allreduce(ep, in, 0, NULL, out, NULL, to, FI_UINT64, FI_BOR, 0, NULL));
  refused("fi_allreduce of 40 bytes", fi_allreduce(ep, in, 5, NULL, out, NULL, to, FI_UINT64, FI_BOR, 0, NULL));
  refused("fi_allreduce from NULL", fi_allreduce(ep, NULL, 1, NULL, out, NULL, to, FI_UINT64, FI_BOR, 0, NULL));
  refused("fi_allreduce into NULL", fi_allreduce(ep, in, 1, NULL, NULL, NULL, to, FI_UINT64, FI_BOR, 0, NULL));
  refused("fi_allreduce of an unknown datatype", fi_allreduce(ep, in, 1, NULL, out, NULL, to, 99, FI_BOR, 0, NULL));
  refused("fi_allreduce with an unknown operation",
          fi_allreduce(ep, in, 1, NULL, out, NULL, to, FI_UINT64, 99, 0, NULL));
  refused("fi_allreduce with FI_CSWAP", fi_allreduce(ep, in, 1, NULL, out, NULL, to, FI_UINT64, FI_CSWAP, 0, NULL));
  refused("fi_allreduce, bits of doubles", fi_allreduce(ep, in, 1, NULL, out, NULL, to, FI_DOUBLE, FI_BOR, 0, NULL));
  refused("fi_allreduce with unknown flags",
          fi_allreduce(ep, in, 1, NULL, out, NULL, to, FI_UINT64, FI_BOR, FI_INJECT, NULL));
  refused("fi_reduce to a root that is no member",
          fi_reduce(ep, in, 1, NULL, out, NULL, to, other, FI_UINT64, FI_BOR, 0, NULL));
  refused("fi_reduce without the root's result",
          fi_reduce(ep, in, 1, NULL, NULL, NULL, to, self, FI_UINT64, FI_BOR, 0, NULL));
  refused("fi_broadcast from a root that is no member",
          fi_broadcast(ep, in, 1, NULL, to, other, FI_UINT64, 0, NULL));
  refused("fi_alltoall", fi_alltoall(ep, in, 1, NULL, out, NULL, to, FI_UINT64, 0, NULL));
  refused("fi_allgather", fi_allgather(ep, in, 1, NULL, out, NULL, to, FI_UINT64, 0, NULL));
  refused("fi_gather", fi_gather(ep, in, 1, NULL, out, NULL, to, self, FI_UINT64, 0, NULL));
  refused("fi_scatter", fi_scatter(ep, in, 1, NULL, out, NULL, to, self, FI_UINT64, 0, NULL));
  refused("fi_reduce_scatter",
          fi_reduce_scatter(ep, in, 1, NULL, out, NULL, to, FI_UINT64, FI_SUM, 0, NULL));
  refused("fi_allreduce", fi_allreduce(ep, in, 4, NULL, out, NULL, to, FI_UINT64, FI_BOR, 0, &contexts[2]));
  done(&contexts[2]);
  printf("of one member: %" PRIu64 " %" PRIu64 "\n", out[0], out[3]);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) { /* the objects are the parent's */
    refused("in a child, fi_barrier", fi_barrier(ep, to, NULL));
    refused("in a child, fi_av_set_insert", fi_av_set_insert(alone, 79));
    refused("in a child, fi_join_collective", fi_join_collective(ep, FI_ADDR_NOTAVAIL, alone, 0, &waiting, NULL));
    refused("in a child, fi_close of the group", fi_close(&mc->fid));
    refused("in a child, fi_close of the set", fi_close(&alone->fid));
    fflush(stdout);
    _exit(0);
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) puts("the child failed");
  refused("after a fork, fi_barrier", fi_barrier(ep, to, &contexts[3]));
  done(&contexts[3]);
  MUST(fi_close(&mc->fid));
  MUST(fi_close(&alone->fid));
  MUST(fi_close(&both->fid));
}

static void queries(void) {
  struct fi_collective_attr attr = {.op = FI_SUM, .datatype = FI_INT64};
  refused("fi_query_collective of a barrier", fi_query_collective(domain, FI_BARRIER, NULL, 0));
  refused("fi_query_collective without attributes", fi_query_collective(domain, FI_ALLREDUCE, NULL, 0));
  refused("fi_query_collective with flags", fi_query_collective(domain, FI_ALLREDUCE, &attr, 1));
  refused("fi_query_collective of FI_ALLTOALL", fi_query_collective(domain, FI_ALLTOALL, &attr, 0));
  MUST(fi_query_collective(domain, FI_ALLREDUCE, &attr, 0));
  printf("sums: %zu of %zu bytes, %d members or more\n", attr.datatype_attr.count, attr.datatype_attr.size,
         attr.max_members >= 1 << 16 ? 1 << 16 : 0);
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  char* alone[] = {argv[0], argv[1], "1", NULL};
  struct fid_av* second;
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 4};
  struct fid_ep* absent;
  char name[NAME_BYTES];
  size_t size = sizeof(name);
  fi_addr_t other;
  begin(3, alone);
  MUST(fi_av_open(domain, &av_attr, &second, NULL));
  MUST(fi_endpoint(domain, info, &absent, NULL));
  MUST(fi_ep_bind(absent, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(absent, &second->fid, 0));
  MUST(fi_enable(absent));
  MUST(fi_getname(&absent->fid, name, &size));
  if (fi_av_insert(av, name, 1, &other, 0, NULL) != 1) return 3;
  sets(addrs[0], other, second);
  joins(addrs[0], other, second);
  calls(addrs[0], other);
  queries();
  MUST(fi_close(&absent->fid));
  MUST(fi_close(&second->fid));
  finish(0);
  return 0;
}
