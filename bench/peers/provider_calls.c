/* What libfabric's calls cost over the provider in argv[1], between two processes. One figure a line: name, value.
 *
 *   read_ns          fi_cq_read of an empty queue
 *   inject_ns        fi_inject_write of 8 B, by batches; between batches a read waits for the writes
 *   kernel_ns        process_vm_writev of 8 B into the other process: the system call that a write of 8 B contains
 *   half_8_ns        half of a round trip of tagged messages of 8 B
 *   half_N_ns        the same of N bytes, in memory of the C library
 *
 * Each is the least of many batches, as many as fit into a second; argv[2]: how many times as long. On a machine with
 * other work a batch must be short, for one of them to be without a time slice of others. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "apart.h"

#define MUST(call)                                                                                    \
  do {                                                                                                \
    long must_ = (long)(call);                                                                        \
    if (must_ < 0) {                                                                                  \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror((int)-must_));        \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)

enum { kMost = 4 << 20, kBatch = 64 };
static struct fi_info* info;
static struct fid_ep* ep;
static struct fid_cq* cq;
static fi_addr_t peer;
static struct fi_context2 tx_context, rx_context;
static char *out, *in;
static void *out_desc, *in_desc;

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void swap(int fd, const void* mine, void* theirs, size_t size) {
  if (write(fd, mine, size) != (ssize_t)size) exit(3);
  for (size_t n = 0; n < size;) {
    ssize_t got = read(fd, (char*)theirs + n, size - n);
    if (got <= 0) exit(3);
    n += (size_t)got;
  }
}

/* Reads completions until these are all there. */
static int sent, received;
static void await(int sends, int receives) {
  struct fi_cq_tagged_entry e[8];
  while (sent < sends || received < receives) {
    ssize_t n = fi_cq_read(cq, e, 8);
    if (n == -FI_EAGAIN) continue;
    MUST(n);
    for (ssize_t i = 0; i < n; ++i) *(e[i].flags & FI_RECV ? &received : &sent) += 1;
  }
}

#define POST(call)                                                          \
  do {                                                                      \
    long r_;                                                                \
    while ((r_ = (long)(call)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);      \
    MUST(r_);                                                               \
  } while (0)

static void send_one(size_t size) {
  if (size <= info->tx_attr->inject_size && size <= 8) {
    POST(fi_tinject(ep, out, size, peer, 7));
    ++sent;
  } else {
    POST(fi_tsend(ep, out, size, out_desc, peer, 7, &tx_context));
  }
}
static void recv_one(size_t size) { POST(fi_trecv(ep, in, size, in_desc, peer, 7, 0, &rx_context)); }

static double limit_ns = 1e9;

/* The least half round trip, in batches of `rounds`. The first side ends the batches by another byte of the message. */
static double half_trip(int first, size_t size, int rounds) {
  double least = 1e18, end = now_ns() + limit_ns;
  for (int last = 0; !last;) {
    sent = received = 0;
    double begun = now_ns();
    if (first) last = out[0] = begun > end;
    for (int i = 0; i < rounds; ++i) {
      recv_one(size);
      if (first) send_one(size);
      await(first ? i + 1 : i, i + 1);
      if (!first) send_one(size);
      await(i + 1, i + 1);
    }
    double spent = (now_ns() - begun) / (2.0 * rounds);
    if (spent < least) least = spent;
    if (!first) last = in[0];
  }
  return least;
}

/* The least cost of process_vm_writev of 8 B; 1e18 where the kernel refuses it. */
static double kernel_ns(pid_t pid, char* there) {
  struct iovec from = {out, 8}, to = {there, 8};
  double least = 1e18, end = now_ns() + limit_ns;
  for (double begun = 0; begun < end;) {
    begun = now_ns();
    for (int i = 0; i < kBatch; ++i)
      if (process_vm_writev(pid, &from, 1, &to, 1, 0) != 8) return 1e18;
    double spent = (now_ns() - begun) / kBatch;
    if (spent < least) least = spent;
  }
  return least;
}

int main(int argc, char** argv) {
  int fds[2];
  if (argc < 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 2;
  if (argc > 2) limit_ns *= atof(argv[2]);
  pid_t child = fork();
  int first = child != 0, fd = fds[first];

  struct fi_info* hints = fi_allocinfo();
  hints->fabric_attr->prov_name = strdup(argv[1]);
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  MUST(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* av;
  struct fid_mr *own, *target;
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 1024, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 2};
  MUST(fi_cq_open(domain, &cq_attr, &cq, NULL));
  MUST(fi_av_open(domain, &av_attr, &av, NULL));
  MUST(fi_endpoint(domain, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  MUST(fi_enable(ep));

  struct card {
    char name[256];
    uint64_t addr, key, place;
    pid_t pid;
  } mine = {{0}, 0, 0, 0, 0}, theirs;
  size_t length = sizeof(mine.name);
  MUST(fi_getname(&ep->fid, mine.name, &length));
  out = malloc(kMost);
  in = malloc(kMost);
  memset(out, first + 1, kMost);
  memset(in, 0, kMost);
  char* words = calloc(1, 4096);
  MUST(fi_mr_reg(domain, out, kMost, FI_SEND | FI_READ, 0, 1000, 0, &own, NULL));
  MUST(fi_mr_reg(domain, words, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ, 0, 1001, 0, &target, NULL));
  struct fid_mr* receive;
  MUST(fi_mr_reg(domain, in, kMost, FI_RECV, 0, 1002, 0, &receive, NULL));
  if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
    struct fid_mr* all[] = {own, target, receive};
    for (int i = 0; i < 3; ++i) {
      MUST(fi_mr_bind(all[i], &ep->fid, 0));
      MUST(fi_mr_enable(all[i]));
    }
  }
  out_desc = fi_mr_desc(own);
  in_desc = fi_mr_desc(receive);
  mine.addr = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)words : 0;
  mine.key = fi_mr_key(target);
  mine.place = (uintptr_t)words;
  mine.pid = getpid();
  swap(fd, &mine, &theirs, sizeof(mine));
  if (fi_av_insert(av, theirs.name, 1, &peer, 0, NULL) != 1) return 3;

  run_apart(first);
  double half = half_trip(first, 8, 20);
  if (first) printf("half_8_ns %.1f\n", half);
  for (size_t size = 64 << 10; size <= kMost; size *= 4) {
    half = half_trip(first, size, 4);
    if (first) printf("half_%zu_ns %.0f\n", size, half);
    if (!first && in[size - 1] != 2) return 4;
  }
  if (first) {
    double least = 1e18;
    double begun = now_ns(), end = begun + limit_ns;
    while (begun < end) {
      struct fi_cq_tagged_entry e;
      begun = now_ns();
      for (int i = 0; i < 1024; ++i) fi_cq_read(cq, &e, 1);
      double spent = (now_ns() - begun) / 1024;
      if (spent < least) least = spent;
    }
    printf("read_ns %.2f\n", least);
    least = 1e18;
    end = now_ns() + limit_ns;
    for (begun = 0; begun < end;) {
      int done = 0;
      begun = now_ns();
      for (; done < kBatch; ++done)
        if (fi_inject_write(ep, out, 8, peer, theirs.addr, theirs.key) != 0) break;
      double spent = (now_ns() - begun) / kBatch;
      if (done == kBatch && spent < least) least = spent;
      sent = 0;
      POST(fi_read(ep, out, 8, out_desc, peer, theirs.addr, theirs.key, &tx_context));
      await(1, 0);
    }
    printf("inject_ns %.2f\n", least);
    least = kernel_ns(theirs.pid, (char*)(uintptr_t)theirs.place + 64);
    if (least < 1e18) printf("kernel_ns %.2f\n", least);
    sent = received = 0;
    out[0] = 1;
    send_one(8);
  } else { /* serve the accesses until the last message */
    sent = received = 0;
    recv_one(8);
    await(0, 1);
  }
  char end = 'e', other;
  swap(fd, &end, &other, 1);
  int status = 0;
  if (first && (waitpid(child, &status, 0) != child || status != 0)) return 5;
  return 0;
}
