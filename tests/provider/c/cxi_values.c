/* Options and values of the provider cxi (fi_cxi(7), "CXI EXTENSIONS") that cxi_ext.c leaves out: flags of counters, cached
 * keys, request buffers, order and time of retries, of endpoints and aliases; the NIC's attributes; tables after the
 * close of their object and in a forked child. argv[2]: a service that allows VNI 7 and has four list entries. */
#include <sys/wait.h>
#include <unistd.h>

#include "cxi_ext.h"
#include "service.h"

static struct dom_ops* domain_ops;
static struct cntr_ops* counter_ops;

static void of_counter(void) {
  struct fid_cntr* cntr;
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE, .flags = CACHED};
  uint64_t flags = 0;
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  MUST(fi_control(&cntr->fid, FI_GETOPSFLAG, &flags));
  printf("flags, opened cached: %#" PRIx64 "\n", flags);
  MUST(fi_cntr_add(cntr, 5));
  uint64_t first = fi_cntr_read(cntr), second = fi_cntr_read(cntr);
  printf("cached reads: %" PRIu64 ", %" PRIu64 "\n", first, second);
  flags = 0;
  MUST(fi_control(&cntr->fid, FI_SETOPSFLAG, &flags));
  MUST(fi_cntr_add(cntr, 5));
  printf("a read that is not cached: %" PRIu64 "\n", fi_cntr_read(cntr));
  flags = CACHED;
  MUST(fi_control(&cntr->fid, FI_SETOPSFLAG, &flags));
  flags = 0;
  MUST(fi_control(&cntr->fid, FI_GETOPSFLAG, &flags));
  MUST(fi_cntr_add(cntr, 5));
  printf("flags, set: %#" PRIx64 ", a cached read: %" PRIu64 "\n", flags, fi_cntr_read(cntr));
  flags = 4;
  refused("a flag that is none", fi_control(&cntr->fid, FI_SETOPSFLAG, &flags));
  refused("flags, NULL", fi_control(&cntr->fid, FI_SETOPSFLAG, NULL));
  refused("a command that is none", fi_control(&cntr->fid, FI_FLUSH_WORK, &flags));
  MUST(fi_close(&cntr->fid));
}

static uint64_t key_of_region(void) {
  static char memory[64];
  struct fid_mr* mr = region(A, memory, sizeof(memory), FI_REMOTE_WRITE, 0);
  uint64_t key = fi_mr_key(mr);
  MUST(fi_close(&mr->fid));
  return key;
}

static void of_domain(void) {
  bool set = false;
  MUST(fi_control(&domain->fid, kSetKeyCache, &set));
  struct {
    bool found;
    char beside[7];
  } one = {true, "beside"};
  MUST(fi_control(&domain->fid, kGetKeyCache, &one.found));
  printf("cached keys: %d, %s\n", one.found, one.beside);
  unsigned char any = 7; /* C++ reads a bool of another byte as it likes */
  MUST(fi_control(&domain->fid, kSetKeyCache, &any));
  MUST(fi_control(&domain->fid, kGetKeyCache, &set));
  printf("cached keys: %d\n", set);
  refused("cached keys, NULL", fi_control(&domain->fid, kSetKeyCache, NULL));
  size_t bytes = 1;
  MUST(fi_control(&domain->fid, kSetRequestBuffer, &bytes));
  MUST(fi_control(&domain->fid, kGetRequestBuffer, &bytes));
  printf("the least request buffer: %s\n", bytes > 1 ? "more than one byte" : "one byte");
  bytes = 64 << 20;
  MUST(fi_control(&domain->fid, kSetRequestBuffer, &bytes));
  bytes = 0;
  MUST(fi_control(&domain->fid, kGetRequestBuffer, &bytes));
  printf("a request buffer: %zu\n", bytes);
  bytes = 0;
  refused("a request buffer of nothing", fi_control(&domain->fid, kSetRequestBuffer, &bytes));
  refused("a request buffer, no room", fi_control(&domain->fid, kGetRequestBuffer, NULL));
  MUST(domain_ops->enable_optimized_mrs(&domain->fid, true));
  uint64_t forms[2], before = key_of_region() >> 56;
  for (int i = 0; i < 2; ++i) {
    bool events = !i, optimized = !i;
    long r = domain_ops->enable_mr_match_events(&domain->fid, !i);
    forms[i] = key_of_region() >> 56; /* before another call asks for the domain's options */
    MUST(fi_control(&domain->fid, kGetMatchEvents, &events));
    printf("enable_mr_match_events: %s, %d\n", r < 0 ? fi_strerror((int)-r) : "no error", events);
    MUST(domain_ops->enable_optimized_mrs(&domain->fid, !i));
    MUST(fi_control(&domain->fid, kGetOptimized, &optimized));
    printf("enable_optimized_mrs: %d\n", optimized);
  }
  printf("keys of regions with match events: %s\n", forms[0] != before ? "another form" : "the same form");
  printf("keys of regions without them: %s\n", forms[1] != before ? "another form" : "the same form");
  struct fi_fid_var var = {kSetTclass, &bytes};
  refused("a value of a domain", fi_control(&domain->fid, FI_SET_VAL, &var));
  refused("a value of a domain, read", fi_get_val(&domain->fid, kSetTclass, &bytes));
}

static void values(const char* what, struct fid_ep* ep) {
  uint64_t order = FI_ORDER_NONE;
  uint32_t tclass = FI_TC_DEDICATED_ACCESS;
  MUST(fi_set_val(&ep->fid, kSetTclass, &tclass));
  MUST(fi_set_val(&ep->fid, kSetMsgOrder, &order));
  order = FI_ORDER_SAS | FI_ORDER_RMA_RAR;
  MUST(fi_set_val(&ep->fid, kSetMsgOrder, &order));
  order = UINT64_C(1) << 60;
  printf("%s: ", what);
  refused("an order that is none", fi_set_val(&ep->fid, kSetMsgOrder, &order));
  order = 1000;
  printf("%s: ", what);
  refused("a time of retries", fi_set_val(&ep->fid, kSetRetryTime, &order));
  printf("%s: ", what);
  refused("a value that is read", fi_get_val(&ep->fid, kSetTclass, &tclass));
}

static void of_endpoint(void) {
  struct side *a = &sides[A], *b = &sides[B];
  struct fid_ep* alias = NULL;
  values("endpoint", a->ep);
  MUST(fi_ep_alias(a->ep, &alias, FI_TRANSMIT));
  values("alias", alias);
  static char out[8] = "by both", in[16];
  for (int i = 0; i < 2; ++i) {
    struct fi_cq_tagged_entry e;
    memset(in, 0, sizeof(in));
    POST(fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 3, 0, &contexts[0]));
    POST(fi_tsend(i ? alias : a->ep, out, sizeof(out), NULL, a->peer, 3, &contexts[1]));
    if (next(a->tx, &e) < 0 || next(b->rx, &e) < 0) exit(4);
    printf("received: %s\n", in);
  }
  struct fi_cq_tagged_entry e;
  fi_addr_t sources[1] = {4711}; /* an endpoint without FI_SOURCE knows no senders */
  size_t total = 0;
  POST(fi_tinject(a->ep, out, sizeof(out), a->peer, 9));
  while (domain_ops->ep_get_unexp_msgs(b->ep, &e, 1, sources, &total) != 1) progress();
  printf("a waiting message: tag %" PRIu64 ", sender %" PRIu64 "\n", e.tag, sources[0]);
  POST(fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 9, 0, &contexts[0]));
  if (next(b->rx, &e) < 0) exit(4);
  MUST(fi_close(&alias->fid));
  refused("operation flags, NULL", fi_control(&a->ep->fid, FI_SETOPSFLAG, NULL));
  refused("operation flags, no room", fi_control(&a->ep->fid, FI_GETOPSFLAG, NULL));
  uint64_t attempts = 0;
  size_t size = sizeof(attempts), least = (1 << 24) - 1;
  MUST(fi_setopt(&a->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
  ++least;
  refused("least room of 2^24", fi_setopt(&a->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
  refused("attempts of another protocol", fi_getopt(&a->ep->fid, FI_OPT_ENDPOINT, kAppendAttempts, &attempts, &size));
}

/* Endpoints of FI_PROTO_CXI_RNR, which keep no message without a receive. */
static void retries(uint32_t service) {
  struct fi_info* rnr;
  struct fid_domain* other;
  struct fid_ep* eps[2];
  struct fid_cq* cq;
  struct fid_av* av;
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 64, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  fi_addr_t to = 0;
  hints->ep_attr->protocol = kProtoRnr;
  hints->caps = FI_MSG | FI_TAGGED;
  MUST(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &rnr));
  MUST(with_key(rnr, service, 7, &other));
  MUST(fi_cq_open(other, &cq_attr, &cq, NULL));
  MUST(fi_av_open(other, &av_attr, &av, NULL));
  for (int i = 0; i < 2; ++i) {
    MUST(fi_endpoint(other, rnr, &eps[i], NULL));
    MUST(fi_ep_bind(eps[i], &cq->fid, FI_TRANSMIT | FI_RECV));
    MUST(fi_ep_bind(eps[i], &av->fid, 0));
    MUST(fi_enable(eps[i]));
  }
  char name[512];
  size_t size = sizeof(name);
  MUST(fi_getname(&eps[1]->fid, name, &size));
  if (fi_av_insert(av, name, 1, &to, 0, NULL) != 1) exit(3);

  uint64_t attempts = 99;
  size = sizeof(attempts);
  MUST(fi_getopt(&eps[0]->fid, FI_OPT_ENDPOINT, kAppendAttempts, &attempts, &size));
  printf("attempts: %" PRIu64 ", %zu bytes\n", attempts, size);
  size = 4;
  refused("attempts, room for 4 bytes", fi_getopt(&eps[0]->fid, FI_OPT_ENDPOINT, kAppendAttempts, &attempts, &size));
  refused("attempts, no room", fi_getopt(&eps[0]->fid, FI_OPT_ENDPOINT, kAppendAttempts, NULL, &size));
  uint64_t us = UINT64_MAX;
  refused("a time of retries that is too long", fi_set_val(&eps[0]->fid, kSetRetryTime, &us));
  /* Six receives, and four list entries: two receives are posted again. */
  static char in[6][8], out[8];
  for (uint64_t i = 0; i < 6; ++i) MUST(fi_trecv(eps[1], in[i], 8, NULL, FI_ADDR_UNSPEC, i, 0, &contexts[i]));
  struct fi_cq_tagged_entry e = {0};
  size = sizeof(attempts);
  for (attempts = 0; attempts == 0;) {
    fi_cq_read(cq, NULL, 0);
    MUST(fi_getopt(&eps[1]->fid, FI_OPT_ENDPOINT, kAppendAttempts, &attempts, &size));
  }
  for (uint64_t i = 0; i < 6; ++i) {
    MUST(fi_tsend(eps[0], out, 8, NULL, to, i, NULL));
    for (int n = 0; n < 2; ++n) MUST(next(cq, &e));
  }
  puts("six receives of four list entries");
  us = 60000000; /* without it the first refusal ends a message here */
  struct fid_ep* alias = NULL;
  MUST(fi_ep_alias(eps[0], &alias, FI_TRANSMIT));
  MUST(fi_set_val(&alias->fid, kSetRetryTime, &us)); /* of the endpoint too */
  MUST(fi_send(eps[0], out, sizeof(out), NULL, to, &contexts[1]));
  long r = 0;
  for (int i = 0; i < 200 && r == 0; ++i) {
    usleep(100);
    r = fi_cq_read(cq, &e, 1);
    if (r == -FI_EAGAIN) r = 0;
  }
  MUST(fi_recv(eps[1], in[0], 8, NULL, FI_ADDR_UNSPEC, &contexts[2]));
  for (int i = 0; i < 2 && r == 0; ++i) MUST(next(cq, &e));
  printf("a message that is sent again: %s\n", r == 0 ? "received" : "ended early");
  us = 0;
  MUST(fi_set_val(&alias->fid, kSetRetryTime, &us));
  MUST(fi_close(&alias->fid));
  MUST(fi_send(eps[0], out, sizeof(out), NULL, to, &contexts[1]));
  long n = next(cq, &e);
  printf("a message that is not sent again: %s\n", n < 0 ? fi_strerror((int)-n) : "no error");
  for (int i = 0; i < 2; ++i) MUST(fi_close(&eps[i]->fid));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&cq->fid));
  MUST(fi_close(&other->fid));
  fi_freeinfo(rnr);
}

static void of_nic(void) {
  struct fi_info* copy = fi_dupinfo(info);
  struct nic_attr *one = info->nic->prov_attr, *other = copy->nic->prov_attr;
  struct nic_attr before = *one;
  char address[16];
  snprintf(address, sizeof(address), "%#x", one->addr);
  printf("NIC: version %u, %s address, %s service\n", one->version,
         strcmp(address, info->nic->link_attr->address) ? "another" : "its", one->default_rgroup_id ? "a" : "no");
  printf("a copy: %s\n", other != one && !memcmp(other, one, sizeof(*one)) ? "the same attributes" : "others");
  other->default_rgroup_id = other->default_vni = 0;
  refused("FI_OPT_CXI_NIC_REFRESH_ATTR", fi_control(&copy->nic->fid, kNicRefresh, NULL));
  printf("after it: %s\n", memcmp(other, &before, sizeof(before)) ? "other attributes" : "the same attributes");
  refused("a command that is none of a NIC", fi_control(&copy->nic->fid, kSetTclass, NULL));
  fi_freeinfo(copy);
}

/* The tables outlive the objects by which the program got them. */
static void tables(void) {
  struct fid_domain* other;
  struct fid_cntr* cntr;
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
  MUST(fi_domain(fabric, info, &other, NULL));
  MUST(fi_open_ops(&other->fid, "dom_ops_v6", 0, (void**)&domain_ops, NULL));
  MUST(fi_close(&other->fid));
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  MUST(fi_open_ops(&cntr->fid, "cxi_counter_ops", 0, (void**)&counter_ops, NULL));
  MUST(fi_close(&cntr->fid));
}

static void after_fork(void) {
  struct fid_cntr* cntr;
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
  static uint64_t buffer[1];
  uint64_t value;
  struct timespec when;
  void* address;
  size_t size, depth = 0, total;
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  MUST(counter_ops->set_wb_buffer(&cntr->fid, buffer, sizeof(buffer)));
  MUST(domain_ops->get_dwq_depth(&domain->fid, &depth));
  printf("tables of closed objects: %s\n", depth != 0 && buffer[0] != 0 ? "they work" : "no effect");
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    struct fi_cq_tagged_entry e[1];
    refused("child: cntr_read", domain_ops->cntr_read(&domain->fid, 0, &value, &when));
    refused("child: ep_get_unexp_msgs", (long)domain_ops->ep_get_unexp_msgs(sides[A].ep, e, 1, NULL, &total));
    refused("child: set_wb_buffer", counter_ops->set_wb_buffer(&cntr->fid, buffer, sizeof(buffer)));
    refused("child: get_mmio_addr", counter_ops->get_mmio_addr(&cntr->fid, &address, &size));
    refused("child: fi_control", fi_control(&domain->fid, kGetKeyCache, &total));
    refused("child: fi_open_ops", fi_open_ops(&cntr->fid, "cxi_counter_ops", 0, &address, NULL));
    printf("child: fi_cntr_read: %" PRIu64 "\n", fi_cntr_read(cntr));
    fflush(stdout);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  MUST(domain_ops->cntr_read(&domain->fid, 0, &value, &when));
  MUST(fi_close(&cntr->fid));
}

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA);
  tables();
  of_counter();
  of_domain();
  of_endpoint();
  retries((uint32_t)atoi(argv[2]));
  of_nic();
  after_fork();
  end();
  return 0;
}
