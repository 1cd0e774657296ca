/* Null pointers where a struct, a list or room for a result is needed: each call is refused, and the process goes on. */
#include "pair.h"

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
  struct fid_ep *a = sides[A].ep, *other;
  struct fid_domain* second;
  struct fid_mr* region;
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
  refused("fi_av_lookup", fi_av_lookup(sides[A].av, 0, name, NULL));
  refused("fi_getname", fi_getname(&a->fid, name, NULL));
  refused("fi_mr_regv", fi_mr_regv(domain, NULL, 1, FI_SEND, 0, 77, 0, &region, NULL));
  end();
  return 0;
}
