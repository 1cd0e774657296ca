/* Deferred work of a domain (fi_trigger(3)): every kind of operation, what drops it, and its failures. With a second
 * argument: what counters show, which is all that the provider "sockets" has. */
#include "pair.h"

#include <rdma/fi_trigger.h>

#define KEY 42

static char memory[4096], local[2][262144];
static struct fid_mr *mr, *mine[2];
static struct fid_cntr *trigger, *done;
static uint64_t entries = FI_COMPLETION;
static uint64_t quantity[4]; /* operand, compare, result, and the target's at memory + 64 */
static struct fid_mr* quantities;

static struct fid_cntr* counter(void) {
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
  struct fid_cntr* cntr;
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  return cntr;
}

static void* desc(int side) {
  return mine[side] ? fi_mr_desc(mine[side]) : NULL;
}

static void** context_of(int type, void* op) {
  switch (type) {
    case FI_OP_RECV:
    case FI_OP_SEND:
      return &((struct fi_op_msg*)op)->msg.context;
    case FI_OP_TRECV:
    case FI_OP_TSEND:
      return &((struct fi_op_tagged*)op)->msg.context;
    case FI_OP_READ:
    case FI_OP_WRITE:
      return &((struct fi_op_rma*)op)->msg.context;
    case FI_OP_CNTR_SET:
    case FI_OP_CNTR_ADD:
      return NULL;
    default:
      return &((struct fi_op_atomic*)op)->msg.context; /* the first member of each */
  }
}

static long queue(int type, void* op, uint64_t threshold, struct fid_cntr* counted, struct fi_deferred_work* work) {
  static struct fi_deferred_work works[64]; /* "sockets" works in the struct, and wants it as the context */
  static int next_work;
  if (work == NULL) work = &works[next_work++];
  memset(work, 0, sizeof(*work));
  work->threshold = threshold;
  work->triggering_cntr = trigger;
  work->completion_cntr = counted;
  work->op_type = type;
  work->op.msg = op;
  void** context = entries ? NULL : context_of(type, op);
  if (context != NULL) *context = &work->context;
  return fi_control(&domain->fid, FI_QUEUE_WORK, work);
}

/* Waits until a counter has a value, while both sides make progress. */
static void reach(struct fid_cntr* cntr, uint64_t value) {
  for (int i = 0; i < 5000 && fi_cntr_read(cntr) + fi_cntr_readerr(cntr) < value; ++i) {
    fi_cntr_wait(cntr, value, 1);
    progress();
  }
}

static void state(const char* what) {
  printf("%s: counted %" PRIu64 ", failed %" PRIu64 ", memory %.8s\n", what, fi_cntr_read(done), fi_cntr_readerr(done),
         memory);
}

static struct iovec piece;
static struct fi_rma_iov range;
static void* descs[1];

static struct fi_op_rma rma(size_t offset, size_t length, uint64_t flags, int context) {
  piece = (struct iovec){local[A], length};
  range = (struct fi_rma_iov){place(memory, offset), length, fi_mr_key(mr)};
  descs[0] = desc(A);
  return (struct fi_op_rma){sides[A].ep,
                            {&piece, descs, 1, sides[A].peer, &range, 1, &contexts[context], 0},
                            flags};
}

static struct fi_deferred_work kept; /* FI_CANCEL_WORK names work by its struct */
static struct fi_op_rma kept_op;

static void transfers(void) {
  struct fi_op_rma op;
  strcpy(memory, "????????");
  strcpy(local[A], "written!");
  op = rma(0, 8, 0, 1);
  MUST(queue(FI_OP_WRITE, &op, 2, done, NULL));
  MUST(fi_cntr_add(trigger, 1));
  progress();
  state("write, one too few");
  MUST(fi_cntr_add(trigger, 1));
  reach(done, 1);
  state("write");
  strcpy(memory, "ABCDEFGH");
  op = rma(0, 8, entries, 2);
  MUST(queue(FI_OP_READ, &op, 2, done, NULL)); /* the value is reached */
  reach(done, 2);
  if (entries) say("read", sides[A].tx);
  printf("read: %.8s\n", local[A]);
}

static void atomics(void) {
  struct fi_ioc operand = {&quantity[0], 1}, compare = {&quantity[1], 1}, result = {&quantity[2], 1};
  struct fi_rma_ioc target = {place(memory, 64), 1, fi_mr_key(mr)};
  void* d[1] = {quantities ? fi_mr_desc(quantities) : NULL};
  uint64_t* word = (uint64_t*)(memory + 64);
  struct fi_msg_atomic m = {&operand, d, 1, sides[A].peer, &target, 1, FI_UINT64, FI_SUM, &contexts[3], 0};
  struct fi_op_atomic sum = {sides[A].ep, m, 0};
  struct fi_op_fetch_atomic fetch = {sides[A].ep, m, {&result, d, 1}, 0};
  struct fi_op_compare_atomic swap = {sides[A].ep, m, {&result, d, 1}, {&compare, d, 1}, 0};
  swap.msg.op = FI_CSWAP;
  MUST(fi_cntr_set(trigger, 0));
  MUST(fi_cntr_set(done, 0));
  *word = 10;
  quantity[0] = 5;
  quantity[1] = 20;
  MUST(queue(FI_OP_ATOMIC, &sum, 1, done, NULL));
  MUST(queue(FI_OP_FETCH_ATOMIC, &fetch, 2, done, NULL));
  MUST(queue(FI_OP_COMPARE_ATOMIC, &swap, 3, done, NULL));
  for (int i = 1; i <= 3; ++i) {
    uint64_t before = *word;
    MUST(fi_cntr_add(trigger, 1));
    reach(done, (uint64_t)i);
    printf("atomic %d: %" PRIu64 ", then %" PRIu64 ", result %" PRIu64 "\n", i, before, *word, quantity[2]);
  }
}

static void messages(int tagged, size_t length) {
  struct iovec to = {local[B], length}, from = {local[A], length};
  void *to_desc[1] = {desc(B)}, *from_desc[1] = {desc(A)};
  struct fi_op_msg receive = {sides[B].ep, {&to, to_desc, 1, FI_ADDR_UNSPEC, &contexts[4], 0}, entries};
  struct fi_op_msg send = {sides[A].ep, {&from, from_desc, 1, sides[A].peer, &contexts[5], 0}, entries};
  struct fi_op_tagged trecv = {
      sides[B].ep, {&to, to_desc, 1, FI_ADDR_UNSPEC, 0x77, 0, &contexts[6], 0}, entries};
  struct fi_op_tagged tsend = {
      sides[A].ep, {&from, from_desc, 1, sides[A].peer, 0x77, 0, &contexts[7], 0}, entries};
  for (size_t i = 0; i < length; ++i) local[A][i] = (char)(i * 7 + length);
  memset(local[B], 0, length);
  MUST(fi_cntr_set(trigger, 0));
  MUST(fi_cntr_set(done, 0));
  if (tagged) {
    MUST(queue(FI_OP_TRECV, &trecv, 0, done, NULL));
    MUST(queue(FI_OP_TSEND, &tsend, 4, done, NULL));
  } else {
    MUST(queue(FI_OP_RECV, &receive, 0, done, NULL));
    MUST(queue(FI_OP_SEND, &send, 4, done, NULL));
  }
  MUST(fi_cntr_add(trigger, 4));
  reach(done, 2);
  if (entries) {
    say(tagged ? "tagged receive" : "receive", sides[B].rx);
    say(tagged ? "tagged send" : "send", sides[A].tx);
  }
  printf("%s, counted %" PRIu64 "\n", memcmp(local[A], local[B], length) == 0 ? "the bytes sent" : "other bytes",
         fi_cntr_read(done));
}

static void counting(void) {
  struct fid_cntr* target = counter();
  struct fi_op_cntr set = {target, 40}, add = {target, 2};
  MUST(fi_cntr_set(trigger, 0));
  MUST(queue(FI_OP_CNTR_SET, &set, 1, NULL, NULL));
  MUST(queue(FI_OP_CNTR_ADD, &add, 2, NULL, NULL));
  for (int i = 0; i < 2; ++i) {
    MUST(fi_cntr_add(trigger, 1));
    printf("counter: %" PRIu64 "\n", fi_cntr_read(target));
  }
  MUST(fi_close(&target->fid));
}

/* Each write counts in the counter that triggers the next one. */
static void chain(void) {
  enum { LINKS = 20 };
  struct fid_cntr* links[LINKS + 1];
  struct fid_cntr* before = trigger;
  struct fi_op_rma ops[LINKS];
  struct iovec pieces[LINKS];
  struct fi_rma_iov ranges[LINKS];
  for (int i = 0; i <= LINKS; ++i) links[i] = counter();
  for (int i = 0; i < LINKS; ++i) {
    local[A][i] = (char)('a' + i);
    ops[i] = rma(0, 1, 0, 8);
    pieces[i] = (struct iovec){local[A] + i, 1};
    ranges[i] = (struct fi_rma_iov){place(memory, 128 + (size_t)i), 1, fi_mr_key(mr)};
    ops[i].msg.msg_iov = &pieces[i];
    ops[i].msg.rma_iov = &ranges[i];
    trigger = links[i];
    MUST(queue(FI_OP_WRITE, &ops[i], 1, links[i + 1], NULL));
  }
  MUST(fi_cntr_add(links[0], 1));
  reach(links[LINKS], 1);
  printf("chain: %.20s\n", memory + 128);
  trigger = before;
  for (int i = 0; i <= LINKS; ++i) MUST(fi_close(&links[i]->fid));
}

static void dropped(void) {
  struct fid_cntr* before = trigger;
  strcpy(memory, "untouch.");
  strcpy(local[A], "dropped?");
  MUST(fi_cntr_set(done, 0));
  MUST(fi_cntr_set(trigger, 0));
  kept_op = rma(0, 8, FI_COMPLETION, 9);
  MUST(queue(FI_OP_WRITE, &kept_op, 1, done, &kept));
  MUST(fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
  MUST(fi_cntr_add(trigger, 1));
  progress();
  state("flushed");
  MUST(fi_cntr_set(trigger, 0));
  MUST(queue(FI_OP_WRITE, &kept_op, 1, done, &kept));
  refused("FI_CANCEL_WORK", fi_control(&domain->fid, FI_CANCEL_WORK, &kept));
  MUST(fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
  MUST(fi_cntr_add(trigger, 1));
  progress();
  state("cancelled");
  trigger = counter();
  MUST(queue(FI_OP_WRITE, &kept_op, 1, done, &kept));
  MUST(fi_close(&trigger->fid));
  trigger = before;
  progress();
  state("without its trigger");
  refused("FI_CANCEL_WORK of it", fi_control(&domain->fid, FI_CANCEL_WORK, &kept));
}

static void failure(void) {
  struct fi_op_rma op = rma(0, 8, 0, 10);
  range.key = 999;
  MUST(fi_cntr_set(trigger, 0));
  MUST(fi_cntr_set(done, 0));
  MUST(queue(FI_OP_WRITE, &op, 1, done, NULL));
  MUST(fi_cntr_add(trigger, 1));
  struct fi_cq_tagged_entry e = {0};
  long r = next(sides[A].tx, &e);
  reach(done, 1);
  printf("a key that no region has: %s, context %ld; failed %" PRIu64 "\n", r < 0 ? "an error" : "no error",
         (long)((struct fi_context2*)e.op_context - contexts), fi_cntr_readerr(done));
}

int main(int argc, char** argv) {
  quiet = FI_SELECTIVE_COMPLETION;
  modes &= ~FI_MR_PROV_KEY;
  if (argc > 2) entries = 0;
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | (strcmp(argv[1], "cxi") ? FI_TRIGGER : 0));
  mr = region(B, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
  if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
    for (int i = 0; i < 2; ++i)
      mine[i] = region(i, local[i], sizeof(local[i]), FI_READ | FI_WRITE | FI_SEND | FI_RECV, (uint64_t)(KEY + 1 + i));
    quantities = region(A, quantity, sizeof(quantity), FI_READ | FI_WRITE, KEY + 3);
  }
  trigger = counter();
  done = counter();
  transfers();
  atomics();
  for (int tagged = 0; tagged < 2; ++tagged) {
    messages(tagged, 8);
    messages(tagged, 1000);
    messages(tagged, 200000);
  }
  counting();
  chain();
  if (entries) {
    dropped();
    failure();
  }
  MUST(fi_close(&trigger->fid));
  MUST(fi_close(&done->fid));
  MUST(fi_close(&mr->fid));
  for (int i = 0; i < 2; ++i)
    if (mine[i]) MUST(fi_close(&mine[i]->fid));
  if (quantities) MUST(fi_close(&quantities->fid));
  end();
  return 0;
}
