/* Two providers in one process: each serves its own objects, refuses the other's, and outlives the other's end. */
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

#include "must.h"

struct user {
  struct fi_info* info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* av;
  struct fid_cq* cq;
  struct fid_ep* ep;
  fi_addr_t self;
};

static void begin(struct user* u, const char* provider) {
  struct fi_info* hints = fi_allocinfo();
  hints->fabric_attr->prov_name = strdup(provider);
  hints->caps = FI_MSG | FI_TAGGED;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
  MUST(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &u->info));
  fi_freeinfo(hints);
  MUST(fi_fabric(u->info->fabric_attr, &u->fabric, NULL));
  MUST(fi_domain(u->fabric, u->info, &u->domain, NULL));
  struct fi_av_attr av = {.type = FI_AV_TABLE};
  struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED};
  MUST(fi_av_open(u->domain, &av, &u->av, NULL));
  MUST(fi_cq_open(u->domain, &cq, &u->cq, NULL));
  MUST(fi_endpoint(u->domain, u->info, &u->ep, NULL));
  MUST(fi_ep_bind(u->ep, &u->av->fid, 0));
  MUST(fi_ep_bind(u->ep, &u->cq->fid, FI_SEND | FI_RECV));
  MUST(fi_enable(u->ep));
  char name[512];
  size_t size = sizeof(name);
  MUST(fi_getname(&u->ep->fid, name, &size));
  MUST(fi_av_insert(u->av, name, 1, &u->self, 0, NULL) - 1);
}

/* A message to itself. */
static void message(struct user* u, size_t bytes, char mark) {
  static char from[1 << 20], to[1 << 20];
  struct fi_context2 contexts[2];
  memset(from, mark, bytes);
  MUST(fi_trecv(u->ep, to, bytes, NULL, FI_ADDR_UNSPEC, 1, 0, &contexts[0]));
  MUST(fi_tsend(u->ep, from, bytes, NULL, u->self, 1, &contexts[1]));
  for (int found = 0; found < 2;) {
    struct fi_cq_tagged_entry entry;
    long n = fi_cq_read(u->cq, &entry, 1);
    if (n != -FI_EAGAIN) MUST(n);
    if (n > 0) found += (int)n;
  }
  if (memcmp(from, to, bytes) != 0) puts("other bytes arrive");
}

static void end(struct user* u) {
  MUST(fi_close(&u->ep->fid));
  MUST(fi_close(&u->cq->fid));
  MUST(fi_close(&u->av->fid));
  MUST(fi_close(&u->domain->fid));
  MUST(fi_close(&u->fabric->fid));
  fi_freeinfo(u->info);
}

int main(void) {
  struct user cxi, weft;
  begin(&cxi, "cxi");
  begin(&weft, "weft");
  for (int round = 0; round < 1000; ++round) {
    message(&cxi, 8, (char)round);
    message(&weft, 8, (char)round);
  }
  message(&cxi, 1 << 20, 1);
  message(&weft, 1 << 20, 2);
  struct fid_ep* ep;
  struct fid_domain* domain;
  MUST(fi_endpoint(cxi.domain, cxi.info, &ep, NULL));
  refused("fi_ep_bind of the other's queue", fi_ep_bind(ep, &weft.cq->fid, FI_SEND));
  refused("fi_ep_bind of the other's vector", fi_ep_bind(ep, &weft.av->fid, 0));
  MUST(fi_close(&ep->fid));
  refused("fi_endpoint of the other's info", fi_endpoint(cxi.domain, weft.info, &ep, NULL));
  refused("fi_domain of the other's info", fi_domain(cxi.fabric, weft.info, &domain, NULL));
  end(&cxi);
  message(&weft, 8, 3);
  begin(&cxi, "cxi");
  end(&weft);
  message(&cxi, 8, 4);
  end(&cxi);
  puts("closed");
  return 0;
}
