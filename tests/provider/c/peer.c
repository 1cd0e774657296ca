/* Two processes: argv[2] is what happens to the peer: "ends" (messages both ways, then it closes), "killed", or "work":
 * it is killed while deferred work for it waits. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fi_trigger.h>

#include "pair.h"

static char buf[64 << 10], in[64 << 10];
static int pipes[2][2];

/* Deferred sends to a peer that dies before they start. */
static void work(struct side* s, fi_addr_t to, void* d, pid_t child) {
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
  struct fid_cntr *trigger, *done;
  struct iovec piece = {buf, sizeof(buf)};
  struct fi_op_msg op = {s->ep, {&piece, &d, 1, to, &contexts[4], 0}, 0};
  struct fi_deferred_work w = {.threshold = 1, .op_type = FI_OP_SEND, .op.msg = &op};
  struct fi_cq_tagged_entry e = {0};
  MUST(fi_cntr_open(domain, &attr, &trigger, NULL));
  MUST(fi_cntr_open(domain, &attr, &done, NULL));
  w.triggering_cntr = trigger;
  w.completion_cntr = done;
  for (int i = 0; i < 3; ++i) MUST(fi_control(&domain->fid, FI_QUEUE_WORK, &w));
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  MUST(fi_cntr_add(trigger, 1));
  int failed = 0;
  for (int i = 0; i < 3; ++i) failed += next(s->tx, &e) < 0 && e.op_context == &contexts[4];
  printf("deferred sends to the dead: %d failed, %" PRIu64 " counted\n", failed, fi_cntr_readerr(done));
  MUST(fi_close(&done->fid));
  MUST(fi_close(&trigger->fid));
}

int main(int argc, char** argv) {
  if (argc < 3 || pipe(pipes[0]) || pipe(pipes[1])) return 2;
  int works = !strcmp(argv[2], "work"), killed = works || !strcmp(argv[2], "killed");
  pid_t child = fork(); /* before libfabric is used */
  int me = child == 0;
  if (me && freopen("/dev/null", "w", stdout) == NULL) return 2;
  begin(argc, argv, FI_MSG | FI_RMA);
  char name[512] = {0}, peer[512] = {0};
  size_t size = sizeof(name);
  struct side* s = &sides[A];
  MUST(fi_getname(&s->ep->fid, name, &size));
  if (write(pipes[me][1], name, sizeof(name)) < 0 || read(pipes[1 - me][0], peer, sizeof(peer)) < 0) return 2;
  fi_addr_t to;
  if (fi_av_insert(s->av, peer, 1, &to, 0, NULL) != 1) return 2;
  struct fid_mr* mr = region(A, buf, sizeof(buf), FI_SEND | FI_RECV | FI_WRITE, 1);
  struct fid_mr* in_mr = region(A, in, sizeof(in), FI_RECV, 2);
  void *d = fi_mr_desc(mr), *id = fi_mr_desc(in_mr);
  struct fi_cq_tagged_entry e = {0};
  for (int i = 0; i < 200; ++i) {
    size_t length = (size_t)i * 300 + 1;
    POST(fi_recv(s->ep, in, sizeof(in), id, FI_ADDR_UNSPEC, &contexts[1]));
    memset(buf, i, length);
    POST(fi_send(s->ep, buf, length, d, to, &contexts[2]));
    if (next(s->tx, &e) < 0 || next(s->rx, &e) < 0 || e.len != length || in[length - 1] != (char)i) {
      printf("message %d is wrong\n", i);
      return 1;
    }
  }
  puts("200 messages each way");
  if (me && killed) {
    for (;;) pause();
  }
  if (works) {
    work(s, to, d, child);
  } else if (killed) {
    usleep(50000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    /* Operations posted now cannot succeed, and must end. */
    long r = fi_send(s->ep, buf, sizeof(buf), d, to, &contexts[3]);
    if (r == 0) r = next(s->tx, &e);
    printf("a send to the dead: %s\n", r < 0 ? "an error" : "no error");
  } else if (!me) {
    int status = -1;
    waitpid(child, &status, 0);
    printf("the peer ended with %d\n", status);
  }
  MUST(fi_close(&in_mr->fid));
  MUST(fi_close(&mr->fid));
  end();
  return 0;
}
