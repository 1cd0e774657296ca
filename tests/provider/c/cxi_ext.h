/* What fi_cxi_ext.h declares, for a pair of endpoints: a system's libfabric has no such header. */
#pragma once
#include <stdbool.h>
#include <time.h>

#include "pair.h"

struct dom_ops { /* struct fi_cxi_dom_ops */
  int (*cntr_read)(struct fid*, unsigned cntr, uint64_t* value, struct timespec* when);
  int (*topology)(struct fid*, unsigned* group, unsigned* of_switch, unsigned* port);
  int (*enable_hybrid_mr_desc)(struct fid*, bool enable);
  size_t (*ep_get_unexp_msgs)(struct fid_ep*, struct fi_cq_tagged_entry*, size_t count, fi_addr_t*, size_t* total);
  int (*get_dwq_depth)(struct fid*, size_t* depth);
  int (*enable_mr_match_events)(struct fid*, bool enable);
  int (*enable_optimized_mrs)(struct fid*, bool enable);
};
struct cntr_ops { /* struct fi_cxi_cntr_ops */
  int (*set_wb_buffer)(struct fid*, void* buffer, size_t length);
  int (*get_mmio_addr)(struct fid*, void** address, size_t* length);
};
struct nic_attr { /* struct cxip_nic_attr */
  uint32_t version, addr, default_rgroup_id, default_vni;
};
enum { kAdd = 0, kAddErr = 8, kReset = 16 }; /* words of a counter's page */
#define CACHED (UINT64_C(1) << 32)           /* FI_CXI_CNTR_CACHED */
enum { kProtoRnr = 29 };                     /* FI_PROTO_CXI_RNR */
enum {                                       /* FI_OPT_CXI_ */
  kFirst = -(0xccc << 16),
  kSetTclass = kFirst,
  kSetMsgOrder = kFirst + 1,
  kNicRefresh = kFirst + 2,
  kSetMatchEvents = kFirst + 3,
  kGetMatchEvents = kFirst + 4,
  kSetOptimized = kFirst + 5,
  kGetOptimized = kFirst + 6,
  kSetKeyCache = kFirst + 7,
  kGetKeyCache = kFirst + 8,
  kSetRetryTime = kFirst + 9,
  kSetMatchMode = kFirst + 10,
  kGetMatchMode = kFirst + 11,
  kSetRequestBuffer = kFirst + 12,
  kGetRequestBuffer = kFirst + 13,
  kAppendAttempts = kFirst + 14,
};
