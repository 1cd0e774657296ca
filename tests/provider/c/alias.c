/* Aliases of an endpoint (fi_ep_alias): flags of their own for every kind of call, the order of closing, and calls that
 * are refused. The endpoint reports no operation by itself, its alias reports each. */
#include "pair.h"

static uint64_t out[2] = {5, 6}, got[2], memory[8];


static uint64_t flags_of(struct fid_ep* ep, uint64_t side) {
  uint64_t flags = side;
  MUST(fi_control(&ep->fid, FI_GETOPSFLAG, &flags));
  return flags & FI_COMPLETION;
}

/* One call of each table by a handle; the calls that are reported, in order. */
static void all_calls(const char* who, struct fid_ep* ep, uint64_t key, void* desc) {
  struct side *a = &sides[A], *b = &sides[B];
  uint64_t at = place(memory, 0);
  struct iovec iov = {out, 8};
  struct fi_cq_tagged_entry e;
  POST(fi_recv(b->ep, got, 8, desc, FI_ADDR_UNSPEC, &contexts[30]));
  POST(fi_trecv(b->ep, got, 8, desc, FI_ADDR_UNSPEC, 9, 0, &contexts[31]));
  POST(fi_send(ep, out, 8, desc, a->peer, &contexts[1]));
  MUST(next(b->rx, &e));
  POST(fi_tsend(ep, out, 8, desc, a->peer, 9, &contexts[2]));
  MUST(next(b->rx, &e));
  POST(fi_write(ep, out, 8, desc, a->peer, at, key, &contexts[3]));
  POST(fi_writev(ep, &iov, &desc, 1, a->peer, at, key, &contexts[4]));
  POST(fi_read(ep, got, 8, desc, a->peer, at, key, &contexts[5]));
  POST(fi_atomic(ep, out, 1, desc, a->peer, at, key, FI_UINT64, FI_SUM, &contexts[6]));
  POST(fi_fetch_atomic(ep, out, 1, desc, got, desc, a->peer, at, key, FI_UINT64, FI_SUM, &contexts[7]));
  /* The last call is reported for both. */
  struct fi_rma_iov to = {at, 8, key};
  struct fi_msg_rma m = {&iov, &desc, 1, a->peer, &to, 1, &contexts[8], 0};
  POST(fi_writemsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
  int seen = 0, last = 0;
  while (!last) {
    MUST(next(a->tx, &e));
    int which = (int)((struct fi_context2*)e.op_context - contexts);
    if (which == 8) last = 1;
    seen |= 1 << which;
  }
  while (seen != (1 << 8) && seen != 0x1fe) { /* those that the last call has overtaken */
    MUST(next(a->tx, &e));
    seen |= 1 << ((struct fi_context2*)e.op_context - contexts);
  }
  printf("%s reports", who);
  for (int i = 1; i <= 8; ++i)
    if (seen & 1 << i) printf(" %d", i);
  printf("\n");
}

int main(int argc, char** argv) {
  quiet = FI_SELECTIVE_COMPLETION;
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
  struct side *a = &sides[A], *b = &sides[B];
  uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, of_side = FI_TRANSMIT;
  struct fid_mr *mr = region(B, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE, 300), *local = NULL;
  void* desc = NULL;
  if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
    local = region(A, out, sizeof(out), all, 301);
    desc = fi_mr_desc(local);
  }
  MUST(fi_control(&a->ep->fid, FI_SETOPSFLAG, &of_side)); /* no flags by default */

  struct fid_ep *loud, *second, *none = NULL;
  MUST(fi_ep_alias(a->ep, &loud, FI_TRANSMIT | FI_COMPLETION));
  printf("default flags: endpoint %d, alias %d\n", flags_of(a->ep, FI_TRANSMIT) != 0, flags_of(loud, FI_TRANSMIT) != 0);
  all_calls("the endpoint", a->ep, fi_mr_key(mr), desc);
  all_calls("the alias", loud, fi_mr_key(mr), desc);
  POST(fi_inject_write(loud, out, 8, a->peer, place(memory, 8), fi_mr_key(mr)));
  POST(fi_read(loud, got, 8, desc, a->peer, place(memory, 0), fi_mr_key(mr), &contexts[9]));
  say("after an inject", a->tx);

  char name[512], same[512];
  size_t size = sizeof(name), length = sizeof(same);
  MUST(fi_getname(&a->ep->fid, name, &size));
  MUST(fi_getname(&loud->fid, same, &length));
  printf("one address: %d\n", size == length && memcmp(name, same, size) == 0);
  MUST(fi_ep_alias(loud, &second, FI_TRANSMIT)); /* without the first one's flags */
  printf("alias of an alias: %d\n", flags_of(second, FI_TRANSMIT) != 0);
  of_side = FI_TRANSMIT | FI_COMPLETION;
  MUST(fi_control(&second->fid, FI_SETOPSFLAG, &of_side));
  printf("after FI_SETOPSFLAG: endpoint %d, alias %d\n", flags_of(a->ep, FI_TRANSMIT) != 0,
         flags_of(second, FI_TRANSMIT) != 0);
  MUST(fi_close(&loud->fid));
  POST(fi_write(second, out, 8, desc, a->peer, place(memory, 0), fi_mr_key(mr), &contexts[10]));
  say("one alias is closed", a->tx);
  /* A receive of an alias is canceled by the endpoint. */
  POST(fi_recv(second, got, 8, desc, FI_ADDR_UNSPEC, &contexts[11]));
  MUST(fi_cancel(&a->ep->fid, &contexts[11]));
  say("a canceled receive", a->rx);

  refused("alias of no side", fi_ep_alias(a->ep, &none, FI_COMPLETION));
  refused("alias of both sides", fi_ep_alias(a->ep, &none, FI_TRANSMIT | FI_RECV));
  if (local != NULL) MUST(fi_close(&local->fid));
  refused("fi_close of an endpoint with an alias", fi_close(&a->ep->fid));
  if (argc > 2) { /* an endpoint that is not enabled, and many aliases */
    struct fid_ep *ep, *many[200];
    MUST(fi_endpoint(domain, info, &ep, NULL));
    for (int i = 0; i < 200; ++i) MUST(fi_ep_alias(ep, &many[i], i & 1 ? FI_RECV : FI_TRANSMIT));
    long r = fi_ep_alias(ep, &none, FI_TRANSMIT | FI_PEEK);
    refused("alias with flags that no call has", r);
    if (r == 0) MUST(fi_close(&none->fid));
    refused("fi_ep_bind of an alias", fi_ep_bind(many[0], &a->av->fid, 0));
    refused("fi_ep_bind of its endpoint, again", fi_ep_bind(ep, &a->av->fid, 0));
    refused("fi_write of an alias that is not enabled",
            fi_write(many[0], out, 8, desc, a->peer, place(memory, 0), fi_mr_key(mr), NULL));
    MUST(fi_ep_bind(many[0], &b->tx->fid, FI_TRANSMIT));
    MUST(fi_ep_bind(many[1], &b->rx->fid, FI_RECV));
    MUST(fi_enable(many[2]));
    POST(fi_write(many[199], out, 8, desc, a->peer, place(memory, 0), fi_mr_key(mr), &contexts[12]));
    say("the last alias", b->tx);
    of_side = FI_TRANSMIT | FI_REMOTE_CQ_DATA; /* fi_send has no data, so the flag is not its */
    (void)fi_control(&second->fid, FI_SETOPSFLAG, &of_side);
    struct fi_cq_tagged_entry e = {0};
    POST(fi_recv(b->ep, got, 8, desc, FI_ADDR_UNSPEC, &contexts[13]));
    POST(fi_send(second, out, 8, desc, a->peer, &contexts[14]));
    MUST(next(b->rx, &e));
    printf("a send without data has data: %d\n", (e.flags & FI_REMOTE_CQ_DATA) != 0);
    for (int i = 0; i < 200; ++i) MUST(fi_close(&many[i]->fid));
    MUST(fi_close(&ep->fid));
  }
  MUST(fi_close(&second->fid));
  MUST(fi_close(&mr->fid));
  end();
  return 0;
}
