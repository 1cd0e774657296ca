/* Authorization keys of an address vector (FI_AV_AUTH_KEY): one endpoint with the keys of VNIs 7 and 9, and peers with
 * one of them each. argv[2]: on cxi, a service that allows these VNIs, and 11. Needs a libfabric of 1.20 or later. */
#include <inttypes.h>
#include <stdint.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include "keys.h"
#include "must.h"

#define KEY 300

struct mr_auth_key { /* struct fi_mr_auth_key */
  struct fid_av* av;
  fi_addr_t src_addr;
};

struct node {
  struct fi_info* info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_cq* cq;
  struct fid_av* av;
  struct fid_ep* ep;
  char name[128], memory[64];
  size_t name_size;
};
static struct node nodes[3];
enum { ALL, SEVEN, NINE };

static void enable(struct node* n) {
  MUST(fi_enable(n->ep));
  n->name_size = sizeof(n->name);
  MUST(fi_getname(&n->ep->fid, n->name, &n->name_size));
}

static void open_node(struct node* n, const char* provider, uint16_t vni) {
  struct fi_info* hints = fi_allocinfo();
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 64, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 4};
  hints->fabric_attr->prov_name = strdup(provider);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA;
  hints->domain_attr->mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED;
  if (vni == 0) {
    hints->caps |= FI_SOURCE | FI_SOURCE_ERR;
    keys_of_vectors(hints);
  } else {
    hints->domain_attr->auth_key = calloc(1, 8);
    hints->domain_attr->auth_key_size = key_of(vni, hints->domain_attr->auth_key);
  }
  MUST(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &n->info));
  MUST(fi_fabric(n->info->fabric_attr, &n->fabric, NULL));
  MUST(fi_domain(n->fabric, n->info, &n->domain, NULL));
  MUST(fi_cq_open(n->domain, &cq_attr, &n->cq, NULL));
  MUST(fi_av_open(n->domain, &av_attr, &n->av, NULL));
  MUST(fi_endpoint(n->domain, n->info, &n->ep, NULL));
  MUST(fi_ep_bind(n->ep, &n->cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(n->ep, &n->av->fid, 0));
  if (vni != 0) enable(n);
  fi_freeinfo(hints);
}

static void close_node(struct node* n) {
  MUST(fi_close(&n->ep->fid));
  MUST(fi_close(&n->av->fid));
  MUST(fi_close(&n->cq->fid));
  MUST(fi_close(&n->domain->fid));
  MUST(fi_close(&n->fabric->fid));
  fi_freeinfo(n->info);
}

/* struct fi_cq_err_entry of libfabric 1.20. */
struct cq_error {
  struct fi_cq_err_entry entry;
  fi_addr_t src_addr;
};

/* The next completion of a node: 0, or the error. */
static long outcome(struct node* n, struct cq_error* more) {
  struct fi_cq_tagged_entry e;
  for (int i = 0; i < 50000000; ++i) {
    for (int k = 0; k < 3; ++k)
      if (&nodes[k] != n) fi_cq_read(nodes[k].cq, NULL, 0);
    long r = fi_cq_read(n->cq, &e, 1);
    if (r == 1) return 0;
    if (r == -FI_EAVAIL) {
      struct cq_error error = {0};
      MUST(fi_cq_readerr(n->cq, &error.entry, 0));
      if (more != NULL) *more = error;
      return -error.entry.err;
    }
  }
  return -FI_ETIMEDOUT;
}

/* A sender that is in no vector: its address, and the key by which it sends; both are what inserts it. */
static void stranger(const char* what, struct node* from, fi_addr_t to, struct node* at, fi_addr_t key) {
  struct cq_error error = {0};
  MUST(fi_recv(at->ep, at->memory, sizeof(at->memory), NULL, FI_ADDR_UNSPEC, NULL));
  MUST(fi_send(from->ep, "a message", 10, NULL, to, NULL));
  long sent = outcome(from, NULL), received = outcome(at, &error);
  fi_addr_t found = error.src_addr;
  int inserted = fi_av_insert(at->av, error.entry.err_data, 1, &found, AUTH_KEY, NULL);
  char name[128] = {0};
  size_t size = sizeof(name);
  if (inserted == 1) MUST(fi_av_lookup(at->av, found, name, &size));
  printf("%s: %s, %s, %s, %s\n", what, fi_strerror((int)-sent), fi_strerror((int)-received),
         error.src_addr == key ? "its key" : "another key",
         inserted == 1 && size == from->name_size && !memcmp(name, from->name, size) ? "its address" : "another address");
  if (inserted == 1) MUST(fi_av_remove(at->av, &found, 1, 0));
}

static void message(const char* what, struct node* from, fi_addr_t to, struct node* at) {
  memset(at->memory, 0, sizeof(at->memory));
  MUST(fi_recv(at->ep, at->memory, sizeof(at->memory), NULL, FI_ADDR_UNSPEC, NULL));
  MUST(fi_send(from->ep, "a message", 10, NULL, to, NULL));
  long sent = outcome(from, NULL), received = outcome(at, NULL);
  printf("%s: %s, %s, %s\n", what, fi_strerror((int)-sent), fi_strerror((int)-received), at->memory);
}

int main(int argc, char** argv) {
  struct node *all = &nodes[ALL], *seven = &nodes[SEVEN], *nine = &nodes[NINE];
  fi_addr_t keys[3] = {99, 99, 99}, peers[2], back, back_of_nine;
  char key[8], found[8] = {0};
  cxi = !strcmp(argv[1], "cxi");
  service = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
  open_node(all, argv[1], 0);
  printf("keys of a vector: size %s, at most %zu\n", all->info->domain_attr->auth_key_size == SIZE_MAX ? "of it" : "?",
         *max_ep_auth_key(all->info));
  open_node(seven, argv[1], 7);
  open_node(nine, argv[1], 9);

  refused("fi_enable without a key", fi_enable(all->ep));
  refused("no bytes", calls(all->av)->insert_auth_key(all->av, NULL, 8, keys, 0));
  refused("flags", calls(all->av)->insert_auth_key(all->av, key, key_of(7, key), keys, FI_MORE));
  refused("a key of another size", calls(all->av)->insert_auth_key(all->av, key, 5, keys, 0));
  MUST(calls(all->av)->insert_auth_key(all->av, key, key_of(7, key), &keys[0], 0));
  MUST(calls(all->av)->insert_auth_key(all->av, key, key_of(9, key), &keys[1], 0));
  refused("a third key", calls(all->av)->insert_auth_key(all->av, key, key_of(11, key), &keys[2], 0));
  size_t size = sizeof(found);
  MUST(calls(all->av)->lookup_auth_key(all->av, keys[1], found, &size));
  size_t wanted = key_of(9, key);
  if (cxi) memset(key, 0, sizeof(uint32_t)); /* the provider leaves the service out */
  printf("fi_av_lookup_auth_key: %s\n", size == wanted && !memcmp(found, key, size) ? "the key" : "other bytes");
  refused("a key that there is not", calls(all->av)->lookup_auth_key(all->av, 17, found, &size));
  refused("keys of a domain with its own", calls(seven->av)->insert_auth_key(seven->av, key, key_of(7, key), keys, 0));
  keys[0] = 0;
  enable(all);
  refused("a key after fi_enable", fi_av_remove(all->av, &keys[1], 1, AUTH_KEY));

  refused("a peer without a key", fi_av_insert(all->av, nine->name, 1, &peers[0], 0, NULL) == 1 ? 0 : -FI_EINVAL);
  peers[0] = 17;
  long r = fi_av_insert(all->av, nine->name, 1, &peers[0], AUTH_KEY, NULL);
  refused("a peer with a key that there is not", r == 1 ? 0 : -FI_EINVAL);
  MUST(fi_av_insert(seven->av, all->name, 1, &back, 0, NULL) - 1);
  char name[128];
  memcpy(name, all->name, sizeof(name));
  char* vni = cxi ? NULL : strstr(name, "/7/"); /* addresses of weft tell the VNI */
  if (vni != NULL) vni[1] = '9';
  MUST(fi_av_insert(nine->av, name, 1, &back_of_nine, 0, NULL) - 1);
  stranger("a stranger of VNI 7", seven, back, all, keys[0]);
  stranger("a stranger of VNI 9", nine, back_of_nine, all, keys[1]);
  peers[0] = keys[0];
  peers[1] = keys[1];
  MUST(fi_av_insert(all->av, seven->name, 1, &peers[0], AUTH_KEY, NULL) - 1);
  MUST(fi_av_insert(all->av, nine->name, 1, &peers[1], AUTH_KEY, NULL) - 1);
  printf("peers %" PRIu64 ", %" PRIu64 "\n", peers[0], peers[1]);
  message("to VNI 7", all, peers[0], seven);
  message("to VNI 9", all, peers[1], nine);
  message("from VNI 7", seven, back, all);

  struct fid_mr* mr;
  struct mr_auth_key by = {all->av, FI_ADDR_UNSPEC};
  struct iovec iov = {all->memory, sizeof(all->memory)};
  struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_REMOTE_WRITE, .requested_key = KEY};
  refused("fi_mr_reg", fi_mr_reg(all->domain, all->memory, 64, FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
  refused("fi_mr_regattr without keys", fi_mr_regattr(all->domain, &attr, 0, &mr));
  attr.auth_key = (uint8_t*)&by;
  attr.auth_key_size = sizeof(by);
  MUST(fi_mr_regattr(all->domain, &attr, 0, &mr));
  if (all->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
    MUST(fi_mr_bind(mr, &all->ep->fid, 0));
    MUST(fi_mr_enable(mr));
  }
  refused("fi_close of a vector with a region", fi_close(&all->av->fid));
  MUST(fi_write(seven->ep, "written", 8, NULL, back, 0, fi_mr_key(mr), NULL));
  r = outcome(seven, NULL);
  printf("a write of VNI 7: %s, %s\n", fi_strerror((int)-r), all->memory);

  /* A region of VNI 7's domain that only VNI 9 reaches: a key of its own. */
  struct fid_mr* other;
  char own[8];
  attr = (struct fi_mr_attr){.mr_iov = &iov, .iov_count = 1, .access = FI_REMOTE_WRITE, .requested_key = KEY};
  iov.iov_base = seven->memory;
  attr.auth_key = (uint8_t*)own;
  attr.auth_key_size = key_of(9, own);
  MUST(fi_mr_regattr(seven->domain, &attr, 0, &other));
  if (seven->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
    MUST(fi_mr_bind(other, &seven->ep->fid, 0));
    MUST(fi_mr_enable(other));
  }
  MUST(fi_write(all->ep, "written", 8, NULL, peers[0], 0, fi_mr_key(other), NULL));
  r = outcome(all, NULL);
  printf("a write of VNI 7 to a region of VNI 9: %s\n", r < 0 ? "an error" : "no error");

  struct fid* pairs[2][2] = {{&seven->ep->fid, &other->fid}, {&all->ep->fid, &mr->fid}};
  for (int i = 0; i < 2; ++i) {
    MUST(fi_close(pairs[i][cxi])); /* on cxi an endpoint is closed after its regions, on weft before */
    MUST(fi_close(pairs[i][1 - cxi]));
  }
  refused("a key that a peer uses", fi_av_remove(all->av, &keys[1], 1, AUTH_KEY));
  MUST(fi_av_remove(all->av, &peers[1], 1, 0));
  refused("a key that nobody uses", fi_av_remove(all->av, &keys[1], 1, AUTH_KEY));
  for (int i = 0; i < 2; ++i) {
    struct node* n = &nodes[i];
    MUST(fi_close(&n->av->fid));
    MUST(fi_close(&n->cq->fid));
    MUST(fi_close(&n->domain->fid));
    MUST(fi_close(&n->fabric->fid));
    fi_freeinfo(n->info);
  }
  close_node(nine);
  puts("closed");
  return 0;
}
