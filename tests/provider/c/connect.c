/* Connected endpoints (FI_EP_MSG): a server and its clients, processes of their own, print what they saw in turn.
 * argv: provider, and a text that chooses what happens. The server is the parent; the client sends its lines through a
 * pipe, so that the output has one order. */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <poll.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "must.h"

enum { WAIT_MS = 20000, TURN_MS = 20, LONG = 1 << 20 };

static const char* provider;
static struct fi_info* info;
static struct fid_fabric* fabric;
static struct fid_domain* domain;
static struct fid_eq* eq;
static struct fid_cq* cq;
static struct fi_eq_cm_entry* entry; /* of the event that was read last, with 256 bytes of data */
static char out[1 << 20], in[1 << 20];

static struct fi_info* find(const void* dest, size_t size, uint64_t flags, const char* node) {
  struct fi_info *hints = fi_allocinfo(), *found;
  hints->fabric_attr->prov_name = strdup(provider);
  hints->ep_attr->type = FI_EP_MSG;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  if (dest != NULL) {
    hints->dest_addr = malloc(size);
    memcpy(hints->dest_addr, dest, size);
    hints->dest_addrlen = size;
  }
  MUST(fi_getinfo(FI_VERSION(1, 15), node, NULL, flags, hints, &found));
  fi_freeinfo(hints);
  return found;
}

static void begin(const void* dest, size_t size) {
  int real = strcmp(provider, "weft") != 0;
  info = find(dest, size, dest == NULL && real ? FI_SOURCE : 0, dest == NULL && real ? "127.0.0.1" : NULL);
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  struct fi_eq_attr attr = {.wait_obj = FI_WAIT_FD};
  MUST(fi_eq_open(fabric, &attr, &eq, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .size = 64, .wait_obj = FI_WAIT_NONE};
  MUST(fi_cq_open(domain, &cq_attr, &cq, NULL));
  entry = malloc(sizeof(*entry) + 256);
}

static void end(void) {
  MUST(fi_close(&cq->fid));
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&eq->fid));
  MUST(fi_close(&fabric->fid));
  fi_freeinfo(info);
  free(entry);
}

static struct fid_ep* endpoint(struct fi_info* of) {
  struct fid_ep* ep;
  MUST(fi_endpoint(domain, of, &ep, NULL));
  MUST(fi_ep_bind(ep, &eq->fid, 0));
  MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  MUST(fi_enable(ep));
  return ep;
}

/* The next event; its data is printed. */
static uint32_t event(const char* who) {
  static const char* names[] = {"FI_NOTIFY", "FI_CONNREQ", "FI_CONNECTED", "FI_SHUTDOWN"};
  uint32_t number = 99;
  long n = -FI_EAGAIN;
  for (int waited = 0; n == -FI_EAGAIN && waited < WAIT_MS; waited += TURN_MS) {
    n = fi_eq_sread(eq, &number, entry, sizeof(*entry) + 256, TURN_MS, 0);
    if (n == -FI_EAGAIN) fi_cq_read(cq, NULL, 0); /* tcp notices the end of a connection in this call */
  }
  if (n == -FI_EAVAIL) {
    char data[256];
    struct fi_eq_err_entry error = {.err_data = data, .err_data_size = sizeof(data)};
    MUST(fi_eq_readerr(eq, &error, 0));
    printf("%s: error: %s", who, fi_strerror(error.err));
    /* Details that only a provider knows are not compared. */
    if (error.err_data_size != 0 && memcmp(data, "no: ", 4) == 0) printf(", data %.*s", (int)error.err_data_size, data);
    printf("\n");
    return 100;
  }
  MUST(n);
  printf("%s: %s", who, number < 4 ? names[number] : "another event");
  if (n > (long)sizeof(*entry)) printf(", data %.*s", (int)(n - sizeof(*entry)), (char*)entry->data);
  printf("%s\n", number == FI_CONNREQ && entry->info != NULL && entry->info->handle != NULL ? ", a handle" : "");
  return number;
}

static void completed(int count) {
  struct fi_cq_msg_entry e;
  for (int found = 0; found < count;) {
    long n = fi_cq_read(cq, &e, 1);
    if (n == 1) ++found;
    if (n == -FI_EAVAIL) {
      struct fi_cq_err_entry error = {0};
      MUST(fi_cq_readerr(cq, &error, 0));
      printf("a transfer: %s\n", fi_strerror(error.err));
      exit(1);
    }
    uint32_t number;
    if (n == -FI_EAGAIN) fi_eq_read(eq, &number, entry, sizeof(*entry), FI_PEEK);
  }
}

static struct fi_context2 contexts[2];
static struct fid_mr *out_mr, *in_mr;
static void* desc(struct fid_mr* mr) { return mr != NULL ? fi_mr_desc(mr) : NULL; }

/* Sends `size` bytes and receives as many, which are checked. */
static void exchange(struct fid_ep* ep, size_t size, char mine, char theirs) {
  memset(out, mine, size);
  memset(in, 0, size);
  long r;
  while ((r = fi_recv(ep, in, size, desc(in_mr), FI_ADDR_UNSPEC, &contexts[0])) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
  MUST(r);
  while ((r = fi_send(ep, out, size, desc(out_mr), FI_ADDR_UNSPEC, &contexts[1])) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
  MUST(r);
  completed(2);
  for (size_t i = 0; i < size; ++i) {
    if (in[i] != theirs) {
      printf("other bytes\n");
      return;
    }
  }
}

static void registered(void) {
  MUST(fi_mr_reg(domain, out, LONG, FI_SEND, 0, 1, 0, &out_mr, NULL));
  MUST(fi_mr_reg(domain, in, LONG, FI_RECV, 0, 2, 0, &in_mr, NULL));
}
static void unregistered(void) {
  MUST(fi_close(&out_mr->fid));
  MUST(fi_close(&in_mr->fid));
}

/* ---- the client ---- */

static void client(const char* what, const void* name, size_t size) {
  begin(name, size);
  struct fid_ep* ep = endpoint(info);
  if (strcmp(what, "nobody") == 0) { /* the passive endpoint is closed */
    MUST(fi_connect(ep, name, "hello", 5));
    event("client");
  } else {
    MUST(fi_connect(ep, name, "hello", 5));
    uint32_t number = event("client");
    if (number == FI_CONNECTED) {
      printf("client: its endpoint: %s\n", entry->fid == &ep->fid ? "yes" : "no");
      char peer[256];
      size_t length = sizeof(peer);
      MUST(fi_getpeer(ep, peer, &length));
      registered();
      for (size_t n = 1; n <= LONG; n *= 32) exchange(ep, n, 'c', 's');
      printf("client: messages both ways\n");
      if (strcmp(what, "killed") == 0) {
        fflush(stdout);
        raise(SIGKILL);
      }
      if (strcmp(what, "client") == 0) MUST(fi_shutdown(ep, 0));
      if (strcmp(what, "server") == 0) event("client");
      unregistered();
    }
  }
  MUST(fi_close(&ep->fid));
  end();
  printf("client: closed\n");
  fflush(stdout);
}

/* ---- the server ---- */

static void print_and_wait(pid_t child, int from) {
  char line[4096];
  ssize_t n;
  while ((n = read(from, line, sizeof(line))) > 0) fwrite(line, 1, (size_t)n, stdout);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) printf("client: killed\n");
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  provider = argv[1];
  const char* what = argv[2];
  if (argc > 3) { /* the client: the name of the passive endpoint is in hexadecimal */
    unsigned char name[256];
    size_t size = strlen(argv[3]) / 2;
    for (size_t i = 0; i < size; ++i) sscanf(argv[3] + 2 * i, "%2hhx", &name[i]);
    client(what, name, size);
    return 0;
  }
  begin(NULL, 0);
  struct fid_pep* pep;
  MUST(fi_passive_ep(fabric, info, &pep, NULL));
  MUST(fi_pep_bind(pep, &eq->fid, 0));
  MUST(fi_listen(pep));
  unsigned char name[256];
  size_t size = sizeof(name);
  MUST(fi_getname(&pep->fid, name, &size));
  size_t room = 1;
  refused("fi_getname, too small", fi_getname(&pep->fid, out, &room));
  printf("its length: %s\n", room == size ? "the same" : "another");
  size_t most = 0, length = sizeof(most);
  MUST(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &most, &length));
  printf("FI_OPT_CM_DATA_SIZE: %s\n", most >= 256 ? "256 or more" : "less");
  int fd = -1;
  MUST(fi_control(&eq->fid, FI_GETWAIT, &fd));
  char hex[2 * sizeof(name) + 1] = "";
  for (size_t i = 0; i < size; ++i) sprintf(hex + 2 * i, "%02x", name[i]);
  if (strcmp(what, "nobody") == 0) MUST(fi_close(&pep->fid));
  int pipes[2];
  if (pipe(pipes) != 0) return 3;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    dup2(pipes[1], 1);
    close(pipes[0]);
    close(pipes[1]);
    execl(argv[0], argv[0], provider, what, hex, NULL);
    _exit(9);
  }
  close(pipes[1]);
  if (strcmp(what, "nobody") != 0) {
    struct fid* waits[] = {&eq->fid};
    while (fi_trywait(fabric, waits, 1) == 0) {
      struct pollfd one = {fd, POLLIN, 0};
      if (poll(&one, 1, WAIT_MS) == 0) return 4;
      uint32_t number;
      if (fi_eq_read(eq, &number, entry, sizeof(*entry), FI_PEEK) != -FI_EAGAIN) break;
    }
    event("server");
    printf("server: its passive endpoint: %s\n", entry->fid == &pep->fid ? "yes" : "no");
    struct fi_info* request = entry->info;
    printf("server: FI_EP_MSG: %s, an address: %s\n", request->ep_attr->type == FI_EP_MSG ? "yes" : "no",
           request->dest_addr != NULL ? "yes" : "no");
    if (strcmp(what, "rejected") == 0) {
      MUST(fi_reject(pep, request->handle, "no: full", 8));
    } else {
      struct fid_ep* ep = endpoint(request);
      MUST(fi_accept(ep, "welcome", 7));
      event("server");
      printf("server: its endpoint: %s\n", entry->fid == &ep->fid ? "yes" : "no");
      registered();
      for (size_t n = 1; n <= LONG; n *= 32) exchange(ep, n, 's', 'c');
      printf("server: messages both ways\n");
      if (strcmp(what, "server") == 0) MUST(fi_shutdown(ep, 0));
      else event("server"); /* FI_SHUTDOWN */
      MUST(fi_close(&ep->fid));
      unregistered();
    }
    fi_freeinfo(request);
    print_and_wait(child, pipes[0]);
    MUST(fi_close(&pep->fid));
  } else {
    print_and_wait(child, pipes[0]);
  }
  end();
  printf("closed\n");
  return 0;
}
