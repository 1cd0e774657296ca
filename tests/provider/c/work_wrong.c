/* Deferred work that is refused: each call with its number. Then, with a second argument N: writes and changes of
 * counters that stay queued, up to N; with a third one, the program then waits to be killed. */
#include "pair.h"

#include <rdma/fi_trigger.h>
#include <unistd.h>

#define KEY 42

static char memory[64], out[64];
static struct fid_mr* mr;
static struct fid_cntr *trigger, *done, *foreign;
static struct fi_deferred_work work;

static struct fid_cntr* counter(struct fid_domain* of) {
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
  struct fid_cntr* cntr;
  MUST(fi_cntr_open(of, &attr, &cntr, NULL));
  return cntr;
}

static void set(uint64_t threshold, struct fid_cntr* by, struct fid_cntr* counted, int type, void* op) {
  work = (struct fi_deferred_work){.threshold = threshold, .triggering_cntr = by, .completion_cntr = counted};
  work.op_type = type;
  work.op.msg = op;
}

static void queue(const char* what, uint64_t threshold, struct fid_cntr* by, struct fid_cntr* counted, int type,
                  void* op) {
  set(threshold, by, counted, type, op);
  refused(what, fi_control(&domain->fid, FI_QUEUE_WORK, &work));
}

static void wrong(void) {
  struct fid_domain* other;
  struct fid_ep *elsewhere, *off;
  struct iovec pieces[2] = {{out, 8}, {out + 8, 8}};
  struct fi_rma_iov ranges[2] = {{place(memory, 0), 8, fi_mr_key(mr)}, {place(memory, 8), 8, fi_mr_key(mr)}};
  struct fi_op_rma good = {sides[A].ep, {pieces, NULL, 1, sides[A].peer, ranges, 1, &contexts[1], 0}, 0};
  struct fi_op_rma bad = good;
  struct fi_op_cntr change = {done, 1};
  MUST(fi_domain(fabric, info, &other, NULL));
  MUST(fi_endpoint(other, info, &elsewhere, NULL));
  MUST(fi_endpoint(domain, info, &off, NULL));
  foreign = counter(other);

  refused("no work", fi_control(&domain->fid, FI_QUEUE_WORK, NULL));
  queue("no trigger", 1, NULL, done, FI_OP_WRITE, &good);
  queue("the trigger of another domain", 1, foreign, done, FI_OP_WRITE, &good);
  queue("the counter of another domain", 1, trigger, foreign, FI_OP_WRITE, &good);
  queue("a queue as the trigger", 1, (struct fid_cntr*)sides[A].tx, done, FI_OP_WRITE, &good);
  queue("a type that there is not", 1, trigger, done, 77, &good);
  queue("no operation", 1, trigger, done, FI_OP_WRITE, NULL);
  queue("work on a counter, with a counter", 1, trigger, done, FI_OP_CNTR_ADD, &change);
  change.cntr = NULL;
  queue("no counter to change", 1, trigger, NULL, FI_OP_CNTR_SET, &change);
  change = (struct fi_op_cntr){foreign, 1};
  queue("a counter of another domain to change", 1, trigger, NULL, FI_OP_CNTR_SET, &change);
  change = (struct fi_op_cntr){done, UINT64_MAX};
  queue("more than a counter holds", 1, trigger, NULL, FI_OP_CNTR_SET, &change);
  bad.ep = elsewhere;
  queue("an endpoint of another domain", 1, trigger, done, FI_OP_WRITE, &bad);
  bad.ep = off;
  queue("an endpoint that is not enabled", 1, trigger, done, FI_OP_WRITE, &bad);
  bad = good;
  bad.msg.addr = 1000;
  queue("nobody", 1, trigger, done, FI_OP_WRITE, &bad);
  bad = good;
  bad.flags = FI_PEEK;
  queue("a flag that a write does not take", 1, trigger, done, FI_OP_WRITE, &bad);
  bad.flags = FI_FENCE;
  queue("FI_FENCE", 1, trigger, done, FI_OP_WRITE, &bad);
  bad.flags = FI_INJECT;
  queue("FI_INJECT of a write", 1, trigger, done, FI_OP_WRITE, &bad);
  bad = good;
  bad.msg.iov_count = bad.msg.rma_iov_count = 2;
  queue("two buffers", 1, trigger, done, FI_OP_WRITE, &bad);
  bad = good;
  bad.msg.rma_iov_count = 0;
  queue("no range", 1, trigger, done, FI_OP_WRITE, &bad);
  struct fi_op_msg send = {sides[A].ep, {pieces, NULL, 1, sides[A].peer, &contexts[2], 0}, FI_INJECT};
  queue("FI_INJECT of a send", 1, trigger, done, FI_OP_SEND, &send);
  struct fi_op_msg receive = {sides[A].ep, {pieces, NULL, 1, FI_ADDR_UNSPEC, &contexts[3], 0}, 0};
  queue("a receive with a threshold", 1, trigger, done, FI_OP_RECV, &receive);
  receive.flags = FI_PEEK;
  queue("a deferred peek", 0, trigger, done, FI_OP_RECV, &receive);
  refused("FI_CANCEL_WORK of nothing", fi_control(&domain->fid, FI_CANCEL_WORK, &good));
  refused("FI_FLUSH_WORK", fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
  MUST(fi_cntr_add(trigger, 1));
  progress();
  printf("done %" PRIu64 ", %" PRIu64 "\n", fi_cntr_read(done), fi_cntr_readerr(done));
  queue("good work", 1, trigger, done, FI_OP_WRITE, &good);
  MUST(fi_cntr_wait(done, 1, 5000));
  MUST(fi_close(&off->fid));
  MUST(fi_close(&elsewhere->fid));
  MUST(fi_close(&foreign->fid));
  MUST(fi_close(&other->fid));
}

/* Queues changes of a counter until one is refused. */
static void fill(int most, int stay) {
  struct fi_op_cntr add = {done, 1};
  long r = 0;
  int n = 0;
  set(100, trigger, NULL, FI_OP_CNTR_ADD, &add);
  while (n < most && (r = fi_control(&domain->fid, FI_QUEUE_WORK, &work)) == 0) ++n;
  printf("%d queued: %s\n", n, r < 0 ? fi_strerror((int)-r) : "no error");
  if (stay) {
    fflush(stdout);
    for (;;) pause();
  }
  MUST(fi_cntr_set(done, 0));
  MUST(fi_cntr_set(trigger, 100));
  for (int i = 0; i < 5000 && fi_cntr_read(done) < (uint64_t)n; ++i) fi_cntr_wait(done, (uint64_t)n, 1);
  printf("%" PRIu64 " started\n", fi_cntr_read(done));
}

int main(int argc, char** argv) {
  modes &= ~FI_MR_PROV_KEY;
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA);
  mr = region(B, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
  trigger = counter(domain);
  done = counter(domain);
  if (argc > 2) {
    fill(atoi(argv[2]), argc > 3);
  } else {
    wrong();
  }
  MUST(fi_close(&trigger->fid));
  MUST(fi_close(&done->fid));
  MUST(fi_close(&mr->fid));
  end();
  return 0;
}
