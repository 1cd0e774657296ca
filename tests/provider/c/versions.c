/* Versions of the interface: an info, objects of every kind and a checked write, for each version that a program may
 * ask for and each way of registering memory that the version has. */
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include "must.h"

static char from[4096], to[4096];

static void try(unsigned major, unsigned minor, int mode) {
  unsigned version = FI_VERSION(major, minor);
  struct fi_info *hints = fi_allocinfo(), *info;
  hints->caps = FI_MSG | FI_RMA | FI_TAGGED;
  hints->mode = ~0ull;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = mode;
  int found = fi_getinfo(version, NULL, NULL, 0, hints, &info);
  fi_freeinfo(hints);
  if (found != 0) {
    printf(" %s", found == -FI_ENODATA ? "-" : fi_strerror(-found));
    return;
  }
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* av;
  struct fid_cq* cq;
  struct fid_ep* ep;
  struct fid_mr* mr;
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
  MUST(fi_av_open(domain, &av_attr, &av, NULL));
  MUST(fi_cq_open(domain, &cq_attr, &cq, NULL));
  MUST(fi_endpoint(domain, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  MUST(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
  MUST(fi_enable(ep));
  int of_domain = info->domain_attr->mr_mode;
  MUST(fi_mr_reg(domain, to, sizeof(to), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 3, 0, &mr, NULL));
  if (of_domain & FI_MR_ENDPOINT) {
    MUST(fi_mr_bind(mr, &ep->fid, 0));
    MUST(fi_mr_enable(mr));
  }
  char name[512];
  size_t size = sizeof(name);
  fi_addr_t self;
  MUST(fi_getname(&ep->fid, name, &size));
  MUST(fi_av_insert(av, name, 1, &self, 0, NULL) - 1);
  memset(from, (int)(minor + 1), sizeof(from));
  memset(to, 0, sizeof(to));
  int by_address = of_domain == FI_MR_BASIC || (of_domain & FI_MR_VIRT_ADDR) != 0;
  MUST(fi_write(ep, from, sizeof(from), NULL, self, by_address ? (uint64_t)to : 0, fi_mr_key(mr), NULL));
  struct fi_cq_tagged_entry entry;
  long n;
  while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
  }
  MUST(n);
  int same = info->fabric_attr->api_version == version && memcmp(from, to, sizeof(to)) == 0;
  printf(" %s", same ? "written" : "wrong");
  MUST(fi_close(&mr->fid));
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&cq->fid));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&fabric->fid));
  fi_freeinfo(info);
}

int main(void) {
  static const unsigned kVersions[][2] = {{1, 0},  {1, 4},  {1, 5},  {1, 9}, {1, 15}, {1, 17},
                                          {1, 18}, {1, 20}, {1, 22}, {2, 0}, {2, 5}};
  for (size_t i = 0; i < sizeof(kVersions) / sizeof(kVersions[0]); ++i) {
    if (FI_VERSION(kVersions[i][0], kVersions[i][1]) > fi_version()) continue;
    printf("%u.%u", kVersions[i][0], kVersions[i][1]);
    try(kVersions[i][0], kVersions[i][1], 0);
    try(kVersions[i][0], kVersions[i][1], FI_MR_BASIC);
    try(kVersions[i][0], kVersions[i][1], FI_MR_SCALABLE);
    try(kVersions[i][0], kVersions[i][1], FI_MR_ENDPOINT | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR);
    puts("");
  }
  return 0;
}
