/* Queues, counters, vectors, options, and calls that are refused: the number of each. */
#include <pthread.h>
#include <stdatomic.h>

#include "pair.h"

static char out[256], in[256];
static atomic_int told;

/* As operations that fail while the counter is waited for. */
static void* fails(void* cntr) {
  for (unsigned n = 0; !told; ++n) {
    MUST(fi_cntr_seterr(cntr, n % 2));
    usleep(1000);
  }
  return NULL;
}

static void counters(void) {
  struct fid_cntr* cntr;
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  MUST(fi_cntr_set(cntr, 3));
  MUST(fi_cntr_add(cntr, 4));
  MUST(fi_cntr_wait(cntr, 7, 1000));
  MUST(fi_cntr_seterr(cntr, 1));
  MUST(fi_cntr_adderr(cntr, 1));
  printf("counter %" PRIu64 ", errors %" PRIu64 "\n", fi_cntr_read(cntr), fi_cntr_readerr(cntr));
  refused("fi_cntr_wait, in vain", fi_cntr_wait(cntr, 8, 10));
  pthread_t other;
  MUST(pthread_create(&other, NULL, fails, cntr));
  refused("fi_cntr_wait beside failures", fi_cntr_wait(cntr, 8, 60000));
  told = 1;
  MUST(pthread_join(other, NULL));
  MUST(fi_close(&cntr->fid));
}

/* An endpoint whose queue is waited for, and whose counter counts. */
static void waiting(int fd_too) {
  struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = fd_too ? FI_WAIT_FD : FI_WAIT_UNSPEC};
  struct fi_cntr_attr cattr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  struct fid_cq* cq;
  struct fid_cntr* cntr;
  struct fid_av* av;
  struct fid_ep* ep;
  char name[512];
  size_t size = sizeof(name);
  fi_addr_t self;
  MUST(fi_cq_open(domain, &attr, &cq, NULL));
  MUST(fi_cntr_open(domain, &cattr, &cntr, NULL));
  MUST(fi_av_open(domain, &av_attr, &av, NULL));
  MUST(fi_endpoint(domain, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
  MUST(fi_ep_bind(ep, &cntr->fid, FI_SEND));
  refused("fi_enable without a vector", fi_enable(ep));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  refused("fi_ep_bind, twice", fi_ep_bind(ep, &av->fid, 0));
  refused("fi_getname before fi_enable", fi_getname(&ep->fid, name, &size));
  MUST(fi_enable(ep));
  size = 1;
  refused("fi_getname, too small", fi_getname(&ep->fid, name, &size));
  MUST(fi_getname(&ep->fid, name, &size));
  MUST(fi_av_insert(av, name, 1, &self, 0, NULL) - 1);
  struct fi_cq_data_entry e;
  refused("fi_cq_sread, in vain", fi_cq_sread(cq, &e, 1, NULL, 20));
  struct iovec to = {in, sizeof(in)}, from = {out, 16};
  struct fi_msg r = {&to, NULL, 1, FI_ADDR_UNSPEC, &contexts[1], 0}, s = {&from, NULL, 1, self, &contexts[2], 0};
  POST(fi_recvmsg(ep, &r, FI_COMPLETION));
  POST(fi_sendmsg(ep, &s, 0)); /* not reported, but counted */
  if (fd_too) {
    int fd;
    struct fid* fids[] = {&cq->fid};
    MUST(fi_control(&cq->fid, FI_GETWAIT, &fd));
    long n;
    while ((n = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN) {
      if (fi_trywait(fabric, fids, 1) == 0) {
        struct pollfd p = {fd, POLLIN, 0};
        poll(&p, 1, 5000);
      }
    }
    MUST(n);
  } else {
    MUST(fi_cq_sread(cq, &e, 1, NULL, 5000));
  }
  printf("selective: context %ld, %zu bytes; ", (long)((struct fi_context2*)e.op_context - contexts), e.len);
  MUST(fi_cntr_wait(cntr, 1, 5000));
  printf("sends %" PRIu64 "; more: %s\n", fi_cntr_read(cntr), fi_strerror((int)-fi_cq_read(cq, &e, 1)));
  refused("fi_cq_readerr of nothing", fi_cq_readerr(cq, &(struct fi_cq_err_entry){0}, 0));
  refused("fi_close of a bound queue", fi_close(&cq->fid));
  refused("fi_close of a bound vector", fi_close(&av->fid));
  refused("fi_close of a domain in use", fi_close(&domain->fid));
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&cntr->fid));
  MUST(fi_close(&cq->fid));
}

static void multi_receive(void) {
  static char buffer[512];
  struct side *a = &sides[A], *b = &sides[B];
  size_t least = 64, size = sizeof(least), got = 0;
  MUST(fi_setopt(&b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
  MUST(fi_getopt(&b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &got, &size));
  struct iovec iov = {buffer, sizeof(buffer)};
  struct fi_msg r = {&iov, NULL, 1, FI_ADDR_UNSPEC, &contexts[3], 0};
  POST(fi_recvmsg(b->ep, &r, FI_MULTI_RECV | FI_COMPLETION));
  int messages = 0;
  for (int i = 0; i < 3; ++i) {
    struct fi_cq_tagged_entry e = {0};
    memset(out, 'a' + i, 160);
    POST(fi_inject(a->ep, out, 160, a->peer));
    do {
      MUST(next(b->rx, &e));
      if (e.len == 160 && *(char*)e.buf == 'a' + i) ++messages;
    } while (e.len != 160);
    if (i == 2 && !(e.flags & FI_MULTI_RECV)) MUST(next(b->rx, &e)); /* the buffer ends */
  }
  printf("one buffer took %d messages, least room %zu\n", messages, got);
}

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_RMA | FI_MULTI_RECV);
  counters();
  waiting(0);
  waiting(1);
  multi_receive();

  struct side* a = &sides[A];
  char name[512], text[512];
  size_t size = sizeof(name), length = sizeof(text);
  MUST(fi_av_lookup(a->av, a->peer, name, &size));
  fi_addr_t again;
  printf("fi_av_insert: %d\n", fi_av_insert(a->av, name, 1, &again, 0, NULL));
  printf("fi_av_straddr: %s\n", *fi_av_straddr(a->av, name, text, &length) ? "a text" : "none");
  refused("fi_av_lookup of nobody", fi_av_lookup(a->av, 1000, name, &size));
  MUST(fi_av_remove(a->av, &again, 1, 0));
  refused("fi_send to nobody", fi_send(a->ep, out, 8, NULL, 1000, NULL));
  refused("fi_inject, too long", fi_inject(a->ep, out, info->tx_attr->inject_size + 1, a->peer));
  refused("fi_tsend without FI_TAGGED", fi_tsend(a->ep, out, 8, NULL, a->peer, 1, NULL));
  refused("fi_cancel of nothing", fi_cancel(&a->ep->fid, &contexts[60]));
  struct fid_mr* mr;
  refused("fi_mr_reg of unknown access", fi_mr_reg(domain, out, 8, FI_FENCE, 0, 1, 0, &mr, NULL));
  long r = fi_mr_reg(domain, out, 8, FI_READ, 8, 1, 0, &mr, NULL);
  refused("fi_mr_reg with an offset", r);
  if (r == 0) MUST(fi_close(&mr->fid));

  struct fid_eq* eq;
  struct fi_eq_attr eq_attr = {.flags = FI_WRITE, .wait_obj = FI_WAIT_UNSPEC};
  struct fi_eq_entry entry = {&domain->fid, &contexts[5], 7}, got = {0};
  uint32_t event = 0;
  MUST(fi_eq_open(fabric, &eq_attr, &eq, NULL));
  refused("fi_eq_read of nothing", fi_eq_read(eq, &event, &got, sizeof(got), 0));
  MUST(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0));
  MUST(fi_eq_sread(eq, &event, &got, sizeof(got), 1000, 0));
  printf("event %s, data %" PRIu64 "\n", event == FI_NOTIFY ? "FI_NOTIFY" : "?", got.data);
  MUST(fi_close(&eq->fid));
  end();
  return 0;
}
