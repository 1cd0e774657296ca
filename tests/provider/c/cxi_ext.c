/* The extensions of the provider cxi (fi_cxi(7), "CXI EXTENSIONS"): calls of domains and counters by fi_open_ops, options
 * by fi_control and fi_set_val, user ids of peers. */
#include <unistd.h>

#include "cxi_ext.h"
#include "keys.h"

static void of_domain(void) {
  static const char* const names[] = {"dom_ops_v1", "dom_ops_v6", "dom_ops_v7"};
  struct dom_ops* ops = NULL;
  for (int i = 0; i < 3; ++i) {
    ops = NULL;
    long r = fi_open_ops(&domain->fid, names[i], 0, (void**)&ops, NULL);
    printf("%s: %s, %s\n", names[i], fi_strerror((int)-r), ops != NULL ? "a table" : "none");
  }
  MUST(fi_open_ops(&domain->fid, "dom_ops_v6", 0, (void**)&ops, NULL));
  refused("no name", fi_open_ops(&domain->fid, NULL, 0, (void**)&ops, NULL));
  refused("no room", fi_open_ops(&domain->fid, "dom_ops_v1", 0, NULL, NULL));

  uint64_t value = 1;
  struct timespec when = {0, 0};
  MUST(ops->cntr_read(&domain->fid, 0, &value, &when));
  printf("cntr_read: %" PRIu64 ", %s\n", value, when.tv_sec > 1700000000 ? "now" : "no time");
  refused("cntr_read of no counter", ops->cntr_read(&domain->fid, 1u << 20, &value, &when));
  refused("cntr_read of an endpoint", ops->cntr_read(&sides[A].ep->fid, 0, &value, &when));
  refused("cntr_read of nothing", ops->cntr_read(NULL, 0, &value, &when));
  unsigned group = 99, of_switch = 99, port = 99;
  MUST(ops->topology(&domain->fid, &group, &of_switch, &port));
  MUST(ops->topology(&domain->fid, NULL, NULL, NULL));
  printf("topology: %s\n", group != 99 && of_switch != 99 && port != 99 ? "known" : "unknown");
  size_t depth = 0;
  MUST(ops->get_dwq_depth(&domain->fid, &depth));
  printf("get_dwq_depth: %s\n", depth > 0 ? "some" : "none");
  MUST(ops->enable_hybrid_mr_desc(&domain->fid, true));
  MUST(ops->enable_hybrid_mr_desc(&domain->fid, false));

  /* Two messages that nothing has received. */
  struct side *a = &sides[A], *b = &sides[B];
  static char out[8];
  for (uint64_t tag = 5; tag < 7; ++tag) POST(fi_tinject(a->ep, out, tag, a->peer, tag));
  struct fi_cq_tagged_entry entries[4];
  fi_addr_t sources[4];
  size_t total = 0, n = 0;
  for (int tries = 0; tries < 10000 && total < 2; ++tries) {
    progress();
    n = ops->ep_get_unexp_msgs(b->ep, entries, 4, sources, &total);
    if (total < 2) usleep(1000);
  }
  printf("unexpected: %zu of %zu\n", n, total);
  for (size_t i = 0; i < n && i < 4; ++i) printf("  tag %" PRIu64 ", %zu bytes\n", entries[i].tag, entries[i].len);
  n = ops->ep_get_unexp_msgs(b->ep, entries, 1, sources, &total);
  printf("unexpected, room for one: %zu of %zu\n", n, total);
  n = ops->ep_get_unexp_msgs(b->ep, NULL, 4, sources, &total);
  printf("unexpected, number alone: %zu of %zu\n", n, total);
  n = ops->ep_get_unexp_msgs(b->ep, entries, 4, NULL, &total);
  printf("unexpected, without senders: %zu of %zu\n", n, total);
  struct fid_ep* idle;
  MUST(fi_endpoint(domain, info, &idle, NULL));
  refused("unexpected, not enabled", (long)ops->ep_get_unexp_msgs(idle, entries, 4, sources, &total));
  MUST(fi_close(&idle->fid));
  refused("unexpected, no number", (long)ops->ep_get_unexp_msgs(b->ep, entries, 4, sources, NULL));
  refused("unexpected of nothing", (long)ops->ep_get_unexp_msgs(NULL, entries, 4, sources, &total));
}

static void of_counter(void) {
  struct fid_cntr* cntr;
  struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
  struct cntr_ops* ops = NULL;
  static uint64_t buffer[1];
  MUST(fi_cntr_open(domain, &attr, &cntr, NULL));
  refused("other calls of a counter", fi_open_ops(&cntr->fid, "cxi_counter_ops_v9", 0, (void**)&ops, NULL));
  MUST(fi_open_ops(&cntr->fid, "cxi_counter_ops", 0, (void**)&ops, NULL));
  refused("set_wb_buffer, no buffer", ops->set_wb_buffer(&cntr->fid, NULL, 8));
  refused("set_wb_buffer, 7 bytes", ops->set_wb_buffer(&cntr->fid, buffer, 7));
  refused("set_wb_buffer, read-only", ops->set_wb_buffer(&cntr->fid, (void*)(uintptr_t)"0123456789abcdef", 8));
  refused("set_wb_buffer, not mapped", ops->set_wb_buffer(&cntr->fid, (void*)4096, 8));
  refused("set_wb_buffer of a domain", ops->set_wb_buffer(&domain->fid, buffer, 8));
  MUST(ops->set_wb_buffer(&cntr->fid, buffer, sizeof(buffer)));
  MUST(fi_cntr_add(cntr, 7));
  printf("fi_cntr_read: %" PRIu64 "\n", fi_cntr_read(cntr));
  printf("written: %" PRIu64 "\n", buffer[0] & ((UINT64_C(1) << 48) - 1));

  void* address = NULL;
  size_t length = 0;
  refused("get_mmio_addr, no room", ops->get_mmio_addr(&cntr->fid, NULL, &length));
  MUST(ops->get_mmio_addr(&cntr->fid, &address, &length));
  printf("page: %s\n", address != NULL && length >= 256 ? "there" : "none");
  volatile uint64_t* page = address;
  page[kAdd] = 5;
  printf("after a store: %" PRIu64 "\n", fi_cntr_read(cntr));
  page[kAddErr] = 2;
  printf("errors after a store: %" PRIu64 "\n", fi_cntr_readerr(cntr));
  page[kReset] = 0;
  printf("after a reset: %" PRIu64 "\n", fi_cntr_read(cntr));
  uint64_t flags = 1;
  MUST(fi_control(&cntr->fid, FI_GETOPSFLAG, &flags));
  printf("flags: %" PRIu64 "\n", flags);
  refused("flags, no room", fi_control(&cntr->fid, FI_GETOPSFLAG, NULL));
  MUST(fi_close(&cntr->fid));
}

struct copies { /* struct fi_hmem_override_ops */
  size_t size;
  void (*from)(void);
  void (*to)(void);
};
static void copy(void) {
}

static void options(void) {
  struct copies copies = {sizeof(copies), copy, copy};
  MUST(fi_set_ops(&domain->fid, "hmem_override_ops", 0, &copies, NULL));
  copies.size = sizeof(copies) - 1;
  refused("copies, a table that is short", fi_set_ops(&domain->fid, "hmem_override_ops", 0, &copies, NULL));
  copies.size = sizeof(copies);
  copies.to = NULL;
  refused("copies, one of two", fi_set_ops(&domain->fid, "hmem_override_ops", 0, &copies, NULL));
  refused("copies, none", fi_set_ops(&domain->fid, "hmem_override_ops", 0, NULL, NULL));
  refused("other calls to set", fi_set_ops(&domain->fid, "other_ops", 0, &copies, NULL));
  refused("calls without a name", fi_set_ops(&domain->fid, NULL, 0, &copies, NULL));
  bool set = true;
  refused("match events, of a domain with endpoints", fi_control(&domain->fid, kSetMatchEvents, &set));
  MUST(fi_control(&domain->fid, kGetMatchEvents, &set));
  printf("match events: %d\n", set);
  set = false;
  MUST(fi_control(&domain->fid, kSetOptimized, &set));
  set = true;
  MUST(fi_control(&domain->fid, kGetOptimized, &set));
  printf("optimized regions: %d\n", set);
  refused("optimized regions, no room", fi_control(&domain->fid, kGetOptimized, NULL));
  char mode[64] = "";
  MUST(fi_control(&domain->fid, kGetMatchMode, mode));
  printf("match mode: %s\n", mode);
  refused("a command that is none", fi_control(&domain->fid, kFirst + 999, &set));
  refused("FI_MAP_RAW_MR", fi_control(&domain->fid, FI_MAP_RAW_MR, &set));
  refused("FI_UNMAP_KEY", fi_control(&domain->fid, FI_UNMAP_KEY, &set));
  refused("FI_CANCEL_WORK", fi_control(&domain->fid, FI_CANCEL_WORK, &set));
  refused("FI_QUEUE_WORK of nothing", fi_control(&domain->fid, FI_QUEUE_WORK, NULL));
  uint32_t tclass = FI_TC_LOW_LATENCY;
  MUST(fi_set_val(&sides[A].ep->fid, kSetTclass, &tclass));
  tclass = 12345;
  refused("a traffic class that is none", fi_set_val(&sides[A].ep->fid, kSetTclass, &tclass));
  refused("a traffic class, NULL", fi_set_val(&sides[A].ep->fid, kSetTclass, NULL));
  refused("a value that is none", fi_set_val(&sides[A].ep->fid, kFirst + 999, &tclass));
  refused("an option that is none", fi_setopt(&sides[A].ep->fid, FI_OPT_ENDPOINT, 4711, &tclass, sizeof(tclass)));
  refused("a level that is none", fi_setopt(&sides[A].ep->fid, 77, FI_OPT_CM_DATA_SIZE, &tclass, sizeof(tclass)));
}

/* A domain whose match mode the program sets: its endpoints follow. */
static void match_mode(void) {
  struct fid_domain* other;
  struct fid_ep* ep;
  struct fid_cq* cq;
  struct fid_av* av;
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 16, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  char mode[64] = "software";
  MUST(fi_domain(fabric, info, &other, NULL));
  refused("a match mode that is none", fi_control(&other->fid, kSetMatchMode, "soft"));
  refused("a match mode, NULL", fi_control(&other->fid, kSetMatchMode, NULL));
  MUST(fi_control(&other->fid, kSetMatchMode, mode));
  memset(mode, 0, sizeof(mode));
  MUST(fi_control(&other->fid, kGetMatchMode, mode));
  printf("match mode: %s\n", mode);
  MUST(fi_cq_open(other, &cq_attr, &cq, NULL));
  MUST(fi_av_open(other, &av_attr, &av, NULL));
  MUST(fi_endpoint(other, info, &ep, NULL));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  MUST(fi_enable(ep));

  char name[512];
  size_t size = sizeof(name);
  fi_addr_t self;
  static char out[8] = "matched", in[8];
  MUST(fi_getname(&ep->fid, name, &size));
  if (fi_av_insert(av, name, 1, &self, 0, NULL) != 1) exit(3);
  MUST(fi_trecv(ep, in, sizeof(in), NULL, self, 3, 0, NULL));
  MUST(fi_tinject(ep, out, sizeof(out), self, 3));
  struct fi_cq_tagged_entry e;
  long n;
  while ((n = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN) {
  }
  MUST(n);
  printf("received: %s\n", in);
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&cq->fid));
  MUST(fi_close(&other->fid));
}

/* The vector of FI_AV_USER_ID. */
static int set_id(struct fid_av* av, fi_addr_t address, fi_addr_t id, uint64_t flags) {
  return calls(av)->size < sizeof(struct ops_av) ? -FI_ENOSYS : calls(av)->set_user_id(av, address, id, flags);
}

static void user_ids(void) {
  struct fid_av* av;
  struct fid_ep* ep;
  struct fid_cq* cq;
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 16, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr attr = {.type = FI_AV_TABLE, .flags = FI_AV_USER_ID};
  char name[512];
  size_t size = sizeof(name);
  static char out[8], in[8];
  fi_addr_t self = 0, source = 0;
  refused("fi_av_set_user_id without FI_AV_USER_ID", set_id(sides[A].av, sides[A].peer, 4711, 0));
  struct fid_domain* other;
  struct fi_info* asked = fi_dupinfo(info);
  asked->domain_attr->caps |= FI_AV_USER_ID;
  MUST(fi_domain(fabric, asked, &other, NULL));
  MUST(fi_av_open(other, &attr, &av, NULL));
  MUST(fi_cq_open(other, &cq_attr, &cq, NULL));
  MUST(fi_endpoint(other, asked, &ep, NULL));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_ep_bind(ep, &av->fid, 0));
  MUST(fi_enable(ep));
  MUST(fi_getname(&ep->fid, name, &size));
  fi_addr_t given = 4712;
  if (fi_av_insert(sides[A].av, name, 1, &given, FI_AV_USER_ID, NULL) != 1 || given == 4712) exit(3);
  refused("fi_av_insert of no user id", fi_av_insert(av, name, 1, NULL, FI_AV_USER_ID, NULL));
  refused("fi_av_insert with other flags", fi_av_insert(av, name, 1, &self, FI_PEEK, NULL));
  if (fi_av_insert(av, name, 1, &self, 0, NULL) != 1) exit(3);
  refused("fi_av_set_user_id with flags", set_id(av, self, 4711, 1));
  refused("fi_av_set_user_id of nobody", set_id(av, 1000, 4711, 0));
  MUST(set_id(av, self, 4711, 0));
  for (int i = 0; i < 2; ++i) {
    struct fi_cq_tagged_entry e;
    long n;
    if (i == 1) {
      MUST(fi_av_remove(av, &self, 1, 0));
      self = 4713;
      if (fi_av_insert(av, name, 1, &self, FI_AV_USER_ID, NULL) != 1) exit(3);
    }
    POST(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
    POST(fi_inject(ep, out, sizeof(out), self));
    while ((n = fi_cq_readfrom(cq, &e, 1, &source)) == -FI_EAGAIN) {
    }
    MUST(n);
    printf("sender: %" PRIu64 "\n", source);
  }
  MUST(fi_close(&ep->fid));
  MUST(fi_close(&cq->fid));
  MUST(fi_close(&av->fid));
  MUST(fi_close(&other->fid));
  fi_freeinfo(asked);
}

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG | FI_TAGGED | FI_RMA | FI_SOURCE);
  of_domain();
  of_counter();
  options();
  match_mode();
  user_ids();
  end();
  return 0;
}
