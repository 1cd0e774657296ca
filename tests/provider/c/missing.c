/* Calls that no object of Weft's has for C programs: each is refused. */
#include "pair.h"

#include <rdma/fi_collective.h>

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG);
  struct fid_ep* ep;
  struct fid_stx* stx;
  struct fid_poll* poll;
  struct fid_wait* wait;
  struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_UNSPEC};
  uint64_t words[1] = {0};
  struct fid_ep* a = sides[A].ep;
  refused("fi_scalable_ep", fi_scalable_ep(domain, info, &ep, NULL));
  refused("fi_stx_context", fi_stx_context(domain, NULL, &stx, NULL));
  refused("fi_srx_context", fi_srx_context(domain, NULL, &ep, NULL));
  refused("fi_poll_open", fi_poll_open(domain, NULL, &poll));
  refused("fi_wait_open", fi_wait_open(fabric, &wait_attr, &wait));
  refused("fi_tx_context", fi_tx_context(a, 0, NULL, &ep, NULL));
  refused("fi_alltoall", fi_alltoall(a, words, 1, NULL, words, NULL, 0, FI_UINT64, 0, NULL));
  end();
  return 0;
}
