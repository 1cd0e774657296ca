/* Threads that call while another closes objects (FI_THREAD_SAFE), never the object of a call that is under way:
 * closing PROVIDER ROUNDS. What must hold whatever the order: a closed region's memory does not change, each receive
 * ends once, and waiting calls return. */
#include <pthread.h>

#include "pair.h"

#define RECEIVES 16
#define BYTES 4096

static _Atomic int over;
static _Atomic uint64_t key_now, spare; /* of the region; the address that comes and goes */
static _Atomic long waits;
static long rounds;
static struct fid_cq* shared; /* the queue of endpoints that come and go */
static struct fid_cntr* counter;
static char target[BYTES], source[BYTES], got[RECEIVES][64];

static void drain(struct fid_cq* cq) {
  struct fi_cq_tagged_entry e[8];
  struct fi_cq_err_entry error;
  memset(&error, 0, sizeof(error));
  if (fi_cq_read(cq, e, 8) == -FI_EAVAIL) fi_cq_readerr(cq, &error, 0);
}

static void* sreads(void* unused) {
  while (!over) {
    struct fi_cq_tagged_entry e;
    struct fi_cq_err_entry error;
    memset(&error, 0, sizeof(error));
    if (fi_cq_sread(shared, &e, 1, NULL, 1) == -FI_EAVAIL) fi_cq_readerr(shared, &error, 0);
    ++waits;
  }
  return unused;
}

static void* reads(void* unused) {
  while (!over) drain(shared);
  return unused;
}

static void* counts(void* unused) {
  while (!over) {
    fi_cntr_wait(counter, fi_cntr_read(counter) + 1, 1);
    ++waits;
  }
  return unused;
}

/* Writes to a region that is closed again and again. */
static void* writes(void* own) {
  while (!over) {
    fi_write(sides[A].ep, source, own ? BYTES : 64, NULL, sides[A].peer, place(target, 0), key_now, own);
    drain(sides[A].tx);
  }
  return NULL;
}

/* Sends to an address that is removed again and again, and to one whose endpoint comes and goes. */
static void* sends(void* unused) {
  while (!over) {
    fi_tsend(sides[A].ep, source, 16, NULL, spare, 77, unused);
    fi_tinject(sides[A].ep, source, 16, sides[A].peer, 78);
    drain(sides[A].tx);
  }
  return unused;
}

static void* options(void* unused) {
  while (!over) {
    uint64_t flags = FI_TRANSMIT | FI_COMPLETION;
    fi_control(&sides[A].ep->fid, FI_SETOPSFLAG, &flags);
    flags = FI_TRANSMIT;
    fi_control(&sides[A].ep->fid, FI_GETOPSFLAG, &flags);
    size_t least = 64;
    fi_setopt(&sides[A].ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least));
  }
  return unused;
}

/* Opens an endpoint on the shared queue, leaves operations under way, and closes it. */
static void come_and_go(struct fid_av* av, const char* name) {
  static long sent;
  struct fid_ep* ep;
  MUST(fi_endpoint(domain, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &shared->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(ep, &counter->fid, FI_WRITE | FI_SEND | FI_RECV));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  MUST(fi_enable(ep));
  fi_addr_t to;
  if (fi_av_insert(av, name, 1, &to, 0, NULL) != 1) exit(3);
  for (int i = 0; i < 4; ++i) {
    fi_trecv(ep, got[i], 64, NULL, FI_ADDR_UNSPEC, 77, 0, &contexts[8 + i]);
    fi_tsend(ep, source, 64, NULL, to, 79, &contexts[12 + i]);
    fi_write(ep, source, 64, NULL, to, place(target, 0), key_now, &contexts[16 + i]);
  }
  char own[512];
  size_t size = sizeof(own);
  MUST(fi_getname(&ep->fid, own, &size));
  fi_addr_t here;
  if (fi_av_insert(sides[A].av, own, 1, &here, 0, NULL) != 1) exit(3);
  spare = here;
  for (int i = 0; i < 16; ++i) progress();
  if (sent % 2) fi_av_remove(sides[A].av, &here, 1, 0);
  MUST(fi_close(&ep->fid));
  if (sent++ % 2 == 0) fi_av_remove(sides[A].av, &here, 1, 0);
}

/* Posts receives, cancels them while messages for them arrive: each ends once. */
static void* cancels(void* unused) {
  struct fi_context2 mine[RECEIVES];
  long ended[RECEIVES] = {0}, posted = 0, cancelled = 0;
  for (long turn = 0; !over; ++turn) {
    for (int i = 0; i < RECEIVES; ++i) {
      ended[i] = 0;
      while (fi_trecv(sides[B].ep, got[i], 64, NULL, FI_ADDR_UNSPEC, 78, 0, &mine[i])) drain(sides[B].tx);
      ++posted;
    }
    for (int i = 0; i < RECEIVES; ++i) fi_cancel(&sides[B].ep->fid, &mine[i]);
    for (int left = RECEIVES; left > 0;) {
      struct fi_cq_tagged_entry e = {0};
      struct fi_cq_err_entry error;
      memset(&error, 0, sizeof(error));
      long n = fi_cq_read(sides[B].rx, &e, 1);
      if (n == -FI_EAVAIL && fi_cq_readerr(sides[B].rx, &error, 0) == 1) {
        n = 1;
        e.op_context = error.op_context;
        if (error.err == FI_ECANCELED) ++cancelled;
      }
      if (n != 1) continue;
      long which = (struct fi_context2*)e.op_context - mine;
      if (which < 0 || which >= RECEIVES || ended[which]++) puts("a receive that has ended already");
      --left;
    }
  }
  if (posted < RECEIVES) puts("no receives");
  return unused;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  rounds = atol(argv[2]);
  threading = FI_THREAD_SAFE;
  begin(argc, argv, FI_RMA | FI_TAGGED | FI_MSG);
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 1024, .wait_obj = FI_WAIT_UNSPEC};
  struct fi_cntr_attr cntr_attr = {.wait_obj = FI_WAIT_UNSPEC};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  MUST(fi_cq_open(domain, &cq_attr, &shared, NULL));
  MUST(fi_cntr_open(domain, &cntr_attr, &counter, NULL));
  char name[512];
  size_t size = sizeof(name);
  MUST(fi_getname(&sides[B].ep->fid, name, &size));
  spare = sides[A].peer;
  void* (*work[])(void*) = {sreads, reads, counts, writes, writes, sends, options, cancels};
  enum { kThreads = sizeof(work) / sizeof(*work) };
  pthread_t threads[kThreads];
  struct fid_mr* mr = region(B, target, BYTES, FI_REMOTE_WRITE | FI_REMOTE_READ, 5);
  key_now = fi_mr_key(mr);
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work[i], i % 2 ? &contexts[i] : NULL);
  for (long i = 0; i < rounds; ++i) {
    long r;
    while ((r = fi_close(&mr->fid)) == -FI_EBUSY) progress();
    MUST(r);
    memset(target, (int)(0x40 + i % 16), BYTES);
    come_and_go(sides[A].av, name);
    struct fid_av* av;
    MUST(fi_av_open(domain, &av_attr, &av, NULL));
    come_and_go(av, name);
    MUST(fi_close(&av->fid));
    for (int b = 0; b < BYTES; ++b) {
      if (target[b] != (char)(0x40 + i % 16)) {
        puts("a closed region's memory has changed");
        break;
      }
    }
    mr = region(B, target, BYTES, FI_REMOTE_WRITE | FI_REMOTE_READ, 5);
    key_now = fi_mr_key(mr);
  }
  while (waits < 8) fi_cq_read(sides[B].tx, NULL, 0);
  over = 1;
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  MUST(fi_close(&mr->fid));
  MUST(fi_close(&counter->fid));
  MUST(fi_close(&shared->fid));
  end();
  return 0;
}
