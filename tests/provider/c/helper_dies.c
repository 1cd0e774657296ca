/* A program whose policy helper is killed: helper_dies PROVIDER SERVICE. Before each step it prints the step's name and
 * reads a line; then the step asks the helper. SERVICE: on cxi, one that allows VNIs 7 to 11. Needs a libfabric of 1.20
 * or later. */
#include <inttypes.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "keys.h"
#include "must.h"

static struct fi_info *hints, *info;
static struct fid_fabric* fabric;
static struct fid_domain* domain;
static struct fid_cq *cq, *other_cq;
static struct fid_cntr* cntr;
static struct fid_av* av;
static struct fid_ep* ep;

static void step(const char* name) {
  char line[8];
  printf("%s\n", name);
  if (fgets(line, sizeof(line), stdin) == NULL) exit(3);
}

static uint16_t vni_of(fi_addr_t key) {
  char found[8] = {0};
  size_t size = sizeof(found);
  uint16_t vni;
  MUST(calls(av)->lookup_auth_key(av, key, found, &size));
  memcpy(&vni, found + (cxi ? 4 : 0), sizeof(vni));
  return vni;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  cxi = !strcmp(argv[1], "cxi");
  service = (uint32_t)atoi(argv[2]);
  setvbuf(stdout, NULL, _IOLBF, 0);
  hints = fi_allocinfo();
  hints->fabric_attr->prov_name = strdup(argv[1]);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA;
  hints->domain_attr->mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED;
  keys_of_vectors(hints);
  step("fi_getinfo");
  MUST(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &info));
  step("fi_domain");
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));

  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 64, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 4};
  step("fi_cq_open");
  MUST(fi_cq_open(domain, &cq_attr, &cq, NULL));
  MUST(fi_av_open(domain, &av_attr, &av, NULL));

  fi_addr_t keys[2];
  char key[8];
  MUST(calls(av)->insert_auth_key(av, key, key_of(7, key), &keys[0], 0));
  step("a second key");
  MUST(calls(av)->insert_auth_key(av, key, key_of(9, key), &keys[1], 0));
  step("look the keys up");
  printf("keys of VNI %u and %u\n", vni_of(keys[0]), vni_of(keys[1]));
  fi_addr_t third;
  refused("a third key", calls(av)->insert_auth_key(av, key, key_of(11, key), &third, 0));

  MUST(fi_endpoint(domain, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  step("fi_enable");
  MUST(fi_enable(ep));
  char name[128];
  size_t size = sizeof(name);
  MUST(fi_getname(&ep->fid, name, &size));
  fi_addr_t self = keys[0], again = keys[1];
  MUST(fi_av_insert(av, name, 1, &self, AUTH_KEY, NULL) - 1);
  char* vni = cxi ? NULL : strstr(name, "/7/"); /* addresses of weft tell the VNI */
  if (vni != NULL) vni[1] = '9';
  step("a peer with a key");
  MUST(fi_av_insert(av, name, 1, &again, AUTH_KEY, NULL) - 1);
  printf("peers %" PRIu64 ", %" PRIu64 "\n", self, again);
  refused("a key that a peer uses", fi_av_remove(av, &keys[1], 1, AUTH_KEY));

  step("a message");
  char out[8] = "hello", in[8] = {0};
  MUST(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
  MUST(fi_send(ep, out, sizeof(out), NULL, self, NULL));
  for (int got = 0; got < 2;) {
    struct fi_cq_tagged_entry e;
    long n = fi_cq_read(cq, &e, 1);
    if (n == 1) ++got;
    if (n < 0 && n != -FI_EAGAIN) MUST(n);
  }
  printf("received %s\n", in);
  struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
  MUST(fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
  MUST(fi_cq_open(domain, &cq_attr, &other_cq, NULL));
  step("close");
  MUST(fi_close(&other_cq->fid));
  MUST(fi_close(&cntr->fid));
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&av->fid));
  step("open again");
  MUST(fi_av_open(domain, &av_attr, &av, NULL));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&cq->fid));
  step("fi_close of the domain");
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&fabric->fid));
  puts("closed");
  return 0;
}
