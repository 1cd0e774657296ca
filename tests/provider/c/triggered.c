/* Calls with FI_TRIGGER (fi_trigger(3)): each starts when a counter reaches the threshold in its context. With a second
 * argument: calls that are refused. */
#include "pair.h"

#include <rdma/fi_trigger.h>

#define KEY 42

static char memory[256], out[256], in[256];
static struct fid_mr *mr, *source, *room, *old;
static struct fid_cntr* cntr;
static uint64_t operand = 5, result;

/* A context of the array, so that say() prints its number. */
static void* at(int context, uint64_t threshold) {
  struct fi_triggered_context2* c = (struct fi_triggered_context2*)&contexts[context];
  memset(c, 0, sizeof(*c));
  c->event_type = FI_TRIGGER_THRESHOLD;
  c->trigger.threshold.cntr = cntr;
  c->trigger.threshold.threshold = threshold;
  return c;
}

/* The next completion: providers differ in its flags. */
static void told(const char* what, struct fid_cq* cq) {
  struct fi_cq_tagged_entry e = {0};
  long n = next(cq, &e);
  printf("%s: context %ld, %s\n", what, (long)((struct fi_context2*)e.op_context - contexts),
         n < 0 ? fi_strerror((int)-n) : "no error");
}

static void* desc(struct fid_mr* of) {
  return of ? fi_mr_desc(of) : NULL;
}

static void transfers(struct side* a) {
  void *from[1] = {desc(source)}, *to[1] = {desc(room)};
  struct iovec piece = {out, 8}, back = {in, 8};
  struct fi_rma_iov range = {place(memory, 0), 8, fi_mr_key(mr)};
  struct fi_msg_rma write = {&piece, from, 1, a->peer, &range, 1, at(1, 1), 0};
  struct fi_msg_rma read = {&back, to, 1, a->peer, &range, 1, at(2, 2), 0};
  strcpy(memory, "????????");
  strcpy(out, "written!");
  MUST(fi_writemsg(a->ep, &write, FI_TRIGGER));
  MUST(fi_readmsg(a->ep, &read, FI_TRIGGER));
  for (int i = 0; i < 2; ++i) {
    progress();
    printf("before %d: %.8s, %.8s\n", i + 1, memory, in);
    MUST(fi_cntr_add(cntr, 1));
    told(i == 0 ? "write" : "read", a->tx);
  }
  printf("after: %.8s, %.8s\n", memory, in);
}

static void atomics(struct side* a) {
  void *from[1] = {desc(old)}, *to[1] = {desc(old)};
  struct fi_ioc value = {&operand, 1}, found = {&result, 1};
  struct fi_rma_ioc target = {place(memory, 64), 1, fi_mr_key(mr)};
  struct fi_msg_atomic m = {&value, from, 1, a->peer, &target, 1, FI_UINT64, FI_SUM, at(3, 3), 0};
  uint64_t* word = (uint64_t*)(memory + 64);
  *word = 10;
  MUST(fi_atomicmsg(a->ep, &m, FI_TRIGGER));
  m.context = at(4, 4);
  MUST(fi_fetch_atomicmsg(a->ep, &m, &found, to, 1, FI_TRIGGER));
  for (int i = 0; i < 2; ++i) {
    MUST(fi_cntr_add(cntr, 1));
    told("atomic", a->tx);
    printf("word %" PRIu64 ", result %" PRIu64 "\n", *word, result);
  }
}

static void messages(struct side* a, struct side* b) {
  void *from[1] = {desc(source)}, *to[1] = {desc(room)};
  struct iovec piece = {out, 100}, space = {in, 200};
  struct fi_msg send = {&piece, from, 1, a->peer, at(5, 5), 0};
  struct fi_msg receive = {&space, to, 1, FI_ADDR_UNSPEC, &contexts[6], 0};
  struct fi_msg_tagged tsend = {&piece, from, 1, a->peer, 7, 0, at(7, 6), 0};
  struct fi_msg_tagged treceive = {&space, to, 1, FI_ADDR_UNSPEC, 7, 0, &contexts[8], 0};
  MUST(fi_recvmsg(b->ep, &receive, FI_COMPLETION));
  MUST(fi_trecvmsg(b->ep, &treceive, FI_COMPLETION));
  MUST(fi_sendmsg(a->ep, &send, FI_TRIGGER));
  MUST(fi_tsendmsg(a->ep, &tsend, FI_TRIGGER));
  for (int i = 0; i < 2; ++i) {
    MUST(fi_cntr_add(cntr, 1));
    told("receive", b->rx);
    told("send", a->tx);
  }
}

static void wrong(struct side* a) {
  struct iovec piece = {out, 8};
  struct fi_rma_iov range = {place(memory, 0), 8, fi_mr_key(mr)};
  struct fi_msg_rma write = {&piece, NULL, 1, a->peer, &range, 1, NULL, 0};
  refused("no context", fi_writemsg(a->ep, &write, FI_TRIGGER));
  write.context = at(1, 1);
  ((struct fi_triggered_context*)write.context)->event_type = 77;
  refused("an event that there is not", fi_writemsg(a->ep, &write, FI_TRIGGER));
  write.context = at(1, 1);
  ((struct fi_triggered_context*)write.context)->trigger.threshold.cntr = NULL;
  refused("no counter", fi_writemsg(a->ep, &write, FI_TRIGGER));
  write.context = at(1, 1);
  refused("flags that the call does not take", fi_writemsg(a->ep, &write, FI_TRIGGER | FI_PEEK));
  write.addr = 1000;
  refused("nobody", fi_writemsg(a->ep, &write, FI_TRIGGER));
  write.addr = a->peer;
  if (strcmp(info->fabric_attr->prov_name, "cxi") == 0) return; /* it has the capability and no such call */
  struct fid_ep* plain;
  uint64_t caps = info->caps;
  info->caps &= ~FI_TRIGGER;
  info->tx_attr->caps &= ~FI_TRIGGER;
  info->rx_attr->caps &= ~FI_TRIGGER;
  MUST(fi_endpoint(domain, info, &plain, NULL));
  info->caps = caps;
  MUST(fi_ep_bind(plain, &a->tx->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(plain, &a->av->fid, 0));
  MUST(fi_enable(plain));
  refused("without the capability", fi_writemsg(plain, &write, FI_TRIGGER));
  MUST(fi_close(&plain->fid));
  MUST(fi_cntr_add(cntr, 1));
  progress();
  refused("a completion of them", fi_cq_read(a->tx, NULL, 0));
}

int main(int argc, char** argv) {
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
  modes &= ~FI_MR_PROV_KEY;
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER);
  mr = region(B, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
  if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
    source = region(A, out, sizeof(out), FI_WRITE | FI_SEND, KEY + 1);
    room = region(A, in, sizeof(in), FI_READ | FI_RECV, KEY + 2);
    old = region(A, &result, sizeof(result), FI_READ | FI_WRITE, KEY + 3);
  }
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  if (argc > 2) {
    wrong(&sides[A]);
  } else {
    transfers(&sides[A]);
    atomics(&sides[A]);
    messages(&sides[A], &sides[B]);
  }
  MUST(fi_close(&cntr->fid));
  MUST(fi_close(&mr->fid));
  struct fid_mr* mine[] = {source, room, old};
  for (int i = 0; i < 3; ++i)
    if (mine[i]) MUST(fi_close(&mine[i]->fid));
  end();
  return 0;
}
