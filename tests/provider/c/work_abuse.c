/* Objects that are closed while deferred work on them is queued: PROVIDER CASE. Then the work's trigger counts. */
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fi_trigger.h>

#include "pair.h"

#define KEY 42

static char memory[64], out[64] = "written";
static struct fid_mr* mr;
static struct fid_cntr *trigger, *done;
static struct fi_deferred_work* work;
static struct fi_op_rma* op;
static struct iovec* piece;
static struct fi_rma_iov* range;

static struct fid_cntr* counter(void) {
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
  struct fid_cntr* cntr;
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  return cntr;
}

static long queue(void) {
  return fi_control(&domain->fid, FI_QUEUE_WORK, work);
}

/* A write of A to B at the next count of the trigger; all that describes it is allocated, so that its use is seen. */
static void describe(void) {
  work = calloc(1, sizeof(*work));
  op = calloc(1, sizeof(*op));
  piece = calloc(1, sizeof(*piece));
  range = calloc(1, sizeof(*range));
  *piece = (struct iovec){out, 8};
  *range = (struct fi_rma_iov){place(memory, 0), 8, fi_mr_key(mr)};
  *op = (struct fi_op_rma){sides[A].ep, {piece, NULL, 1, sides[A].peer, range, 1, &contexts[1], 0}, 0};
  *work = (struct fi_deferred_work){.threshold = 1, .triggering_cntr = trigger, .completion_cntr = done};
  work->op_type = FI_OP_WRITE;
  work->op.rma = op;
  MUST(queue());
}

static void forget(void) {
  free(piece);
  free(range);
  free(op);
  free(work);
}

static void count(void) {
  MUST(fi_cntr_add(trigger, 1));
  for (int i = 0; i < 2000; ++i) {
    if (sides[A].ep != NULL) progress();
    fi_cntr_read(trigger);
  }
}

static void rest(int trigger_too, int done_too, int mr_too) {
  if (trigger_too) MUST(fi_close(&trigger->fid));
  if (done_too) MUST(fi_close(&done->fid));
  if (mr_too) MUST(fi_close(&mr->fid));
  for (int i = 0; i < 2; ++i) {
    if (sides[i].ep != NULL) MUST(fi_close(&sides[i].ep->fid));
    MUST(fi_close(&sides[i].av->fid));
    MUST(fi_close(&sides[i].tx->fid));
    MUST(fi_close(&sides[i].rx->fid));
  }
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&fabric->fid));
  fi_freeinfo(info);
  fi_freeinfo(hints);
  forget();
  puts("closed");
}

static void endpoint(void) {
  refused("fi_close of the endpoint", fi_close(&sides[A].ep->fid));
  sides[A].ep = NULL;
  count();
  printf("done %" PRIu64 ", memory %s\n", fi_cntr_read(done), memory);
  refused("work of a closed endpoint's counter", fi_cntr_add(trigger, 1));
  rest(1, 1, 1);
}

static void region_closed(void) {
  refused("fi_close of the region", fi_close(&mr->fid));
  count();
  fi_cntr_wait(done, 1, 2000);
  printf("done %" PRIu64 ", errors %" PRIu64 ", memory %s\n", fi_cntr_read(done), fi_cntr_readerr(done), memory);
  rest(1, 1, 0);
}

static void trigger_closed(void) {
  long r = fi_close(&trigger->fid);
  refused("fi_close of the trigger", r);
  rest(r != 0, 1, 1);
}

static void done_closed(void) {
  long r = fi_close(&done->fid);
  refused("fi_close of the counter of completions", r);
  count();
  fi_cntr_read(trigger);
  for (int i = 0; i < 5000 && memory[0] == 0; ++i) usleep(1000), progress();
  printf("memory %s\n", memory);
  rest(1, r != 0, 1);
}

static void all_closed(void) {
  rest(1, 1, 1);
}

static void leaves(void) {
  puts("left");
  exit(0);
}

static void forked(void) {
  int status = -1;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    refused("in a child, FI_QUEUE_WORK", queue());
    refused("in a child, FI_FLUSH_WORK", fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
    refused("in a child, fi_cntr_add", fi_cntr_add(trigger, 1));
    exit(0);
  }
  if (waitpid(child, &status, 0) != child || status != 0) printf("the child ended with %d\n", status);
  printf("done %" PRIu64 ", memory %s\n", fi_cntr_read(done), memory);
  count();
  MUST(fi_cntr_wait(done, 1, 5000));
  printf("done %" PRIu64 ", memory %s\n", fi_cntr_read(done), memory);
  rest(1, 1, 1);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  modes &= ~FI_MR_PROV_KEY;
  begin(argc, argv, FI_MSG | FI_RMA);
  mr = region(B, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
  trigger = counter();
  done = counter();
  describe();
  static const struct {
    const char* name;
    void (*run)(void);
  } cases[] = {{"endpoint", endpoint}, {"region", region_closed}, {"trigger", trigger_closed}, {"done", done_closed},
               {"all", all_closed},    {"leaves", leaves},        {"forked", forked}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i)
    if (!strcmp(cases[i].name, argv[2])) cases[i].run();
  return 0;
}
