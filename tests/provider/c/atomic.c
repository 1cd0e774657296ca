/* Every call of fi_atomic(3). */
#include "pair.h"

static uint64_t mine[16], compare[16], result[16], theirs[16];

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_RMA | FI_ATOMIC);
  struct fid_mr* of_mine = region(A, mine, sizeof(mine), FI_READ | FI_WRITE, 1);
  struct fid_mr* of_compare = region(A, compare, sizeof(compare), FI_READ | FI_WRITE, 2);
  struct fid_mr* of_result = region(A, result, sizeof(result), FI_READ | FI_WRITE, 3);
  struct fid_mr* remote = region(B, theirs, sizeof(theirs), FI_REMOTE_READ | FI_REMOTE_WRITE, 4);
  void *d = fi_mr_desc(of_mine), *cd = fi_mr_desc(of_compare), *rd = fi_mr_desc(of_result);
  uint64_t key = fi_mr_key(remote), at = place(theirs, 0);
  struct fid_ep* a = sides[A].ep;
  struct fid_cq* tx = sides[A].tx;
  fi_addr_t to = sides[A].peer;
  size_t count = 0;
  printf("fi_atomicvalid: %d\n", fi_atomicvalid(a, FI_UINT64, FI_SUM, &count));
  printf("fi_fetch_atomicvalid: %d\n", fi_fetch_atomicvalid(a, FI_UINT64, FI_ATOMIC_READ, &count));
  printf("fi_compare_atomicvalid: %d\n", fi_compare_atomicvalid(a, FI_UINT64, FI_CSWAP, &count));
  struct fi_atomic_attr attr;
  printf("fi_query_atomic: %d\n", fi_query_atomic(domain, FI_UINT64, FI_CSWAP, &attr, FI_COMPARE_ATOMIC));
  printf("bytes %zu\n", attr.size);

  theirs[0] = 5;
  mine[0] = 10;
  POST(fi_atomic(a, mine, 1, d, to, at, key, FI_UINT64, FI_SUM, &contexts[1]));
  say("fi_atomic", tx);
  POST(fi_fetch_atomic(a, mine, 1, d, result, rd, to, at, key, FI_UINT64, FI_SUM, &contexts[2]));
  say("fi_fetch_atomic", tx);
  printf("%" PRIu64 " then %" PRIu64 "\n", result[0], theirs[0]);
  compare[0] = 25;
  mine[0] = 1000;
  POST(fi_compare_atomic(a, mine, 1, d, compare, cd, result, rd, to, at, key, FI_UINT64, FI_CSWAP, &contexts[3]));
  say("fi_compare_atomic", tx);
  printf("%" PRIu64 " then %" PRIu64 "\n", result[0], theirs[0]);
  POST(fi_fetch_atomic(a, NULL, 1, NULL, result, rd, to, at, key, FI_UINT64, FI_ATOMIC_READ, &contexts[4]));
  say("atomic read", tx);
  printf("%" PRIu64 "\n", result[0]);

  struct fi_ioc v = {mine, 1}, c = {compare, 1}, r = {result, 1};
  mine[0] = 3;
  POST(fi_atomicv(a, &v, &d, 1, to, at, key, FI_UINT64, FI_SUM, &contexts[5]));
  say("fi_atomicv", tx);
  POST(fi_fetch_atomicv(a, &v, &d, 1, &r, &rd, 1, to, at, key, FI_UINT64, FI_SUM, &contexts[6]));
  say("fi_fetch_atomicv", tx);
  compare[0] = 1006;
  POST(fi_compare_atomicv(a, &v, &d, 1, &c, &cd, 1, &r, &rd, 1, to, at, key, FI_UINT64, FI_CSWAP, &contexts[7]));
  say("fi_compare_atomicv", tx);
  printf("%" PRIu64 " then %" PRIu64 "\n", result[0], theirs[0]);
  struct fi_rma_ioc range = {at, 1, key};
  struct fi_msg_atomic m = {&v, &d, 1, to, &range, 1, FI_UINT64, FI_SUM, &contexts[8], 0};
  POST(fi_atomicmsg(a, &m, FI_COMPLETION));
  say("fi_atomicmsg", tx);
  m.context = &contexts[9];
  POST(fi_fetch_atomicmsg(a, &m, &r, &rd, 1, FI_COMPLETION));
  say("fi_fetch_atomicmsg", tx);
  m.op = FI_CSWAP;
  compare[0] = 9;
  m.context = &contexts[10];
  POST(fi_compare_atomicmsg(a, &m, &c, &cd, 1, &r, &rd, 1, FI_COMPLETION));
  say("fi_compare_atomicmsg", tx);
  printf("%" PRIu64 " then %" PRIu64 "\n", result[0], theirs[0]);
  mine[0] = 40;
  POST(fi_inject_atomic(a, mine, 1, to, at, key, FI_UINT64, FI_SUM));
  POST(fi_fetch_atomic(a, NULL, 1, NULL, result, rd, to, at, key, FI_UINT64, FI_ATOMIC_READ, &contexts[11]));
  say("after fi_inject_atomic", tx);
  printf("%" PRIu64 "\n", theirs[0]);

  MUST(fi_close(&remote->fid));
  MUST(fi_close(&of_mine->fid));
  MUST(fi_close(&of_compare->fid));
  MUST(fi_close(&of_result->fid));
  end();
  return 0;
}
