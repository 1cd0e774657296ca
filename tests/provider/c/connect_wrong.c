/* Wrong use of connected endpoints by one process that is both sides; argv[1]: the provider. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "must.h"

enum { WAIT_MS = 20000 };

static const char* provider;
static struct fi_info* info;
static struct fid_fabric* fabric;
static struct fid_domain* domain;
static struct fid_eq *theirs, *ours; /* of the passive side and of the other */
static struct fid_cq* cq;

static struct fi_info* find(enum fi_ep_type type) {
  struct fi_info *hints = fi_allocinfo(), *found;
  hints->fabric_attr->prov_name = strdup(provider);
  hints->ep_attr->type = type;
  hints->caps = FI_MSG;
  MUST(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found));
  fi_freeinfo(hints);
  return found;
}

static struct fid_ep* endpoint(struct fid_domain* of, struct fi_info* what, struct fid_eq* eq) {
  struct fid_ep* ep;
  MUST(fi_endpoint(of, what, &ep, NULL));
  if (eq != NULL) MUST(fi_ep_bind(ep, &eq->fid, 0));
  if (of == domain) MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  return ep;
}

static struct fi_info* request(void) {
  struct fi_eq_cm_entry entry;
  uint32_t event;
  MUST(fi_eq_sread(theirs, &event, &entry, sizeof(entry), WAIT_MS, 0));
  if (event != FI_CONNREQ) exit(4);
  return entry.info;
}

static void failure(const char* what) {
  struct fi_eq_cm_entry entry;
  struct fi_eq_err_entry error = {0};
  uint32_t event;
  if (fi_eq_sread(ours, &event, &entry, sizeof(entry), WAIT_MS, 0) != -FI_EAVAIL) exit(5);
  refused("fi_eq_read beside an error", fi_eq_read(ours, &event, &entry, sizeof(entry), 0));
  MUST(fi_eq_readerr(ours, &error, 0));
  printf("%s: %s\n", what, fi_strerror(error.err));
}

static void without_connections(void) {
  struct fi_info* rdm = find(FI_EP_RDM);
  struct fid_domain* other;
  struct fid_pep* pep;
  refused("fi_passive_ep of FI_EP_RDM", fi_passive_ep(fabric, rdm, &pep, NULL));
  MUST(fi_domain(fabric, rdm, &other, NULL));
  struct fid_ep* ep = endpoint(other, rdm, NULL);
  refused("fi_connect of FI_EP_RDM", fi_connect(ep, "weft://0/1/1", NULL, 0));
  refused("fi_accept of FI_EP_RDM", fi_accept(ep, NULL, 0));
  refused("fi_shutdown of FI_EP_RDM", fi_shutdown(ep, 0));
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&other->fid));
  fi_freeinfo(rdm);
}

/* Requests that were read outlive their passive endpoint: an endpoint may take them, or nobody answers them. */
static void closed_listener(struct fid_ep* ep) {
  char name[256];
  size_t size = sizeof(name);
  struct fid_pep *pep, *next;
  struct fid_ep* other = endpoint(domain, info, ours);
  MUST(fi_passive_ep(fabric, info, &pep, NULL));
  MUST(fi_pep_bind(pep, &theirs->fid, 0));
  MUST(fi_listen(pep));
  MUST(fi_getname(&pep->fid, name, &size));
  MUST(fi_connect(ep, name, NULL, 0));
  struct fi_info* taken = request();
  MUST(fi_connect(other, name, NULL, 0));
  struct fi_info* left = request();
  MUST(fi_close(&pep->fid));
  MUST(fi_passive_ep(fabric, info, &next, NULL));
  MUST(fi_pep_bind(next, &theirs->fid, 0));
  MUST(fi_listen(next));
  refused("fi_reject of a closed endpoint's request", fi_reject(next, left->handle, NULL, 0));
  struct fid_ep* one = endpoint(domain, taken, theirs);
  MUST(fi_enable(one));
  MUST(fi_close(&one->fid));
  failure("an endpoint closed after the passive endpoint");
  MUST(fi_close(&next->fid));
  MUST(fi_close(&other->fid));
  fi_freeinfo(taken);
  fi_freeinfo(left);
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  provider = argv[1];
  info = find(FI_EP_MSG);
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
  MUST(fi_eq_open(fabric, &attr, &theirs, NULL));
  MUST(fi_eq_open(fabric, &attr, &ours, NULL));
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG};
  MUST(fi_cq_open(domain, &cq_attr, &cq, NULL));
  without_connections();

  struct fid_pep* pep;
  char name[256], data[300] = "";
  size_t size = sizeof(name);
  MUST(fi_passive_ep(fabric, info, &pep, NULL));
  refused("fi_listen without a queue", fi_listen(pep));
  refused("fi_pep_bind of a domain", fi_pep_bind(pep, &domain->fid, 0));
  refused("fi_pep_bind of NULL", fi_pep_bind(pep, NULL, 0));
  refused("fi_setname of NULL", fi_setname(&pep->fid, NULL, 64));
  refused("fi_getopt into NULL", fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, NULL, &size));
  MUST(fi_pep_bind(pep, &theirs->fid, 0));
  refused("fi_pep_bind, twice", fi_pep_bind(pep, &theirs->fid, 0));
  refused("fi_getname before fi_listen", fi_getname(&pep->fid, name, &size));
  MUST(fi_listen(pep));
  refused("fi_listen, twice", fi_listen(pep));
  MUST(fi_getname(&pep->fid, name, &size));
  refused("fi_setname after fi_listen", fi_setname(&pep->fid, name, size));

  struct fid_ep* ep = endpoint(domain, info, NULL);
  refused("fi_connect without a queue", fi_connect(ep, name, NULL, 0));
  MUST(fi_ep_bind(ep, &ours->fid, 0));
  refused("fi_ep_bind of a queue, twice", fi_ep_bind(ep, &ours->fid, 0));
  refused("fi_connect to no address", fi_connect(ep, NULL, NULL, 0));
  refused("fi_connect with much data", fi_connect(ep, name, data, 257));
  refused("fi_accept without a request", fi_accept(ep, NULL, 0));
  refused("fi_shutdown before fi_connect", fi_shutdown(ep, 0));
  size_t room = sizeof(data);
  refused("fi_getpeer before fi_connect", fi_getpeer(ep, data, &room));
  refused("fi_connect", fi_connect(ep, name, NULL, 0));
  refused("fi_connect, twice", fi_connect(ep, name, NULL, 0));
  refused("fi_send before FI_CONNECTED", fi_send(ep, data, 1, NULL, 0, NULL));

  struct fi_info* first = request();
  struct fid_ep *one, *two;
  struct fid nothing = {.fclass = FI_CLASS_CONNREQ};
  refused("fi_reject of no request", fi_reject(pep, &nothing, NULL, 0));
  one = endpoint(domain, first, theirs);
  refused("fi_endpoint of a request, twice", fi_endpoint(domain, first, &two, NULL));
  refused("fi_reject of a request with an endpoint", fi_reject(pep, first->handle, NULL, 0));
  MUST(fi_close(&one->fid));
  failure("an endpoint closed without fi_accept");

  refused("fi_connect again", fi_connect(ep, name, NULL, 0));
  struct fi_info* second = request();
  refused("fi_reject", fi_reject(pep, second->handle, NULL, 0));
  refused("fi_reject, twice", fi_reject(pep, second->handle, NULL, 0));
  failure("a rejected request");

  refused("fi_close of a queue in use", fi_close(&theirs->fid));
  refused("fi_connect a third time", fi_connect(ep, name, NULL, 0));
  struct fid_ep* more = endpoint(domain, info, ours);
  refused("another endpoint's fi_connect", fi_connect(more, name, NULL, 0));
  struct fi_eq_cm_entry entry;
  uint32_t event;
  while (fi_eq_read(theirs, &event, &entry, sizeof(entry), FI_PEEK) == -FI_EAGAIN) continue;
  MUST(fi_close(&pep->fid)); /* a request is an unread event, the other waits behind it */
  failure("a passive endpoint closed with a request");
  failure("a passive endpoint closed with two");
  refused("fi_eq_read after it", fi_eq_read(theirs, &event, &entry, sizeof(entry), 0));
  closed_listener(ep);
  refused("fi_connect to nobody", fi_connect(ep, name, NULL, 0));
  failure("nobody");
  struct fi_eq_err_entry error = {0};
  refused("fi_eq_readerr of nothing", fi_eq_readerr(ours, &error, 0));

  fi_freeinfo(first);
  fi_freeinfo(second);
  MUST(fi_close(&more->fid));
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&cq->fid));
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&theirs->fid));
  MUST(fi_close(&ours->fid));
  MUST(fi_close(&fabric->fid));
  fi_freeinfo(info);
  printf("closed\n");
  return 0;
}
