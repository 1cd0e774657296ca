/* Null pointers where a struct, a list or room for a result is needed: each call is refused, and the process goes on. */
#include "pair.h"

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
  struct fid_ep *a = sides[A].ep, *other;
  struct fid_domain* second;
  struct fid_mr* none;
  fi_addr_t to = sides[A].peer;
  char name[512];
  uint64_t word = 0;
  struct iovec iov = {&word, 8};
  struct fi_ioc ioc = {&word, 1};
  struct fi_msg message = {.iov_count = 1, .addr = to};
  struct fi_msg_rma transfer = {.msg_iov = &iov, .iov_count = 1, .addr = to, .rma_iov_count = 1};
  struct fi_msg_atomic atomic = {.msg_iov = &ioc, .iov_count = 1, .addr = to, .rma_iov_count = 1,
                                 .datatype = FI_UINT64, .op = FI_SUM};
  refused("fi_sendv", fi_sendv(a, NULL, NULL, 1, to, NULL));
  refused("fi_sendmsg", fi_sendmsg(a, &message, 0));
  refused("fi_recvv", fi_recvv(a, NULL, NULL, 1, to, NULL));
  refused("fi_tsendv", fi_tsendv(a, NULL, NULL, 1, to, 1, NULL));
  refused("fi_readv", fi_readv(a, NULL, NULL, 1, to, 0, 1, NULL));
  refused("fi_writemsg, no range", fi_writemsg(a, &transfer, 0));
  refused("fi_atomicv", fi_atomicv(a, NULL, NULL, 1, to, 0, 1, FI_UINT64, FI_SUM, NULL));
  refused("fi_atomicmsg, no range", fi_atomicmsg(a, &atomic, 0));
  refused("fi_ep_bind", fi_ep_bind(a, NULL, 0));
  refused("FI_ALIAS", fi_control(&a->fid, FI_ALIAS, NULL));
  refused("fi_endpoint", fi_endpoint(domain, NULL, &other, NULL));
  refused("fi_domain", fi_domain(fabric, NULL, &second, NULL));
  refused("fi_query_atomic", fi_query_atomic(domain, FI_UINT64, FI_SUM, NULL, 0));
  refused("fi_av_insert", fi_av_insert(sides[A].av, NULL, 1, &to, 0, NULL));
  refused("fi_av_remove", fi_av_remove(sides[A].av, NULL, 1, 0));
  struct fi_eq_attr writable = {.flags = FI_WRITE};
  struct fid_eq* eq;
  MUST(fi_eq_open(fabric, &writable, &eq, NULL));
  refused("fi_eq_write", fi_eq_write(eq, FI_NOTIFY, NULL, 8, 0));
  MUST(fi_close(&eq->fid));
  refused("fi_av_lookup", fi_av_lookup(sides[A].av, 0, name, NULL));
  refused("fi_getname", fi_getname(&a->fid, name, NULL));
  refused("fi_mr_regv", fi_mr_regv(domain, NULL, 1, FI_SEND, 0, 77, 0, &none, NULL));
  struct fi_info part = *info;
  part.tx_attr = NULL;
  refused("fi_endpoint, no tx_attr", fi_endpoint(domain, &part, &other, NULL));
  part.domain_attr = NULL;
  refused("fi_domain, no domain_attr", fi_domain(fabric, &part, &second, NULL));
  fi_addr_t any = FI_ADDR_UNSPEC;
  refused("fi_send", fi_send(a, NULL, 8, NULL, to, &contexts[0]));
  refused("fi_inject", fi_inject(a, NULL, 8, to));
  refused("fi_recv", fi_recv(a, NULL, 8, NULL, any, &contexts[0]));
  refused("fi_tsend", fi_tsend(a, NULL, 1 << 20, NULL, to, 1, &contexts[0]));
  refused("fi_trecv", fi_trecv(a, NULL, 8, NULL, any, 1, 0, &contexts[0]));
  refused("fi_write", fi_write(a, NULL, 8, NULL, to, 0, 1, &contexts[0]));
  refused("fi_read", fi_read(a, NULL, 1 << 20, NULL, to, 0, 1, &contexts[0]));
  refused("fi_atomic", fi_atomic(a, NULL, 1, NULL, to, 0, 1, FI_UINT64, FI_SUM, &contexts[0]));
  refused("fi_fetch_atomic, no operand", fi_fetch_atomic(a, NULL, 1, NULL, &word, NULL, to, 0, 1, FI_UINT64, FI_SUM,
                                                         &contexts[0]));
  refused("fi_fetch_atomic, no result", fi_fetch_atomic(a, &word, 1, NULL, NULL, NULL, to, 0, 1, FI_UINT64, FI_SUM,
                                                        &contexts[0]));
  iov.iov_base = NULL;
  refused("fi_sendv of a NULL buffer", fi_sendv(a, &iov, NULL, 1, to, &contexts[0]));
  /* Without a length NULL is a buffer as good as any; the operand of FI_ATOMIC_READ is not used. */
  static uint64_t target = 5;
  struct fid_mr* mr = region(B, &target, 8, FI_REMOTE_READ | FI_REMOTE_WRITE, 9);
  MUST(fi_trecv(sides[B].ep, NULL, 0, NULL, any, 7, 0, &contexts[1]));
  POST(fi_tsend(a, NULL, 0, NULL, to, 7, &contexts[2]));
  say("fi_tsend of nothing", sides[A].tx);
  say("fi_trecv of nothing", sides[B].rx);
  POST(fi_fetch_atomic(a, NULL, 1, NULL, &word, NULL, to, place(&target, 0), fi_mr_key(mr), FI_UINT64, FI_ATOMIC_READ,
                       &contexts[3]));
  say("FI_ATOMIC_READ", sides[A].tx);
  printf("read %d\n", (int)word);
  MUST(fi_close(&mr->fid));
  end();
  return 0;
}
