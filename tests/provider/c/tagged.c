/* Every call of fi_tagged(3), with masks, peeks, claims and discards. */
#include "pair.h"

static char out[4096], in[4096];

int main(int argc, char** argv) {
  begin(argc, argv, FI_TAGGED);
  struct fid_mr* of_out = region(A, out, sizeof(out), FI_SEND, 1);
  struct fid_mr* of_in = region(B, in, sizeof(in), FI_RECV, 2);
  void *od = fi_mr_desc(of_out), *id = fi_mr_desc(of_in);
  struct fid_ep *a = sides[A].ep, *b = sides[B].ep;
  fi_addr_t to = sides[A].peer, from = sides[B].peer;
  for (size_t i = 0; i < sizeof(out); ++i) out[i] = (char)(i * 13);

  /* The second message goes to the first receive. */
  POST(fi_trecv(b, in, 100, id, from, 7, 0, &contexts[1]));
  POST(fi_trecv(b, in + 100, 100, id, FI_ADDR_UNSPEC, 0x20, 0xf, &contexts[2]));
  POST(fi_tsend(a, out, 10, od, to, 0x25, &contexts[3]));
  POST(fi_tsend(a, out, 20, od, to, 7, &contexts[4]));
  say("fi_tsend", sides[A].tx);
  say("fi_tsend", sides[A].tx);
  say("fi_trecv", sides[B].rx);
  say("fi_trecv", sides[B].rx);

  struct iovec iov = {out + 5, 60}, to_iov = {in, 100};
  POST(fi_trecvv(b, &to_iov, &id, 1, from, 1, 0, &contexts[5]));
  POST(fi_tsendv(a, &iov, &od, 1, to, 1, &contexts[6]));
  say("fi_tsendv", sides[A].tx);
  say("fi_trecvv", sides[B].rx);
  printf("%s\n", memcmp(in, out + 5, 60) ? "other bytes" : "the same");

  struct fi_msg_tagged m = {&iov, &od, 1, to, 2, 0, &contexts[7], 55}, r = {&to_iov, &id, 1, from, 2, 0, &contexts[8], 0};
  POST(fi_trecvmsg(b, &r, FI_COMPLETION));
  POST(fi_tsendmsg(a, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA));
  say("fi_tsendmsg", sides[A].tx);
  say("fi_trecvmsg", sides[B].rx);

  POST(fi_trecv(b, in, 100, id, from, 3, 0, &contexts[9]));
  POST(fi_tinject(a, out, 16, to, 3));
  say("fi_tinject", sides[B].rx);
  POST(fi_trecv(b, in, 100, id, from, 3, 0, &contexts[10]));
  POST(fi_tsenddata(a, out, 16, od, 99, to, 3, &contexts[11]));
  say("fi_tsenddata", sides[A].tx);
  say("fi_trecv", sides[B].rx);
  POST(fi_trecv(b, in, 100, id, from, 3, 0, &contexts[12]));
  POST(fi_tinjectdata(a, out, 16, 98, to, 3));
  say("fi_tinjectdata", sides[B].rx);

  POST(fi_trecv(b, in, 100, id, from, 4, 0, &contexts[13]));
  printf("fi_cancel: %ld\n", (long)fi_cancel(&b->fid, &contexts[13]));
  say("canceled", sides[B].rx);

  /* A peek of nothing; then of a message, which is claimed and received. */
  struct fi_msg_tagged peek = {NULL, NULL, 0, from, 5, 0, &contexts[14], 0};
  POST(fi_trecvmsg(b, &peek, FI_PEEK | FI_COMPLETION));
  say("peek of nothing", sides[B].rx);
  POST(fi_tinject(a, out + 2, 24, to, 5));
  for (;;) {
    struct fi_cq_tagged_entry e = {0};
    POST(fi_trecvmsg(b, &peek, FI_PEEK | FI_CLAIM | FI_COMPLETION));
    long n = next(sides[B].rx, &e);
    if (n == -FI_ENOMSG) continue;
    printf("peek and claim: %ld, %zu bytes, tag %" PRIu64 "\n", n, e.len, e.tag);
    break;
  }
  struct fi_msg_tagged claim = {&to_iov, &id, 1, from, 5, 0, &contexts[14], 0};
  POST(fi_trecvmsg(b, &claim, FI_CLAIM | FI_COMPLETION));
  say("claimed", sides[B].rx);
  printf("%s\n", memcmp(in, out + 2, 24) ? "other bytes" : "the same");

  MUST(fi_close(&of_out->fid));
  MUST(fi_close(&of_in->fid));
  end();
  return 0;
}
