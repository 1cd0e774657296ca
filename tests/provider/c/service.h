/* A domain of a CXI service. */
#pragma once
#include "keys.h"
#include "pair.h"

/* fi_domain with this key. */
static long with_key(struct fi_info* of, uint32_t service, uint16_t vni, struct fid_domain** opened) {
  struct auth_key* key = calloc(1, sizeof(*key));
  struct fi_info* asked = fi_dupinfo(of);
  *key = (struct auth_key){service, vni, 0};
  asked->domain_attr->auth_key = (uint8_t*)key;
  asked->domain_attr->auth_key_size = sizeof(*key);
  long r = fi_domain(fabric, asked, opened, NULL);
  fi_freeinfo(asked);
  return r;
}
