/* Every call of fi_rma(3). */
#include "pair.h"

static char mine[1 << 20], theirs[1 << 20];

static void check(const char* what, size_t size) {
  printf("%s: %s\n", what, memcmp(mine, theirs, size) ? "other bytes" : "the same");
}
static void fill(char* buf, int seed) {
  for (size_t i = 0; i < sizeof(mine); ++i) buf[i] = (char)(i * (size_t)seed + i / 253);
}

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_RMA);
  struct fid_mr* local = region(A, mine, sizeof(mine), FI_READ | FI_WRITE, 1);
  struct fid_mr* remote = region(B, theirs, sizeof(theirs), FI_REMOTE_READ | FI_REMOTE_WRITE, 2);
  void* d = fi_mr_desc(local);
  uint64_t key = fi_mr_key(remote);
  struct fid_ep* a = sides[A].ep;
  struct fid_cq* tx = sides[A].tx;
  fi_addr_t to = sides[A].peer;

  for (size_t size = 1; size <= sizeof(mine); size *= 32) {
    fill(mine, 3);
    POST(fi_write(a, mine, size, d, to, place(theirs, 0), key, &contexts[1]));
    say("fi_write", tx);
    POST(fi_read(a, mine + size / 2, 1, d, to, place(theirs, 0), key, &contexts[2])); /* after the write */
    say("fi_read", tx);
    printf("%zu bytes: %s\n", size, memcmp(theirs, mine, size / 2) ? "other bytes" : "the same");
    fill(theirs, 5);
    POST(fi_read(a, mine, size, d, to, place(theirs, 0), key, &contexts[3]));
    say("fi_read", tx);
    check("fi_read", size);
  }
  struct iovec iov = {mine, 500};
  fill(mine, 7);
  POST(fi_writev(a, &iov, &d, 1, to, place(theirs, 0), key, &contexts[4]));
  say("fi_writev", tx);
  fill(theirs, 9);
  POST(fi_readv(a, &iov, &d, 1, to, place(theirs, 0), key, &contexts[5]));
  say("fi_readv", tx);
  check("fi_readv", 500);
  struct fi_rma_iov range = {place(theirs, 0), 500, key};
  struct fi_msg_rma m = {&iov, &d, 1, to, &range, 1, &contexts[6], 0};
  fill(mine, 11);
  POST(fi_writemsg(a, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
  say("fi_writemsg", tx);
  check("fi_writemsg", 500);
  fill(theirs, 13);
  POST(fi_readmsg(a, &m, FI_COMPLETION));
  say("fi_readmsg", tx);
  check("fi_readmsg", 500);
  fill(mine, 15);
  POST(fi_inject_write(a, mine, 64, to, place(theirs, 0), key));
  POST(fi_read(a, mine + 4096, 1, d, to, place(theirs, 0), key, &contexts[7]));
  say("fi_read", tx);
  check("fi_inject_write", 64);

  long r = fi_writedata(a, mine, 64, d, 42, to, place(theirs, 64), key, &contexts[8]);
  printf("fi_writedata: %ld\n", r);
  if (r == 0) {
    say("fi_writedata", tx);
    say("its data", sides[B].rx);
    POST(fi_inject_writedata(a, mine, 64, 43, to, place(theirs, 64), key));
    say("fi_inject_writedata", sides[B].rx);
  }

  MUST(fi_close(&remote->fid));
  MUST(fi_close(&local->fid));
  end();
  return 0;
}
