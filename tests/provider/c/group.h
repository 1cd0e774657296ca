/* Processes that are the members of collective groups, over the provider in argv[1]; argv[2] is their number. */
#pragma once
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fi_collective.h>

#include "must.h"

#include <inttypes.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <string.h>

#define MEMBERS_MAX 16
#define NAME_BYTES 256

/* What the processes share, apart from libfabric. */
struct common {
  char names[MEMBERS_MAX][NAME_BYTES];
  int named, arrived; /* atomic */
  pid_t last;         /* the process that is to die */
};
static struct common* common;
static int members, me;

static struct fi_info *hints, *info;
static struct fid_fabric* fabric;
static struct fid_domain* domain;
static struct fid_ep* ep;
static struct fid_cq* cq;
static struct fid_av* av;
static struct fid_eq* eq;
static fi_addr_t addrs[MEMBERS_MAX];
static struct fi_context2 contexts[64];
static uint64_t quiet;

/* Waits for the other processes, by their memory, not by a collective; the own queues make progress meanwhile. */
static inline void meet(void) {
  static int round;
  __atomic_add_fetch(&common->arrived, 1, __ATOMIC_SEQ_CST);
  round += members;
  while (__atomic_load_n(&common->arrived, __ATOMIC_SEQ_CST) < round) {
    fi_cq_read(cq, NULL, 0);
    usleep(200);
  }
}

static inline void open_member(const char* provider) {
  hints = fi_allocinfo();
  hints->fabric_attr->prov_name = strdup(provider);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_COLLECTIVE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL | FI_MR_VIRT_ADDR;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  if (strncmp(provider, "tcp", 3) == 0) hints->domain_attr->name = strdup("lo");
  MUST(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 256, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = MEMBERS_MAX};
  struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
  MUST(fi_cq_open(domain, &cq_attr, &cq, NULL));
  MUST(fi_av_open(domain, &av_attr, &av, NULL));
  MUST(fi_eq_open(fabric, &eq_attr, &eq, NULL));
  MUST(fi_endpoint(domain, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &eq->fid, 0));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | quiet));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  MUST(fi_enable(ep));
}

/* Every member's address in the vector, in the order of the members. */
static inline void know_members(void) {
  size_t size = NAME_BYTES;
  MUST(fi_getname(&ep->fid, common->names[me], &size));
  meet();
  for (int i = 0; i < members; ++i) {
    if (fi_av_insert(av, common->names[i], 1, &addrs[i], 0, NULL) != 1) exit(3);
  }
}

/* The processes: member 0 is this one, and prints; the others are its children. Returns in all of them. */
static inline void begin(int argc, char** argv) {
  if (argc < 3) exit(2);
  members = atoi(argv[2]);
  common = mmap(NULL, sizeof(*common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (common == MAP_FAILED || members > MEMBERS_MAX) exit(2);
  while (me < members - 1) {
    pid_t child = fork(); /* before libfabric is used */
    if (child < 0) exit(2);
    if (child > 0) break;
    ++me; /* a chain: each member is the parent of the next */
  }
  if (me > 0 && freopen("/dev/null", "w", stdout) == NULL) exit(2);
  open_member(argv[1]);
  know_members();
}

static inline struct fid_av_set* whole_set(void) {
  struct fi_av_set_attr attr = {
      .count = members, .start_addr = addrs[0], .end_addr = addrs[members - 1], .stride = 1, .flags = 0};
  struct fid_av_set* set;
  MUST(fi_av_set(av, &attr, &set, NULL));
  return set;
}

/* The event of a join; a failed one is described, and returned as its negative number. */
static inline long joined(struct fid_mc* expected) {
  for (;;) {
    struct fi_eq_entry entry;
    uint32_t event = 0;
    fi_cq_read(cq, NULL, 0);
    long n = fi_eq_read(eq, &event, &entry, sizeof(entry), 0);
    if (n == sizeof(entry)) {
      int own = strncmp(info->fabric_attr->prov_name, "tcp", 3) != 0; /* libfabric's event names another fid */
      if (event != FI_JOIN_COMPLETE || (own && entry.fid != &expected->fid) || entry.context != &contexts[1])
        puts("another event than the group's");
      return 0;
    }
    if (n == -FI_EAVAIL) {
      struct fi_eq_err_entry error = {0};
      MUST(fi_eq_readerr(eq, &error, 0));
      printf("join: err %d, prov_errno %d, data %" PRIu64 "\n", error.err, error.prov_errno, error.data);
      return -1;
    }
    if (n != -FI_EAGAIN) MUST(n);
  }
}

static inline struct fid_mc* join(struct fid_av_set* set) {
  struct fid_mc* mc;
  fi_addr_t to;
  MUST(fi_av_set_addr(set, &to));
  MUST(fi_join_collective(ep, to, set, 0, &mc, &contexts[1]));
  if (joined(mc) < 0) exit(4);
  return mc;
}

/* The next completion: 0, or a negative error number, whose provider's number is in *more. */
static inline long completed(void* context, int* more) {
  for (;;) {
    struct fi_cq_tagged_entry e = {0};
    long n = fi_cq_read(cq, &e, 1);
    if (n == 1) {
      if (e.op_context != context) puts("another context");
      return 0;
    }
    if (n == -FI_EAVAIL) {
      struct fi_cq_err_entry error = {0};
      MUST(fi_cq_readerr(cq, &error, 0));
      if (error.op_context != context) puts("another context of an error");
      *more = error.prov_errno;
      return -error.err;
    }
    if (n != -FI_EAGAIN) MUST(n);
  }
}

#define POST(call)                                              \
  do {                                                          \
    long post_;                                                 \
    while ((post_ = (long)(call)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0); \
    MUST(post_);                                                \
  } while (0)

static inline void done(void* context) {
  int more = 0;
  long r = completed(context, &more);
  if (r < 0) printf("a failed completion: %ld, %d\n", r, more);
}

/* of_child: what has to have become of the next member's process, as wait() tells. */
static inline void finish(int of_child) {
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&eq->fid));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&cq->fid));
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&fabric->fid));
  fi_freeinfo(info);
  fi_freeinfo(hints);
  int status = 0;
  if (me < members - 1 && (wait(&status) < 0 || status != of_child)) {
    printf("member %d ended with %d\n", me + 1, status);
    exit(5);
  }
  puts("closed");
}
