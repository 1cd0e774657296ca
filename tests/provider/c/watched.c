/* Traffic for viewers and counters: 10 messages of 8 bytes, 5 writes of 4 KiB; then it says "ready", and waits for the
 * end of stdin. */
#include <unistd.h>

#include "pair.h"

static char buf[4096], memory[1 << 20];

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_RMA);
  struct side *a = &sides[A], *b = &sides[B];
  struct fid_mr* mr = region(B, memory, sizeof(memory), FI_REMOTE_WRITE, 7);
  struct fid_mr* local = region(A, buf, sizeof(buf), FI_SEND | FI_WRITE | FI_REMOTE_READ, 8);
  struct fi_cq_tagged_entry e = {0};
  for (int i = 0; i < 10; ++i) {
    POST(fi_recv(b->ep, memory, 8, fi_mr_desc(mr), FI_ADDR_UNSPEC, &contexts[1]));
    POST(fi_send(a->ep, buf, 8, fi_mr_desc(local), a->peer, &contexts[2]));
    if (next(a->tx, &e) < 0 || next(b->rx, &e) < 0) return 1;
  }
  for (int i = 0; i < 5; ++i) {
    POST(fi_write(a->ep, buf, sizeof(buf), fi_mr_desc(local), a->peer, place(memory, 0), fi_mr_key(mr), &contexts[3]));
    if (next(a->tx, &e) < 0) return 1;
  }
  puts("ready");
  fflush(stdout);
  while (getchar() != EOF) continue;
  MUST(fi_close(&local->fid));
  MUST(fi_close(&mr->fid));
  end();
  return 0;
}
