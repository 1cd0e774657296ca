/* Error numbers of calls that the provider's library checks by itself, not the policy helper: those of weft.fi under the
 * same provider. */
#include "pair.h"

static char memory[256];

static void queues(void) {
  struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
  struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
  struct fi_cntr_attr cntr_attr = {.wait_obj = FI_WAIT_NONE};
  struct fi_cq_tagged_entry e;
  struct fid_cq *deaf, *cq;
  struct fid_eq* eq;
  struct fid_cntr *cntr, *waits;
  int fd;
  MUST(fi_cq_open(domain, &attr, &deaf, NULL));
  attr.wait_obj = FI_WAIT_FD;
  MUST(fi_cq_open(domain, &attr, &cq, NULL));
  MUST(fi_eq_open(fabric, &eq_attr, &eq, NULL));
  MUST(fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
  MUST(fi_cntr_open(domain, NULL, &waits, NULL)); /* NULL: a counter that can be waited for */
  struct fid *of_deaf[] = {&deaf->fid}, *of_cq[] = {&cq->fid}, *of_eq[] = {&eq->fid}, *of_cntr[] = {&waits->fid};
  refused("fi_cq_sread under FI_WAIT_NONE", fi_cq_sread(deaf, &e, 1, NULL, 1));
  refused("FI_GETWAIT under FI_WAIT_NONE", fi_control(&deaf->fid, FI_GETWAIT, &fd));
  refused("FI_GETWAIT into nothing", fi_control(&cq->fid, FI_GETWAIT, NULL));
  refused("fi_trywait under FI_WAIT_NONE", fi_trywait(fabric, of_deaf, 1));
  refused("fi_trywait of a queue", fi_trywait(fabric, of_cq, 1));
  refused("fi_trywait of an event queue", fi_trywait(fabric, of_eq, 1));
  refused("fi_trywait of a counter", fi_trywait(fabric, of_cntr, 1));
  refused("fi_cntr_wait under FI_WAIT_NONE", fi_cntr_wait(cntr, 1, 1));
  refused("fi_cntr_wait without attributes", fi_cntr_wait(waits, 1, 1));
  struct fid_ep* ep;
  MUST(fi_endpoint(domain, info, &ep, NULL));
  refused("fi_ep_bind of an event queue with flags", fi_ep_bind(ep, &eq->fid, FI_READ));
  refused("fi_cancel before fi_enable", fi_cancel(&ep->fid, NULL));
  refused("fi_shutdown of a connectionless endpoint", fi_shutdown(ep, 0));
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&waits->fid));
  MUST(fi_close(&cntr->fid));
  MUST(fi_close(&eq->fid));
  MUST(fi_close(&cq->fid));
  MUST(fi_close(&deaf->fid));
}

static void regions(void) {
  struct iovec iov[64];
  struct fid_mr* mr;
  struct fid_cntr* cntrs[2];
  struct fid_ep* ep;
  for (int i = 0; i < 64; ++i) iov[i] = (struct iovec){memory + i, 1};
  for (int i = 0; i < 2; ++i) MUST(fi_cntr_open(domain, NULL, &cntrs[i], NULL));
  MUST(fi_endpoint(domain, info, &ep, NULL));
  refused("fi_mr_regv of 64 buffers", fi_mr_regv(domain, iov, 64, FI_REMOTE_READ, 0, 200, 0, &mr, NULL));
  refused("fi_mr_regv of none", fi_mr_regv(domain, iov, 0, FI_REMOTE_READ, 0, 200, 0, &mr, NULL));
  refused("fi_mr_reg with FI_DIRECTED_RECV",
          fi_mr_reg(domain, memory, 8, FI_REMOTE_READ, 0, 200, FI_DIRECTED_RECV, &mr, NULL));
  MUST(fi_mr_reg(domain, memory, 64, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 201, 0, &mr, NULL));
  refused("FI_REFRESH of a region", fi_control(&mr->fid, FI_REFRESH, NULL));
  refused("fi_mr_bind of a counter for reads", fi_mr_bind(mr, &cntrs[0]->fid, FI_REMOTE_READ));
  MUST(fi_mr_bind(mr, &cntrs[0]->fid, FI_REMOTE_WRITE));
  refused("fi_mr_bind of a second counter", fi_mr_bind(mr, &cntrs[1]->fid, FI_REMOTE_WRITE));
  refused("fi_mr_bind of a disabled endpoint", fi_mr_bind(mr, &ep->fid, 0));
  if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) MUST(fi_mr_bind(mr, &sides[A].ep->fid, 0));
  MUST(fi_mr_enable(mr));
  refused("fi_mr_bind after fi_mr_enable", fi_mr_bind(mr, &cntrs[1]->fid, FI_REMOTE_WRITE));
  MUST(fi_close(&mr->fid));
  MUST(fi_mr_reg(domain, memory, 64, FI_READ, 0, 202, 0, &mr, NULL));
  refused("fi_mr_enable of local memory, not bound", fi_mr_enable(mr));
  MUST(fi_close(&mr->fid));
  MUST(fi_close(&ep->fid));
  for (int i = 0; i < 2; ++i) MUST(fi_close(&cntrs[i]->fid));
}

/* The address of the peer, inserted again. */
static void vectors(void) {
  struct side* a = &sides[A];
  char name[512];
  size_t size = sizeof(name);
  fi_addr_t again;
  MUST(fi_getname(&sides[B].ep->fid, name, &size));
  refused("fi_av_insert with FI_EVENT", fi_av_insert(a->av, name, 1, &again, FI_EVENT, NULL));
  refused("fi_av_remove with flags", fi_av_remove(a->av, &a->peer, 1, FI_MORE));
  if (fi_av_insert(a->av, name, 1, &again, 0, NULL) != 1 || again != a->peer) puts("the address has two numbers");
  MUST(fi_av_remove(a->av, &again, 1, 0));
  refused("fi_av_lookup after two insertions and one removal", fi_av_lookup(a->av, a->peer, name, &size));
  long r = fi_av_remove(a->av, &again, 1, 0);
  refused("fi_av_lookup after two of each", r ? r : fi_av_lookup(a->av, a->peer, name, &size));
}

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_RMA);
  queues();
  regions();
  vectors();
  end();
  return 0;
}
