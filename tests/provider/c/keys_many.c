/* Peers with keys that come and go at random: keys_many PROVIDER SERVICE SEED. Every number keeps its peer. It reads a
 * line after each hundred steps. SERVICE: on cxi, one that allows VNIs 7 and 9. Needs a libfabric of 1.20 or later. */
#include <stdint.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "keys.h"
#include "must.h"

#define PEERS 40
#define STEPS 500

static struct fid_av* av;
static fi_addr_t keys[2], number[PEERS];
static const uint16_t vnis[2] = {7, 9};

/* The address of a made-up peer, which has one of the keys. */
static size_t address_of(int peer, char* out) {
  if (!cxi) return 1 + (size_t)sprintf(out, "weft://1/%u/%d", vnis[peer % 2], 1 + peer / 2);
  uint32_t word = 0x123u << 9 | (uint32_t)(1 + peer / 2);
  memset(out, 0, 8);
  memcpy(out, &word, sizeof(word));
  return 8;
}

static void check(int peer) {
  char wanted[64] = {0}, found[64] = {0};
  size_t size = sizeof(found), length = address_of(peer, wanted);
  int r = fi_av_lookup(av, number[peer], found, &size);
  if (r != 0 || size != length || memcmp(found, wanted, length) != 0)
    printf("peer %d, number %d: %d, another address\n", peer, (int)number[peer], r);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  cxi = !strcmp(argv[1], "cxi");
  service = (uint32_t)atoi(argv[2]);
  unsigned seed = (unsigned)atoi(argv[3]);
  setvbuf(stdout, NULL, _IOLBF, 0);
  struct fi_info *hints = fi_allocinfo(), *info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  hints->fabric_attr->prov_name = strdup(argv[1]);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG;
  hints->domain_attr->mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED;
  keys_of_vectors(hints);
  MUST(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &info));
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 4};
  MUST(fi_av_open(domain, &av_attr, &av, NULL));
  for (int i = 0; i < 2; ++i) {
    char key[8];
    MUST(calls(av)->insert_auth_key(av, key, key_of(vnis[i], key), &keys[i], 0));
  }
  for (int i = 0; i < PEERS; ++i) number[i] = FI_ADDR_NOTAVAIL;
  for (int step = 0; step < STEPS; ++step) {
    int peer = rand_r(&seed) % PEERS;
    char address[64] = {0};
    if (number[peer] == FI_ADDR_NOTAVAIL) {
      address_of(peer, address);
      number[peer] = keys[peer % 2];
      MUST(fi_av_insert(av, address, 1, &number[peer], AUTH_KEY, NULL) - 1);
    } else {
      check(peer);
      MUST(fi_av_remove(av, &number[peer], 1, 0));
      number[peer] = FI_ADDR_NOTAVAIL;
    }
    if (step % 100 == 99) {
      char line[8];
      puts("a hundred");
      if (fgets(line, sizeof(line), stdin) == NULL) return 3;
    }
  }
  for (int i = 0; i < PEERS; ++i) {
    if (number[i] == FI_ADDR_NOTAVAIL) continue;
    check(i);
    MUST(fi_av_remove(av, &number[i], 1, 0));
  }
  for (int i = 0; i < 2; ++i) MUST(fi_av_remove(av, &keys[i], 1, AUTH_KEY));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&fabric->fid));
  puts("closed");
  return 0;
}
