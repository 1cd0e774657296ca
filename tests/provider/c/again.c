/* Objects opened and closed again and again: each gives back all that it took of the service in argv[2], which allows VNI
 * 7 and has room for one queue and one counter, and for few list entries. */
#include "service.h"

static char memory[4096];

static struct fid_mr* bound(struct fid_domain* of, struct fid_ep* ep, struct fid_cntr* cntr, uint64_t access,
                            uint64_t key) {
  struct fid_mr* mr;
  MUST(fi_mr_reg(of, memory, 64, access, 0, key, 0, &mr, NULL));
  MUST(fi_mr_bind(mr, &ep->fid, 0));
  if (cntr != NULL) MUST(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
  return mr;
}

/* Regions that peers may write to, until the service has no list entry left; then one is closed, and one more fits. */
static int fill(struct fid_domain* of, struct fid_ep* ep) {
  struct fid_mr* mrs[64];
  int n = 0;
  while (n < 63) {
    mrs[n] = bound(of, ep, NULL, FI_REMOTE_WRITE, 200 + (uint64_t)n);
    long r = fi_mr_enable(mrs[n]);
    if (r == -FI_ENOSPC) break;
    MUST(r);
    ++n;
  }
  if (n < 63) MUST(fi_close(&mrs[n]->fid));
  MUST(fi_close(&mrs[n - 1]->fid));
  /* A region that is refused takes nothing, also while it is open. */
  struct fid_mr* second;
  long r = fi_mr_reg(of, memory, 64, FI_REMOTE_WRITE, 0, 200, 0, &second, NULL);
  int opened = r == 0;
  if (opened) {
    MUST(fi_mr_bind(second, &ep->fid, 0));
    r = fi_mr_enable(second);
  }
  refused("a key in use", r);
  mrs[n - 1] = bound(of, ep, NULL, FI_REMOTE_WRITE, 300);
  MUST(fi_mr_enable(mrs[n - 1]));
  if (opened) MUST(fi_close(&second->fid));
  for (int i = 0; i < n; ++i) MUST(fi_close(&mrs[i]->fid));
  return n;
}

static void round_of(struct fid_domain* of, int fills) {
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .size = 16, .wait_obj = FI_WAIT_NONE};
  struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  struct fid_cq* cq;
  struct fid_cntr *cntr, *second;
  struct fid_av* av;
  struct fid_ep *ep, *alias = NULL;
  MUST(fi_cq_open(of, &cq_attr, &cq, NULL));
  MUST(fi_cntr_open(of, &cntr_attr, &cntr, NULL));
  long r = fi_cntr_open(of, &cntr_attr, &second, NULL);
  if (r == 0) MUST(fi_close(&second->fid));
  MUST(fi_av_open(of, &av_attr, &av, NULL));
  MUST(fi_endpoint(of, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  MUST(fi_enable(ep));
  MUST(fi_ep_alias(ep, &alias, FI_TRANSMIT));
  struct fid_mr* mr = bound(of, ep, cntr, FI_REMOTE_WRITE, 1000);
  MUST(fi_mr_enable(mr));
  if (fills) refused("fi_close of a counter with a region", fi_close(&cntr->fid));
  MUST(fi_close(&mr->fid));
  if (fills) printf("a second counter: %s\nregions: %d\n", fi_strerror((int)-r), fill(of, ep));
  MUST(fi_close(&alias->fid));
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&cntr->fid));
  MUST(fi_close(&cq->fid));
}

int main(int argc, char** argv) {
  modes &= ~FI_MR_PROV_KEY;
  begin(argc, argv, FI_MSG | FI_RMA);
  for (int i = 0; i < 3; ++i) {
    struct fid_domain* of;
    MUST(with_key(info, (uint32_t)atoi(argv[2]), 7, &of));
    for (int j = 0; j < 10; ++j) round_of(of, i + j == 0);
    MUST(fi_close(&of->fid));
  }
  end();
  return 0;
}
