/* Two endpoints of one process that know each other, over the provider in argv[1]: what the programs here share.
 * A program prints what it saw, so that the output over one provider can be compared with that over another. */
#pragma once
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "must.h"

#define A 0
#define B 1
/* A call that may have to be repeated while queues are full. */
#define POST(call)                                 \
  do {                                             \
    long post_;                                    \
    while ((post_ = (long)(call)) == -FI_EAGAIN) { \
      progress();                                  \
    }                                              \
    MUST(post_);                                   \
  } while (0)

struct side {
  struct fid_ep* ep;
  struct fid_cq *tx, *rx;
  struct fid_av* av;
  fi_addr_t peer;
};
static struct fi_info *hints, *info;
static struct fid_fabric* fabric;
static struct fid_domain* domain;
static struct side sides[2];
static struct fi_context2 contexts[64];
static uint64_t quiet; /* FI_SELECTIVE_COMPLETION: operations without FI_COMPLETION are not reported */
static enum fi_threading threading = FI_THREAD_DOMAIN;
static int modes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

static void progress(void) {
  for (int i = 0; i < 2; ++i) {
    fi_cq_read(sides[i].tx, NULL, 0);
    fi_cq_read(sides[i].rx, NULL, 0);
  }
}

/* The next completion of a queue; an error is printed, and returned as its negative number. */
static long next(struct fid_cq* cq, struct fi_cq_tagged_entry* entry) {
  for (;;) {
    long n = fi_cq_read(cq, entry, 1);
    if (n == 1) return 1;
    if (n == -FI_EAVAIL) {
      struct { /* the interface of fi_getinfo's version: nothing is written behind its struct */
        struct fi_cq_err_entry error;
        uint64_t behind;
      } in = {.behind = 0x77};
      MUST(fi_cq_readerr(cq, &in.error, 0));
      if (in.behind != 0x77) puts("fi_cq_readerr writes behind its entry");
      entry->op_context = in.error.op_context;
      entry->flags = in.error.flags;
      entry->len = in.error.olen;
      return -in.error.err;
    }
    if (n != -FI_EAGAIN) MUST(n);
    progress();
  }
}

static inline void say(const char* what, struct fid_cq* cq) {
  struct fi_cq_tagged_entry e = {0};
  long n = next(cq, &e);
  uint64_t known = FI_SEND | FI_RECV | FI_MSG | FI_TAGGED | FI_RMA | FI_READ | FI_WRITE | FI_ATOMIC | FI_REMOTE_WRITE |
                   FI_REMOTE_CQ_DATA;
  if (e.flags & FI_REMOTE_WRITE) known &= ~FI_RMA; /* some providers leave it out */
  printf("%s: context %ld", what, e.op_context ? (long)((struct fi_context2*)e.op_context - contexts) : -1);
  if (n < 0) {
    printf(", error %ld\n", -n);
    return;
  }
  if (e.flags & FI_RECV) printf(", %zu bytes", e.len);
  if (e.flags & FI_REMOTE_CQ_DATA) printf(", data %" PRIu64, e.data);
  if (e.flags & FI_RECV && e.flags & FI_TAGGED) printf(", tag %" PRIu64, e.tag);
  printf(", flags %#" PRIx64 "\n", e.flags & known);
}

static void begin(int argc, char** argv, uint64_t caps) {
  hints = fi_allocinfo();
  if (argc < 2) exit(2);
  hints->fabric_attr->prov_name = strdup(argv[1]);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = caps;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->mr_mode = modes;
  hints->domain_attr->threading = threading;
  MUST(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 256, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 2};
  for (int i = 0; i < 2; ++i) {
    struct side* s = &sides[i];
    MUST(fi_cq_open(domain, &cq_attr, &s->tx, NULL));
    MUST(fi_cq_open(domain, &cq_attr, &s->rx, NULL));
    MUST(fi_av_open(domain, &av_attr, &s->av, NULL));
    MUST(fi_endpoint(domain, info, &s->ep, NULL));
    MUST(fi_ep_bind(s->ep, &s->tx->fid, FI_TRANSMIT | quiet));
    MUST(fi_ep_bind(s->ep, &s->rx->fid, FI_RECV));
    MUST(fi_ep_bind(s->ep, &s->av->fid, 0));
    MUST(fi_enable(s->ep));
  }
  for (int i = 0; i < 2; ++i) {
    char name[512];
    size_t size = sizeof(name);
    MUST(fi_getname(&sides[1 - i].ep->fid, name, &size));
    if (fi_av_insert(sides[i].av, name, 1, &sides[i].peer, 0, NULL) != 1) exit(3);
  }
}

/* Registered memory, for a local buffer or for the peer. */
static inline struct fid_mr* region(int side, void* buf, size_t size, uint64_t access, uint64_t key) {
  struct fid_mr* mr;
  MUST(fi_mr_reg(domain, buf, size, access, 0, key, 0, &mr, NULL));
  if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
    MUST(fi_mr_bind(mr, &sides[side].ep->fid, 0));
    MUST(fi_mr_enable(mr));
  }
  return mr;
}
static inline uint64_t place(void* buf, size_t offset) {
  return info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)buf + offset : offset;
}

static inline void end(void) {
  for (int i = 0; i < 2; ++i) {
    MUST(fi_close(&sides[i].ep->fid));
    MUST(fi_close(&sides[i].av->fid));
    MUST(fi_close(&sides[i].tx->fid));
    MUST(fi_close(&sides[i].rx->fid));
  }
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&fabric->fid));
  fi_freeinfo(info);
  fi_freeinfo(hints);
  puts("closed");
}
