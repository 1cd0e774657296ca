/* FI_DIRECTED_RECV, FI_SOURCE, FI_SOURCE_ERR, FI_MORE and FI_FENCE: sources PROVIDER. Three endpoints: A and B know each
 * other, and a stranger sends whom B's vector does not have. */
#include "pair.h"

static struct fid_ep* stranger;
static struct fid_av* strangers;
static struct fid_cq* of_stranger;
static fi_addr_t to_b;
static char text[8][64], got[8][64];

static void more_progress(void) {
  progress();
  fi_cq_read(of_stranger, NULL, 0);
}

/* The next entry of B's receive queue with its source. */
static void from(const char* what) {
  struct fi_cq_tagged_entry e = {0};
  fi_addr_t source = 4711;
  long n;
  while ((n = fi_cq_readfrom(sides[B].rx, &e, 1, &source)) == -FI_EAGAIN) more_progress();
  if (n == 1) {
    printf("%s: context %ld, %zu bytes, source %s\n", what, (long)((struct fi_context2*)e.op_context - contexts), e.len,
           source == sides[B].peer ? "A" : source == FI_ADDR_NOTAVAIL ? "unknown" : "another");
    return;
  }
  char address[256];
  struct fi_cq_err_entry error;
  memset(&error, 0, sizeof(error));
  error.err_data = address;
  error.err_data_size = sizeof(address);
  MUST(fi_cq_readerr(sides[B].rx, &error, 0));
  fi_addr_t inserted = FI_ADDR_NOTAVAIL;
  int r = error.err == FI_EADDRNOTAVAIL ? fi_av_insert(sides[B].av, error.err_data, 1, &inserted, 0, NULL) : -1;
  char name[256], own[256];
  size_t size = sizeof(name), own_size = sizeof(own);
  MUST(fi_getname(&stranger->fid, own, &own_size));
  int same = r == 1 && fi_av_lookup(sides[B].av, inserted, name, &size) == 0 && size == own_size && !memcmp(name, own, size);
  printf("%s: context %ld, error %s, %zu bytes, inserted %d, %s\n", what,
         (long)((struct fi_context2*)error.op_context - contexts), fi_strerror(error.err), error.len, r,
         same ? "the stranger" : "somebody else");
}

static void nothing(const char* what) {
  struct fi_cq_tagged_entry e;
  for (int i = 0; i < 1000; ++i) more_progress();
  long n = fi_cq_read(sides[B].rx, &e, 1);
  printf("%s: %s\n", what, n == 1 ? "a completion" : fi_strerror((int)-n));
}

static void send_as(struct fid_ep* ep, fi_addr_t to, int i, uint64_t tag, uint64_t flags) {
  struct iovec iov = {text[i], 8 * (size_t)(i + 1)};
  struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = to, .tag = tag, .context = &contexts[16 + i]};
  long r;
  while ((r = fi_tsendmsg(ep, &m, flags)) == -FI_EAGAIN) more_progress();
  if (r != 0) printf("fi_tsendmsg with %#" PRIx64 ": %s\n", flags, fi_strerror((int)-r));
}

static void receive(int i, fi_addr_t source, uint64_t tag) {
  MUST(fi_trecv(sides[B].ep, got[i], 64, NULL, source, tag, 0, &contexts[i]));
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  begin(argc, argv, FI_TAGGED | FI_MSG | FI_RMA | FI_SOURCE | FI_SOURCE_ERR | FI_DIRECTED_RECV | FI_FENCE);
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 256, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  MUST(fi_cq_open(domain, &cq_attr, &of_stranger, NULL));
  MUST(fi_av_open(domain, &av_attr, &strangers, NULL));
  MUST(fi_endpoint(domain, info, &stranger, NULL));
  MUST(fi_ep_bind(stranger, &of_stranger->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(stranger, &strangers->fid, 0));
  MUST(fi_enable(stranger));
  char name[512];
  size_t size = sizeof(name);
  MUST(fi_getname(&sides[B].ep->fid, name, &size));
  if (fi_av_insert(strangers, name, 1, &to_b, 0, NULL) != 1) return 3;

  /* A message of another sender passes a directed receive, posted before or after. */
  receive(0, sides[B].peer, 1);
  send_as(stranger, to_b, 0, 1, 0);
  nothing("a directed receive");
  send_as(sides[A].ep, sides[A].peer, 1, 1, 0);
  from("its message");
  receive(1, FI_ADDR_UNSPEC, 1);
  from("the stranger's message");
  send_as(stranger, to_b, 2, 2, 0);
  for (int i = 0; i < 1000; ++i) more_progress();
  receive(2, sides[B].peer, 2);
  nothing("a directed receive that finds another's message");
  send_as(sides[A].ep, sides[A].peer, 3, 2, 0);
  from("its message");
  receive(3, FI_ADDR_UNSPEC, 2);
  from("the stranger's message, now known");

  /* Sends with FI_MORE until the last: all arrive, in order. */
  for (int i = 0; i < 4; ++i) receive(i, FI_ADDR_UNSPEC, 3);
  for (int i = 0; i < 4; ++i) send_as(sides[A].ep, sides[A].peer, i, 3, i == 3 ? 0 : FI_MORE);
  for (int i = 0; i < 4; ++i) from("FI_MORE");

  /* A fenced send after a write: the write is there when the message is. */
  char* target = calloc(1, 4096);
  struct fid_mr* mr = region(B, target, 4096, FI_REMOTE_WRITE, 5);
  for (int i = 0; i < 8; ++i) {
    memset(text[7], 'a' + i, 64);
    POST(fi_write(sides[A].ep, text[7], 64, NULL, sides[A].peer, place(target, 64 * (size_t)i), fi_mr_key(mr), &contexts[30]));
    receive(5, FI_ADDR_UNSPEC, 5);
    send_as(sides[A].ep, sides[A].peer, 5, 5, FI_FENCE | FI_DELIVERY_COMPLETE);
    struct fi_cq_tagged_entry e;
    if (next(sides[B].rx, &e) != 1) puts("a fenced send fails");
    if (target[64 * i] != 'a' + i || target[64 * i + 63] != 'a' + i) puts("a fenced send before the write");
  }
  puts("fenced");
  MUST(fi_close(&mr->fid));
  MUST(fi_close(&stranger->fid));
  MUST(fi_close(&strangers->fid));
  MUST(fi_close(&of_stranger->fid));
  end();
  return 0;
}
