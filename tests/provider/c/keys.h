/* Authorization keys, and what newer headers have of them: FI_AV_AUTH_KEY, since libfabric 1.20. */
#pragma once
#include <stdint.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#define AUTH_KEY (1ULL << 57) /* FI_AUTH_KEY */

/* fi_cxi(7), "Authorization Keys". */
struct auth_key {
  uint32_t service;
  uint16_t vni, pad;
};
struct ops_av { /* struct fi_ops_av */
  size_t size;
  void* others[7];
  int (*insert_auth_key)(struct fid_av*, const void*, size_t, fi_addr_t*, uint64_t);
  int (*lookup_auth_key)(struct fid_av*, fi_addr_t, void*, size_t*);
  int (*set_user_id)(struct fid_av*, fi_addr_t, fi_addr_t, uint64_t);
};
static inline struct ops_av* calls(struct fid_av* av) {
  return (struct ops_av*)av->ops;
}

/* Of struct fi_domain_attr. */
static inline size_t* max_ep_auth_key(struct fi_info* of) {
  return (size_t*)((char*)of->domain_attr + 192);
}
/* Hints: the vectors of the domain have keys (FI_AV_AUTH_KEY), an endpoint two of them. */
static inline void keys_of_vectors(struct fi_info* hints) {
  hints->domain_attr->auth_key_size = SIZE_MAX;
  *max_ep_auth_key(hints) = 2;
}

static int cxi;          /* the provider */
static uint32_t service; /* of the keys of cxi */

/* A key of the provider, and its size. */
static inline size_t key_of(uint16_t vni, void* out) {
  struct auth_key of_cxi = {service, vni, 0};
  memcpy(out, cxi ? (void*)&of_cxi : (void*)&vni, cxi ? sizeof(of_cxi) : sizeof(vni));
  return cxi ? sizeof(of_cxi) : sizeof(vni);
}
