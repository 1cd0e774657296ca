/* One of two processes on any hosts: far PROVIDER SIDE END. It prints its address and key, and reads the peer's.
 * SIDE 0 also writes, reads and adds to the memory of side 1. END: "ends", or "lost": side 1 waits to be killed, and
 * side 0, when it reads a line, sends to it. */
#include <time.h>
#include <unistd.h>

#include "pair.h"

#define SIZE (300 << 10)
static char out[SIZE], in[SIZE], window[SIZE + 8];
static uint64_t old[1], one[1] = {5};

static void fill(char* buf, size_t size, int seed) {
  for (size_t i = 0; i < size; ++i) buf[i] = (char)(i * (size_t)seed + i / 251);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A result, or an explained end: the peer's host may be unreachable. */
static void expect(const char* what, struct fid_cq* cq) {
  struct fi_cq_tagged_entry e = {0};
  long n = next(cq, &e);
  if (n >= 0) return;
  printf("%s: error %ld\n", what, -n);
  exit(4);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  int side = atoi(argv[2]), lost = !strcmp(argv[3], "lost");
  setvbuf(stdout, NULL, _IOLBF, 0);
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
  struct side* s = &sides[A];
  unsigned char name[512] = {0}, peer[512] = {0};
  size_t size = sizeof(name);
  MUST(fi_getname(&s->ep->fid, name, &size));
  struct fid_mr* mr = region(A, window, sizeof(window), FI_REMOTE_READ | FI_REMOTE_WRITE, 1);
  struct fid_mr* out_mr = region(A, out, SIZE, FI_SEND | FI_WRITE | FI_READ, 2);
  struct fid_mr* in_mr = region(A, in, SIZE, FI_RECV, 3);
  void *d = fi_mr_desc(out_mr), *id = fi_mr_desc(in_mr);
  printf("me ");
  for (size_t i = 0; i < size; ++i) printf("%02x", name[i]);
  printf(" %" PRIx64 " %" PRIx64 "\n", fi_mr_key(mr), place(window, 0));
  char hex[1025];
  uint64_t key = 0, base = 0;
  if (scanf("%1024s %" SCNx64 " %" SCNx64, hex, &key, &base) != 3) return 2;
  for (size_t i = 0; i < strlen(hex) / 2; ++i) sscanf(hex + 2 * i, "%2hhx", &peer[i]);
  fi_addr_t to;
  if (fi_av_insert(s->av, peer, 1, &to, 0, NULL) != 1) return 3;
  char back[512];
  size = sizeof(back);
  MUST(fi_av_lookup(s->av, to, back, &size));
  if (memcmp(back, peer, size) != 0) puts("fi_av_lookup: another address");

  for (int i = 0; i < 40; ++i) {
    size_t length = i < 30 ? (size_t)i * i : (size_t)(i - 29) * 30000;
    memset(in, 0, length);
    POST(fi_trecv(s->ep, in, SIZE, id, FI_ADDR_UNSPEC, (uint64_t)i, 0, &contexts[1]));
    fill(out, length, i + side);
    POST(fi_tsend(s->ep, out, length, d, to, (uint64_t)i, &contexts[2]));
    expect("fi_tsend", s->tx);
    expect("fi_trecv", s->rx);
    fill(out, length, i + 1 - side);
    if (memcmp(in, out, length) != 0) printf("message %d: other bytes\n", i);
  }
  puts("40 messages each way");
  if (side == 0) {
    fill(out, SIZE, 7);
    POST(fi_write(s->ep, out, SIZE, d, to, base, key, &contexts[3]));
    expect("fi_write", s->tx);
    memset(out, 0, SIZE);
    POST(fi_read(s->ep, out, SIZE, d, to, base, key, &contexts[4]));
    expect("fi_read", s->tx);
    fill(in, SIZE, 7);
    printf("fi_read: %s\n", memcmp(in, out, SIZE) ? "other bytes" : "the same");
    struct fid_mr* one_mr = region(A, one, sizeof(one), FI_WRITE, 4);
    struct fid_mr* old_mr = region(A, old, sizeof(old), FI_READ, 5);
    for (int i = 0; i < 3; ++i) {
      POST(fi_fetch_atomic(s->ep, one, 1, fi_mr_desc(one_mr), old, fi_mr_desc(old_mr), to, base + SIZE, key, FI_UINT64,
                           FI_SUM, &contexts[5]));
      expect("fi_fetch_atomic", s->tx);
    }
    printf("fi_fetch_atomic: %" PRIu64 "\n", old[0]);
    MUST(fi_close(&one_mr->fid));
    MUST(fi_close(&old_mr->fid));
    POST(fi_tsend(s->ep, out, 1, d, to, 99, &contexts[6]));
    expect("fi_tsend", s->tx);
  } else {
    POST(fi_trecv(s->ep, in, SIZE, id, FI_ADDR_UNSPEC, 99, 0, &contexts[6]));
    expect("fi_trecv", s->rx);
    uint64_t sum;
    memcpy(&sum, window + SIZE, sizeof(sum));
    fill(out, SIZE, 7);
    printf("window: %s, %" PRIu64 "\n", memcmp(window, out, SIZE) ? "other bytes" : "the same", sum);
  }
  if (lost) {
    puts("ready");
    if (side == 1)
      for (;;) pause();
    char line[8];
    while (fgets(line, sizeof(line), stdin) != NULL && line[0] != 'g') {
    }
    /* It is longer than any message that travels ahead of its receive, so it cannot complete: the peer has no receive. */
    double began = now();
    long r;
    while ((r = fi_tsend(s->ep, out, SIZE, d, to, 7, &contexts[7])) == -FI_EAGAIN) progress();
    struct fi_cq_tagged_entry e = {0};
    if (r == 0) r = next(s->tx, &e);
    printf("a send to the dead: error %ld\n", r < 0 ? -r : 0);
    fprintf(stderr, "seconds %.3f\n", now() - began);
  }
  MUST(fi_close(&mr->fid));
  MUST(fi_close(&out_mr->fid));
  MUST(fi_close(&in_mr->fid));
  end();
  return 0;
}
