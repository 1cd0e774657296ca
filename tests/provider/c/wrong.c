/* Wrong use of the provider cxi: each call is refused with its number, and the process goes on. argv[2]: a service that
 * allows VNI 7 and has room for two queues and one list entry. */
#include "service.h"

int main(int argc, char** argv) {
  static char memory[4096];
  modes &= ~FI_MR_PROV_KEY; /* the application's keys, of 32 bits */
  begin(argc, argv, FI_MSG | FI_RMA);
  uint32_t service = (uint32_t)atoi(argv[2]);
  struct side *a = &sides[A], *b = &sides[B];
  struct fid_domain* other;
  static char out[8];
  struct fid_mr *mr, *second;
  struct fid_cq* queues[4];
  struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .size = 16, .wait_obj = FI_WAIT_NONE};

  refused("fi_domain, a service that is not there", with_key(info, 999, 7, &other));
  refused("fi_domain, a VNI that the service does not allow", with_key(info, service, 8, &other));
  MUST(with_key(info, service, 7, &other));
  int n = 0;
  long r = 0;
  while (n < 4 && (r = fi_cq_open(other, &attr, &queues[n], NULL)) == 0) ++n;
  printf("fi_cq_open, %d queues of the service: %s\n", n, fi_strerror((int)-r));
  refused("fi_close of a domain with queues", fi_close(&other->fid));
  struct fid_ep* ep;
  struct fid_av* av;
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  MUST(fi_av_open(other, &av_attr, &av, NULL));
  MUST(fi_endpoint(other, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &queues[0]->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  refused("fi_enable, without list entries in the service", fi_enable(ep));
  refused("fi_close of a queue with an endpoint", fi_close(&queues[0]->fid));
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&av->fid));
  while (n > 0) MUST(fi_close(&queues[--n]->fid));
  MUST(fi_close(&other->fid));

  refused("fi_mr_reg, a key of 64 bits",
          fi_mr_reg(domain, memory, 64, FI_REMOTE_WRITE, 0, UINT64_C(1) << 40, 0, &mr, NULL));
  refused("fi_mr_reg, a key of 33 bits",
          fi_mr_reg(domain, memory, 64, FI_REMOTE_WRITE, 0, UINT64_C(1) << 32, 0, &mr, NULL));
  MUST(fi_mr_reg(domain, memory, 64, FI_REMOTE_WRITE, 0, 200, 0, &mr, NULL));
  refused("fi_mr_enable, not bound", fi_mr_enable(mr));
  struct fi_cq_tagged_entry e = {0};
  MUST(fi_mr_bind(mr, &b->ep->fid, 0));
  POST(fi_write(a->ep, out, 8, NULL, a->peer, 0, 200, &contexts[1]));
  refused("fi_write to a region that is not enabled", next(a->tx, &e));
  MUST(fi_mr_enable(mr));
  r = fi_mr_reg(domain, memory, 64, FI_REMOTE_WRITE, 0, 200, 0, &second, NULL);
  if (r == 0) {
    MUST(fi_mr_bind(second, &b->ep->fid, 0));
    r = fi_mr_enable(second);
    MUST(fi_close(&second->fid));
  }
  refused("a region with a key in use", r);
  POST(fi_write(a->ep, out, 8, NULL, a->peer, 60, 200, &contexts[1]));
  refused("fi_write past the end", next(a->tx, &e));
  POST(fi_read(a->ep, out, 8, NULL, a->peer, 0, 200, &contexts[1]));
  refused("fi_read without the right", next(a->tx, &e));
  POST(fi_write(a->ep, out, 8, NULL, a->peer, 60, 200, &contexts[1]));
  struct { /* a caller's room for the text, which is longer */
    char text[8], behind[8];
  } own = {"", "behind"};
  struct fi_cq_err_entry error = {.err_data = own.text, .err_data_size = sizeof(own.text)};
  while ((r = fi_cq_readerr(a->tx, &error, 0)) == -FI_EAGAIN) progress();
  MUST(r);
  printf("fi_cq_readerr: %zu bytes, %s\n", error.err_data_size, own.behind);
  refused("fi_write, a key of 64 bits",
          fi_write(a->ep, out, 8, NULL, a->peer, 0, UINT64_C(1) << 40, &contexts[1]));
  POST(fi_write(a->ep, out, 8, NULL, a->peer, 0, 200, &contexts[1]));
  refused("fi_write", next(a->tx, &e) == 1 ? 0 : -1);
  refused("fi_close of the domain first", fi_close(&domain->fid));
  refused("fi_close of the fabric first", fi_close(&fabric->fid));
  MUST(fi_close(&mr->fid));
  end();
  return 0;
}
