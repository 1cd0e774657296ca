/* Every call of fi_msg(3). */
#include "pair.h"

static char out[1 << 20], in[1 << 20];

static int same(size_t from, size_t size) { return memcmp(out + from, in, size) == 0; }

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG);
  struct fid_mr* of_out = region(A, out, sizeof(out), FI_SEND, 1);
  struct fid_mr* of_in = region(B, in, sizeof(in), FI_RECV, 2);
  void *od = fi_mr_desc(of_out), *id = fi_mr_desc(of_in);
  struct fid_ep *a = sides[A].ep, *b = sides[B].ep;
  fi_addr_t to = sides[A].peer, from = sides[B].peer;
  for (size_t i = 0; i < sizeof(out); ++i) out[i] = (char)(i * 7 + i / 251);

  for (size_t size = 0; size <= sizeof(out); size = size ? size * 8 : 1) {
    memset(in, 0, sizeof(in));
    POST(fi_recv(b, in, sizeof(in), id, FI_ADDR_UNSPEC, &contexts[1]));
    POST(fi_send(a, out, size, od, to, &contexts[2]));
    say("fi_send", sides[A].tx);
    say("fi_recv", sides[B].rx);
    printf("%zu bytes are %s\n", size, same(0, size) ? "the same" : "other bytes");
  }
  struct iovec iov[2] = {{out + 5, 100}, {out + 105, 40}}, to_iov[2] = {{in, 100}, {in + 100, 100}};
  void *ods[2] = {od, od}, *ids[2] = {id, id};
  size_t sends = info->tx_attr->iov_limit > 1 ? 2 : 1, receives = info->rx_attr->iov_limit > 1 ? 2 : 1;
  if (sends == 1) iov[0].iov_len = 140;
  if (receives == 1) to_iov[0].iov_len = 200;
  POST(fi_recvv(b, to_iov, ids, receives, from, &contexts[3]));
  POST(fi_sendv(a, iov, ods, sends, to, &contexts[4]));
  say("fi_sendv", sides[A].tx);
  say("fi_recvv", sides[B].rx);
  printf("%s\n", same(5, 140) ? "the same" : "other bytes");

  struct fi_msg m = {.msg_iov = iov, .desc = ods, .iov_count = sends, .addr = to, .context = &contexts[5], .data = 77};
  struct fi_msg r = {.msg_iov = to_iov, .desc = ids, .iov_count = receives, .addr = from, .context = &contexts[6]};
  POST(fi_recvmsg(b, &r, FI_COMPLETION));
  POST(fi_sendmsg(a, &m, FI_REMOTE_CQ_DATA | FI_COMPLETION));
  say("fi_sendmsg", sides[A].tx);
  say("fi_recvmsg", sides[B].rx);

  POST(fi_recv(b, in, 64, id, from, &contexts[7]));
  POST(fi_inject(a, out + 9, 64, to));
  say("fi_inject", sides[B].rx);
  printf("%s\n", same(9, 64) ? "the same" : "other bytes");
  POST(fi_recv(b, in, 64, id, from, &contexts[8]));
  POST(fi_senddata(a, out, 10, od, 1234, to, &contexts[9]));
  say("fi_senddata", sides[A].tx);
  say("fi_recv", sides[B].rx);
  POST(fi_recv(b, in, 64, id, from, &contexts[10]));
  POST(fi_injectdata(a, out, 10, 4321, to));
  say("fi_injectdata", sides[B].rx);

  POST(fi_send(a, out + 3, 50, od, to, &contexts[14])); /* before its receive */
  progress();
  POST(fi_recv(b, in, 64, id, from, &contexts[15]));
  say("fi_send", sides[A].tx);
  say("unexpected", sides[B].rx);
  printf("%s\n", same(3, 50) ? "the same" : "other bytes");

  static struct fi_context2 many[100];
  for (int i = 0; i < 100; ++i) { /* more entries than a provider may take at once */
    POST(fi_recv(b, in, 8, id, from, &many[i]));
    POST(fi_inject(a, out, 8, to));
  }
  struct fi_cq_tagged_entry entries[128];
  memset(entries, 0, sizeof(entries));
  long n = 0, got;
  while (n < 100) {
    long asked = n < 90 ? 90 - n : 100 - n;
    got = fi_cq_read(sides[B].rx, entries + n, (size_t)asked);
    if (got == -FI_EAGAIN) {
      progress();
      continue;
    }
    MUST(got);
    n += got;
    if (got > asked) puts("fi_cq_read: more entries than asked");
  }
  int wrong = 0;
  for (int i = 0; i < 100; ++i) wrong += entries[i].op_context != &many[i] || entries[i].len != 8;
  printf("fi_cq_read of many: %ld entries, %d wrong\n", n, wrong);

  POST(fi_recv(b, in, 8, id, from, &contexts[11]));
  POST(fi_send(a, out, 32, od, to, &contexts[12]));
  say("fi_send", sides[A].tx);
  say("too long for its receive", sides[B].rx);

  POST(fi_recv(b, in, 8, id, from, &contexts[13]));
  printf("fi_cancel: %ld\n", (long)fi_cancel(&b->fid, &contexts[13]));
  say("canceled", sides[B].rx);

  MUST(fi_close(&of_out->fid));
  MUST(fi_close(&of_in->fid));
  end();
  return 0;
}
