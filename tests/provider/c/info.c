/* fi_getinfo alone: what there is, and the copies that libfabric makes of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

int main(int argc, char** argv) {
  struct fi_info *hints = fi_allocinfo(), *info = NULL;
  if (argc < 3) return 2;
  hints->fabric_attr->prov_name = strdup(argv[1]);
  uint32_t library = fi_version(), version = strcmp(argv[2], "own") ? FI_VERSION(1, (uint32_t)atoi(argv[2])) : library;
  hints->domain_attr->mr_mode = ~3;
  int r = fi_getinfo(version, NULL, NULL, 0, hints, &info);
  if (r) {
    printf("%s\n", fi_strerror(-r));
    return 1;
  }
  for (struct fi_info* one = info; one; one = one->next) {
    struct fi_info* copy = fi_dupinfo(one);
    printf("%s %s %s %s", copy->fabric_attr->prov_name, copy->domain_attr->name,
           copy->ep_attr->type == FI_EP_RDM ? "rdm" : "msg", copy->nic ? copy->nic->device_attr->name : "no nic");
    printf(" %d\n", copy->fabric_attr->api_version == version);
    if (!strlen(fi_tostr(copy, FI_TYPE_INFO))) return 1;
    fi_freeinfo(copy);
  }
  fi_freeinfo(info);
  fi_freeinfo(hints);
  return 0;
}
