/* A program that opens what it is told, and goes on after errors: helper_late PROVIDER. It has a domain and a completion
 * queue; a line "queue" opens another queue, "fork" makes a child that only waits, "end" closes everything. */
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include "must.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  struct fi_info *hints = fi_allocinfo(), *info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_cq* queues[8];
  size_t count = 0;
  hints->fabric_attr->prov_name = strdup(argv[1]);
  MUST(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
  MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
  MUST(fi_domain(fabric, info, &domain, NULL));
  struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 64, .wait_obj = FI_WAIT_NONE};
  MUST(fi_cq_open(domain, &attr, &queues[count++], NULL));
  puts("open");
  for (char line[16]; fgets(line, sizeof(line), stdin) != NULL && strcmp(line, "end\n");) {
    if (!strcmp(line, "fork\n")) {
      pid_t child = fork();
      if (child == 0) {
        pause();
        _exit(0);
      }
      printf("%d\n", (int)child);
    } else if (count < 8) {
      long r = fi_cq_open(domain, &attr, &queues[count], NULL);
      if (r == 0) ++count;
      refused("fi_cq_open", r);
    }
  }
  while (count) MUST(fi_close(&queues[--count]->fid));
  MUST(fi_close(&domain->fid));
  MUST(fi_close(&fabric->fid));
  puts("closed");
  return 0;
}
