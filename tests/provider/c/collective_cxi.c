/* What the collectives of cxi have beyond libfabric's interface (fi_cxi_ext.h): communication keys, operators and
 * accumulators. argv[3]: "keys", "operators", "busy", "selective" or "address" (argv[4]
 * joins). */
#include <math.h>

#include "group.h"

enum { kNone = 0, kMulticast = 1, kUnicast = 2, kRank = 3 };                 /* enum cxip_comm_key_type */
enum { kMinMaxLoc = 32, kRepSum = 33 };                                      /* enum cxip_coll_op */
#define PRE_REDUCED (1ull << 57)                                             /* FI_CXI_PRE_REDUCED */
struct key {                                                                 /* struct cxip_comm_key */
  uint32_t type, root, number;
  uint32_t discard;
};
struct int_loc {
  int64_t least;
  uint64_t least_at;
  int64_t most;
  uint64_t most_at;
};
struct accumulator {
  uint8_t bytes[64];
};

static struct fid_av_set* keyed_set(uint32_t type, uint32_t root, uint32_t number, int count) {
  struct key key = {type, root, number, 0};
  struct fi_av_set_attr attr = {.start_addr = FI_ADDR_NOTAVAIL,
                                .end_addr = FI_ADDR_NOTAVAIL,
                                .comm_key_size = sizeof(key),
                                .comm_key = (uint8_t*)&key};
  struct fid_av_set* set;
  MUST(fi_av_set(av, &attr, &set, NULL));
  for (int m = 0; m < count; ++m) MUST(fi_av_set_insert(set, type == kRank ? (fi_addr_t)m : addrs[m]));
  return set;
}

static void sum(struct fid_mc* mc, const char* what) {
  int64_t in = me + 1, out = 0;
  POST(fi_allreduce(ep, &in, 1, NULL, &out, NULL, fi_mc_addr(mc), FI_INT64, FI_SUM, 0, &contexts[2]));
  done(&contexts[2]);
  printf("%s: sum %" PRId64 "\n", what, out);
}

static void keys(void) {
  struct fid_av_set* set = keyed_set(kUnicast, 0, 0, members);
  struct fid_mc *mc = join(set), *ranks[4];
  sum(mc, "unicast");
  MUST(fi_close(&mc->fid));
  MUST(fi_close(&set->fid));
  set = keyed_set(kMulticast, 1, 77, members);
  mc = join(set);
  sum(mc, "multicast");
  MUST(fi_close(&mc->fid));
  MUST(fi_close(&set->fid));
  set = keyed_set(kMulticast, (uint32_t)members, 77, members);
  refused("a root that is no member", fi_join_collective(ep, FI_ADDR_NOTAVAIL, set, 0, &mc, NULL));
  MUST(fi_close(&set->fid));
  set = keyed_set(9, 0, 0, members);
  refused("a key of an unknown type", fi_join_collective(ep, FI_ADDR_NOTAVAIL, set, 0, &mc, NULL));
  MUST(fi_close(&set->fid));
  set = keyed_set(kRank, 0, 4, 4);
  refused("a rank beyond the set", fi_join_collective(ep, FI_ADDR_NOTAVAIL, set, 0, &mc, NULL));
  MUST(fi_close(&set->fid));
  struct fid_av_set* sets[4];
  for (int rank = 0; rank < 4; ++rank) { /* four members in this process, of one endpoint */
    sets[rank] = keyed_set(kRank, 0, (uint32_t)rank, 4);
    MUST(fi_join_collective(ep, FI_ADDR_NOTAVAIL, sets[rank], 0, &ranks[rank], &contexts[10 + rank]));
  }
  for (int n = 0; n < 4;) {
    struct fi_eq_entry entry;
    uint32_t event;
    long r = fi_eq_sread(eq, &event, &entry, sizeof(entry), 10000, 0);
    if (r == -FI_EAGAIN) continue;
    MUST(r);
    if (event == FI_JOIN_COMPLETE) ++n;
  }
  uint32_t words[4];
  for (uint32_t rank = 0; rank < 4; ++rank) {
    words[rank] = rank;
    MUST(fi_broadcast(ep, &words[rank], 1, NULL, fi_mc_addr(ranks[rank]), 3, FI_UINT32, 0, &contexts[2]));
  }
  for (int rank = 0; rank < 4; ++rank) done(&contexts[2]);
  printf("ranks: %u %u %u %u\n", words[0], words[1], words[2], words[3]);
  for (int rank = 0; rank < 4; ++rank) {
    MUST(fi_close(&ranks[rank]->fid));
    MUST(fi_close(&sets[rank]->fid));
  }
}

static void operators(struct fid_mc* mc) {
  fi_addr_t to = fi_mc_addr(mc);
  struct int_loc in = {me == 1 ? -5 : me, (uint64_t)me, me == 1 ? -5 : me, (uint64_t)me}, out = {0};
  POST(fi_allreduce(ep, &in, 1, NULL, &out, NULL, to, FI_INT64, kMinMaxLoc, 0, &contexts[2]));
  done(&contexts[2]);
  printf("least %" PRId64 " of %" PRIu64 ", most %" PRId64 " of %" PRIu64 "\n", out.least, out.least_at, out.most,
         out.most_at);
  double part = me == 0 ? 1e30 : me == 1 ? 1.0 : -1e30, total = 0;
  POST(fi_allreduce(ep, &part, 1, NULL, &total, NULL, to, FI_DOUBLE, kRepSum, 0, &contexts[2]));
  done(&contexts[2]);
  printf("a reproducible sum: %g\n", total);
  double values[4] = {me, -me, me == 1 ? NAN : 2.0, 0.5}, least[4] = {0};
  POST(fi_allreduce(ep, values, 4, NULL, least, NULL, to, FI_DOUBLE, FI_MIN, 0, &contexts[2]));
  done(&contexts[2]);
  printf("minima: %g %g %s %g\n", least[0], least[1], isnan(least[2]) ? "NaN" : "a number", least[3]);
  refused("REPSUM of two", fi_allreduce(ep, values, 2, NULL, least, NULL, to, FI_DOUBLE, kRepSum, 0, NULL));

  struct accumulator mine = {{0}}, more = {{0}};
  for (int64_t i = 1; i <= 3; ++i) { /* folded here, without a completion */
    int64_t value = i * (me + 1);
    MUST(fi_allreduce(ep, &value, 1, NULL, &mine, NULL, to, FI_INT64, FI_SUM, FI_MORE, &contexts[3]));
  }
  MUST(fi_allreduce(ep, &mine, 0, NULL, &more, NULL, 0, 0, 0, PRE_REDUCED | FI_MORE, &contexts[3]));
  int64_t sums[4] = {0};
  POST(fi_allreduce(ep, &more, 0, NULL, sums, NULL, to, 0, 0, PRE_REDUCED, &contexts[4]));
  done(&contexts[4]);
  printf("accumulated: %" PRId64 "\n", sums[0]);
  struct accumulator none = {{0}}, odd;
  memset(&odd, 0x5a, sizeof(odd));
  refused("an empty accumulator", fi_allreduce(ep, &none, 0, NULL, sums, NULL, to, 0, 0, PRE_REDUCED, NULL));
  int64_t value = 1;
  refused("FI_MORE into other bytes", fi_allreduce(ep, &value, 1, NULL, &odd, NULL, to, FI_INT64, FI_SUM, FI_MORE, NULL));
  refused("FI_MORE into NULL", fi_allreduce(ep, &value, 1, NULL, NULL, NULL, to, FI_INT64, FI_SUM, FI_MORE, NULL));
  refused("a broadcast with FI_MORE", fi_broadcast(ep, &value, 1, NULL, to, addrs[0], FI_INT64, FI_MORE, NULL));
  int64_t overflow = INT64_MAX, result = 7;
  POST(fi_allreduce(ep, &overflow, 1, NULL, &result, NULL, to, FI_INT64, FI_SUM, 0, &contexts[5]));
  int prov_errno = 0;
  long r = completed(&contexts[5], &prov_errno);
  printf("a sum that overflows: %ld, %d; the result %s\n", r, prov_errno, result == 7 ? "as it was" : "written");
  POST(fi_allreduce(ep, &value, 1, NULL, &result, NULL, to, FI_INT64, me ? FI_SUM : FI_MIN, 0, &contexts[5]));
  r = completed(&contexts[5], &prov_errno);
  printf("members that disagree: %ld, %d\n", r, prov_errno);
}

static void busy(struct fid_mc* mc) {
  if (me == 0) {
    for (int i = 0; i < 8; ++i) MUST(fi_barrier(ep, fi_mc_addr(mc), &contexts[20 + i]));
    refused("a ninth", fi_barrier(ep, fi_mc_addr(mc), &contexts[28]));
  }
  meet();
  if (me != 0) {
    for (int i = 0; i < 8; ++i) POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[20 + i]));
  }
  for (int i = 0; i < 8; ++i) done(&contexts[20 + i]); /* in the order of the calls */
  POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[28]));
  done(&contexts[28]);
}

/* FI_SELECTIVE_COMPLETION: calls complete by their flags, or the endpoint's. */
static void selective(struct fid_mc* mc) {
  uint64_t flags = FI_TRANSMIT | FI_COMPLETION;
  POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[2]));
  POST(fi_barrier2(ep, fi_mc_addr(mc), FI_COMPLETION, &contexts[3]));
  done(&contexts[3]); /* the first has no completion */
  MUST(fi_control(&ep->fid, FI_SETOPSFLAG, &flags));
  POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[4]));
  done(&contexts[4]);
  puts("selective");
}

/* Joins of one set, all of them in flight; how many succeed, and what the others get. Then member 0 waits for a line. */
static void addresses(int joins) {
  struct fid_av_set* set = whole_set();
  struct fid_mc* mcs[16];
  int good = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int i = 0; i < joins; ++i) MUST(fi_join_collective(ep, FI_ADDR_NOTAVAIL, set, 0, &mcs[i], &contexts[1]));
  for (int i = 0; i < joins;) {
    struct fi_eq_entry entry;
    uint32_t event;
    long n = fi_eq_read(eq, &event, &entry, sizeof(entry), 0);
    if (n > 0) ++good, ++i;
    if (n == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
    if (n != -FI_EAVAIL) continue;
    char text[512];
    struct fi_eq_err_entry error = {.err_data = text, .err_data_size = sizeof(text)};
    MUST(fi_eq_readerr(eq, &error, 0));
    printf("join: err %d, prov_errno %d: %.*s\n", error.err, error.prov_errno, (int)error.err_data_size, text);
    ++i;
  }
  printf("joined: %d\n", good);
  if (me == 0 && getchar() == EOF) exit(6);
  meet();
  for (int i = 0; i < joins; ++i) {
    long r = fi_close(&mcs[i]->fid);
    if (r != 0) printf("fi_close: %ld\n", r);
  }
  MUST(fi_close(&set->fid));
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  if (!strcmp(argv[3], "selective")) quiet = FI_SELECTIVE_COMPLETION;
  begin(argc, argv);
  if (!strcmp(argv[3], "keys")) {
    keys();
  } else if (!strcmp(argv[3], "address")) {
    addresses(argc > 4 ? atoi(argv[4]) : 1);
  } else {
    struct fid_av_set* set = whole_set();
    struct fid_mc* mc = join(set);
    (quiet ? selective : strcmp(argv[3], "busy") ? operators : busy)(mc);
    meet();
    MUST(fi_close(&mc->fid));
    MUST(fi_close(&set->fid));
  }
  finish(0);
  return 0;
}
