// cpp/ofi/abi.hpp: the data structures of libfabric's application interface, as the library has them in memory.
//
// Laid out from the public interface, so that no header of libfabric is needed to build. Most calls of libfabric are
// inline functions that jump through tables of pointers; each table begins with its size, and later versions of the
// library append calls. `op()` finds a call, or null if the library is too old for it. Structs that the library
// allocates may be longer than here: new fields come last.
//
// Versions: 1.5 (the first with today's registration modes) to 2.x; comments mark additions after 1.14.
// Source: fi_getinfo(3), fi_endpoint(3), fi_domain(3), fi_cq(3), fi_eq(3), fi_av(3), fi_mr(3), fi_rma(3), fi_msg(3),
// fi_tagged(3), fi_atomic(3), fi_collective(3), fi_av_set(3), fi_cm(3), fi_cntr(3), fi_trigger(3),
// fi_poll(3).
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace weft::ofi {

using Addr = uint64_t;  // fi_addr_t

// ---- fids ----------------------------------------------------------------------------------------------------------

struct Fid;
struct FidFabric;
struct FidDomain;
struct FidEp;
struct FidPep;
struct FidAv;
struct FidCq;
struct FidEq;
struct FidCntr;
struct FidMr;
struct FidAvSet;
struct FidMc;
struct Info;

struct FidOps {
  size_t size;
  int (*close)(Fid*);
  int (*bind)(Fid*, Fid*, uint64_t flags);
  int (*control)(Fid*, int command, void* arg);
  int (*ops_open)(Fid*, const char* name, uint64_t flags, void** ops, void* context);
  int (*tostr)(const Fid*, char* out, size_t size);
  int (*ops_set)(Fid*, const char* name, uint64_t flags, void* ops, void* context);  // since 1.13
};
struct Fid {
  size_t fclass;
  void* context;
  FidOps* ops;
};

// Commands of fi_control.
constexpr int kGetOpsFlag = 2, kSetOpsFlag = 3, kAlias = 4, kGetWait = 5, kEnable = 6, kGetRawMr = 8, kMapRawMr = 9,
              kUnmapKey = 10, kQueueWork = 11, kCancelWork = 12, kFlushWork = 13, kRefresh = 14, kDup = 15,
              kGetWaitObj = 16, kGetVal = 17, kSetVal = 18;
struct FidVar {  // of kGetVal and kSetVal
  int name;
  void* value;
};
struct HmemOverrideOps {  // of fi_set_ops "hmem_override_ops"
  size_t size;
  void (*copy_from)();
  void (*copy_to)();
};

// ---- fi_getinfo ----------------------------------------------------------------------------------------------------

struct TxAttr {
  uint64_t caps, mode, op_flags, msg_order, comp_order;
  size_t inject_size, size, iov_limit, rma_iov_limit;
  uint32_t tclass;
};
struct RxAttr {
  uint64_t caps, mode, op_flags, msg_order, comp_order;
  size_t total_buffered_recv, size, iov_limit;
};
struct EpAttr {
  int type;
  uint32_t protocol, protocol_version;
  size_t max_msg_size, msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size;
  uint64_t mem_tag_format;
  size_t tx_ctx_cnt, rx_ctx_cnt, auth_key_size;
  uint8_t* auth_key;
};
struct DomainAttr {
  FidDomain* domain;
  char* name;
  int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
  size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt;
  size_t max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit;
  uint64_t caps, mode;
  uint8_t* auth_key;
  size_t auth_key_size, max_err_data, mr_cnt;
  uint32_t tclass;
  size_t max_ep_auth_key;  // since 1.20
  uint32_t max_group_id;   // since 2.1, as the next two
  uint64_t max_cntr_value, max_err_cntr_value;
};
struct FabricAttr {
  FidFabric* fabric;
  char *name, *prov_name;
  uint32_t prov_version, api_version;
};
struct DeviceAttr {
  char *name, *device_id, *device_version, *vendor_id, *driver, *firmware;
};
struct BusAttr {
  int bus_type;
  uint16_t domain;
  uint8_t bus, device, function;
};
struct LinkAttr {
  char* address;
  size_t mtu, speed;
  int state;
  char* network_type;
};
struct FidNic {
  Fid fid;
  DeviceAttr* device;
  BusAttr* bus;
  LinkAttr* link;
  void* prov_attr;
};
struct Info {
  Info* next;
  uint64_t caps, mode;
  uint32_t addr_format;
  size_t src_addrlen, dest_addrlen;
  void *src_addr, *dest_addr;
  Fid* handle;
  TxAttr* tx;
  RxAttr* rx;
  EpAttr* ep;
  DomainAttr* domain;
  FabricAttr* fabric;
  FidNic* nic;
};
static_assert(sizeof(Info) == 120 && offsetof(DomainAttr, mr_key_size) == 40 && offsetof(EpAttr, auth_key) == 88);
static_assert(offsetof(DomainAttr, tclass) == 184 && offsetof(DomainAttr, max_ep_auth_key) == 192);

// ---- objects -------------------------------------------------------------------------------------------------------

struct EqAttr {
  size_t size;
  uint64_t flags;
  int wait_obj, signaling_vector;
  void* wait_set;
};
struct CqAttr {
  size_t size;
  uint64_t flags;
  int format, wait_obj, signaling_vector, wait_cond;
  void* wait_set;
};
struct CntrAttr {
  int events, wait_obj;
  void* wait_set;
  uint64_t flags;
};
struct AvAttr {
  int type, rx_ctx_bits;
  size_t count, ep_per_node;
  const char* name;
  void* map_addr;
  uint64_t flags;
};
struct MrDmabuf {  // in the place of MrAttr::iov, with FI_MR_DMABUF: since 1.20
  int fd;
  uint64_t offset;
  size_t len;
  void* base_addr;
};
struct MrAttr {
  const iovec* iov;
  size_t iov_count;
  uint64_t access, offset, requested_key;
  void* context;
  size_t auth_key_size;
  uint8_t* auth_key;
  int iface;
  uint64_t device;
  void* hmem_data;  // since 1.20, as the next two
  size_t page_size;
  const FidMr* base_mr;
  size_t sub_mr_cnt;  // since 1.22
};
struct MrAuthKey {  // the auth_key of a region whose domain has the keys of its vectors (FI_AV_AUTH_KEY)
  FidAv* av;
  Addr src_addr;
};
struct AtomicAttr {
  size_t count, size;
};
struct CollectiveAttr {
  int op, datatype;
  AtomicAttr datatype_attr;
  size_t max_members;
  uint64_t mode;
};
struct AvSetAttr {
  size_t count;
  Addr start_addr, end_addr;
  uint64_t stride;
  size_t comm_key_size;
  uint8_t* comm_key;
  uint64_t flags;
};

struct FabricOps {
  size_t size;
  int (*domain)(FidFabric*, Info*, FidDomain**, void*);
  int (*passive_ep)(FidFabric*, Info*, FidPep**, void*);
  int (*eq_open)(FidFabric*, EqAttr*, FidEq**, void*);
  int (*wait_open)(FidFabric*, void*, void**);
  int (*trywait)(FidFabric*, Fid**, int);
  int (*domain2)(FidFabric*, Info*, FidDomain**, uint64_t flags, void*);
};
struct FidFabric {
  Fid fid;
  FabricOps* ops;
  uint32_t api_version;
};
struct DomainOps {
  size_t size;
  int (*av_open)(FidDomain*, AvAttr*, FidAv**, void*);
  int (*cq_open)(FidDomain*, CqAttr*, FidCq**, void*);
  int (*endpoint)(FidDomain*, Info*, FidEp**, void*);
  int (*scalable_ep)(FidDomain*, Info*, FidEp**, void*);
  int (*cntr_open)(FidDomain*, CntrAttr*, FidCntr**, void*);
  int (*poll_open)(FidDomain*, void*, void**);
  int (*stx_ctx)(FidDomain*, TxAttr*, void**, void*);
  int (*srx_ctx)(FidDomain*, RxAttr*, FidEp**, void*);
  int (*query_atomic)(FidDomain*, int datatype, int op, AtomicAttr*, uint64_t flags);
  int (*query_collective)(FidDomain*, int collective, CollectiveAttr*, uint64_t flags);
  int (*endpoint2)(FidDomain*, Info*, FidEp**, uint64_t flags, void*);
};
struct MrOps {
  size_t size;
  int (*reg)(Fid*, const void*, size_t, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, FidMr**, void*);
  int (*regv)(Fid*, const iovec*, size_t, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, FidMr**,
              void*);
  int (*regattr)(Fid*, const MrAttr*, uint64_t flags, FidMr**);
};
struct FidDomain {
  Fid fid;
  DomainOps* ops;
  MrOps* mr;
};
struct FidMr {
  Fid fid;
  void* mem_desc;
  uint64_t key;
};
struct RawMr {  // of kGetRawMr
  uint64_t flags;
  uint64_t* base_addr;
  uint8_t* raw_key;
  size_t* key_size;
};
struct MapRaw {  // of kMapRawMr
  uint64_t flags, base_addr;
  uint8_t* raw_key;
  size_t key_size;
  uint64_t* key;
};
struct MrModify {  // of kRefresh
  uint64_t flags;
  MrAttr attr;
};
struct AvOps {
  size_t size;
  int (*insert)(FidAv*, const void*, size_t, Addr*, uint64_t flags, void* context);
  int (*insertsvc)(FidAv*, const char* node, const char* service, Addr*, uint64_t flags, void* context);
  int (*insertsym)(FidAv*, const char* node, size_t, const char* service, size_t, Addr*, uint64_t flags, void* context);
  int (*remove)(FidAv*, Addr*, size_t, uint64_t flags);
  int (*lookup)(FidAv*, Addr, void*, size_t*);
  const char* (*straddr)(FidAv*, const void*, char*, size_t*);
  int (*av_set)(FidAv*, AvSetAttr*, FidAvSet**, void*);
  int (*insert_auth_key)(FidAv*, const void*, size_t, Addr*, uint64_t flags);  // since 1.20, as the next two
  int (*lookup_auth_key)(FidAv*, Addr, void*, size_t*);
  int (*set_user_id)(FidAv*, Addr, Addr id, uint64_t flags);
};
struct FidAv {
  Fid fid;
  AvOps* ops;
};

struct AvSetOps {
  size_t size;
  int (*set_union)(FidAvSet*, const FidAvSet*);
  int (*intersect)(FidAvSet*, const FidAvSet*);
  int (*diff)(FidAvSet*, const FidAvSet*);
  int (*insert)(FidAvSet*, Addr);
  int (*remove)(FidAvSet*, Addr);
  int (*addr)(FidAvSet*, Addr* coll_addr);
};
struct FidAvSet {
  Fid fid;
  AvSetOps* ops;
};

// ---- queues and counters -------------------------------------------------------------------------------------------

struct CqEntry {  // of every format: a shorter one is a prefix
  void* context;
  uint64_t flags;
  size_t len;
  void* buf;
  uint64_t data, tag;
};
constexpr size_t kEntrySize[] = {8, 8, 24, 40, 48};  // by FI_CQ_FORMAT_
struct CqErrEntry {
  void* context;
  uint64_t flags;
  size_t len;
  void* buf;
  uint64_t data, tag;
  size_t olen;
  int err, prov_errno;
  void* err_data;
  size_t err_data_size;
  Addr src_addr;  // since 1.20
};
struct CqOps {
  size_t size;
  ssize_t (*read)(FidCq*, void*, size_t);
  ssize_t (*readfrom)(FidCq*, void*, size_t, Addr*);
  ssize_t (*readerr)(FidCq*, CqErrEntry*, uint64_t flags);
  ssize_t (*sread)(FidCq*, void*, size_t, const void* cond, int timeout_ms);
  ssize_t (*sreadfrom)(FidCq*, void*, size_t, Addr*, const void* cond, int timeout_ms);
  int (*signal)(FidCq*);
  const char* (*strerror)(FidCq*, int prov_errno, const void* err_data, char*, size_t);
};
struct FidCq {
  Fid fid;
  CqOps* ops;
};
struct EqEntry {
  Fid* fid;
  void* context;
  uint64_t data;
};
struct EqCmEntry {
  Fid* fid;
  Info* info;
  uint8_t data[1024];
};
struct EqErrEntry {
  Fid* fid;
  void* context;
  uint64_t data;
  int err, prov_errno;
  void* err_data;
  size_t err_data_size;
};
struct EqOps {
  size_t size;
  ssize_t (*read)(FidEq*, uint32_t* event, void*, size_t, uint64_t flags);
  ssize_t (*readerr)(FidEq*, EqErrEntry*, uint64_t flags);
  ssize_t (*write)(FidEq*, uint32_t event, const void*, size_t, uint64_t flags);
  ssize_t (*sread)(FidEq*, uint32_t* event, void*, size_t, int timeout_ms, uint64_t flags);
  const char* (*strerror)(FidEq*, int prov_errno, const void* err_data, char*, size_t);
};
struct FidEq {
  Fid fid;
  EqOps* ops;
};
struct CntrOps {
  size_t size;
  uint64_t (*read)(FidCntr*);
  uint64_t (*readerr)(FidCntr*);
  int (*add)(FidCntr*, uint64_t);
  int (*set)(FidCntr*, uint64_t);
  int (*wait)(FidCntr*, uint64_t threshold, int timeout_ms);
  int (*adderr)(FidCntr*, uint64_t);
  int (*seterr)(FidCntr*, uint64_t);
};
struct FidCntr {
  Fid fid;
  CntrOps* ops;
};

// ---- endpoints -----------------------------------------------------------------------------------------------------

struct Alias {  // of kAlias
  Fid** fid;
  uint64_t flags;
};
struct EpOps {
  size_t size;
  ssize_t (*cancel)(Fid*, void* context);
  int (*getopt)(Fid*, int level, int name, void* value, size_t* length);
  int (*setopt)(Fid*, int level, int name, const void* value, size_t length);
  int (*tx_ctx)(FidEp*, int, TxAttr*, FidEp**, void*);
  int (*rx_ctx)(FidEp*, int, RxAttr*, FidEp**, void*);
  ssize_t (*rx_size_left)(FidEp*);
  ssize_t (*tx_size_left)(FidEp*);
};
struct CmOps {
  size_t size;
  int (*setname)(Fid*, void*, size_t);
  int (*getname)(Fid*, void*, size_t*);
  int (*getpeer)(FidEp*, void*, size_t*);
  int (*connect)(FidEp*, const void* addr, const void* param, size_t);
  int (*listen)(FidPep*);
  int (*accept)(FidEp*, const void* param, size_t);
  int (*reject)(FidPep*, Fid* handle, const void* param, size_t);
  int (*shutdown)(FidEp*, uint64_t flags);
  int (*join)(FidEp*, const void* addr, uint64_t flags, FidMc**, void* context);
};
struct CollectiveAddr {  // the address of a join, with FI_COLLECTIVE
  const FidAvSet* set;
  Addr coll_addr;
};
struct FidMc {
  Fid fid;
  Addr addr;
};
struct Msg {
  const iovec* iov;
  void** desc;
  size_t iov_count;
  Addr addr;
  void* context;
  uint64_t data;
};
struct MsgTagged {
  const iovec* iov;
  void** desc;
  size_t iov_count;
  Addr addr;
  uint64_t tag, ignore;
  void* context;
  uint64_t data;
};
struct RmaIov {
  uint64_t addr;
  size_t len;  // of an atomic: elements
  uint64_t key;
};
struct MsgRma {
  const iovec* iov;
  void** desc;
  size_t iov_count;
  Addr addr;
  const RmaIov* rma_iov;
  size_t rma_iov_count;
  void* context;
  uint64_t data;
};
struct Ioc {
  void* addr;
  size_t count;
};
struct MsgAtomic {
  const Ioc* iov;
  void** desc;
  size_t iov_count;
  Addr addr;
  const RmaIov* rma_iov;
  size_t rma_iov_count;
  int datatype, op;
  void* context;
  uint64_t data;
};
struct MsgOps {
  size_t size;
  ssize_t (*recv)(FidEp*, void*, size_t, void* desc, Addr, void* context);
  ssize_t (*recvv)(FidEp*, const iovec*, void** desc, size_t, Addr, void* context);
  ssize_t (*recvmsg)(FidEp*, const Msg*, uint64_t flags);
  ssize_t (*send)(FidEp*, const void*, size_t, void* desc, Addr, void* context);
  ssize_t (*sendv)(FidEp*, const iovec*, void** desc, size_t, Addr, void* context);
  ssize_t (*sendmsg)(FidEp*, const Msg*, uint64_t flags);
  ssize_t (*inject)(FidEp*, const void*, size_t, Addr);
  ssize_t (*senddata)(FidEp*, const void*, size_t, void* desc, uint64_t data, Addr, void* context);
  ssize_t (*injectdata)(FidEp*, const void*, size_t, uint64_t data, Addr);
};
struct RmaOps {
  size_t size;
  ssize_t (*read)(FidEp*, void*, size_t, void* desc, Addr, uint64_t addr, uint64_t key, void* context);
  ssize_t (*readv)(FidEp*, const iovec*, void** desc, size_t, Addr, uint64_t addr, uint64_t key, void* context);
  ssize_t (*readmsg)(FidEp*, const MsgRma*, uint64_t flags);
  ssize_t (*write)(FidEp*, const void*, size_t, void* desc, Addr, uint64_t addr, uint64_t key, void* context);
  ssize_t (*writev)(FidEp*, const iovec*, void** desc, size_t, Addr, uint64_t addr, uint64_t key, void* context);
  ssize_t (*writemsg)(FidEp*, const MsgRma*, uint64_t flags);
  ssize_t (*inject)(FidEp*, const void*, size_t, Addr, uint64_t addr, uint64_t key);
  ssize_t (*writedata)(FidEp*, const void*, size_t, void* desc, uint64_t data, Addr, uint64_t addr, uint64_t key,
                       void* context);
  ssize_t (*injectdata)(FidEp*, const void*, size_t, uint64_t data, Addr, uint64_t addr, uint64_t key);
};
struct TaggedOps {
  size_t size;
  ssize_t (*recv)(FidEp*, void*, size_t, void* desc, Addr, uint64_t tag, uint64_t ignore, void* context);
  ssize_t (*recvv)(FidEp*, const iovec*, void** desc, size_t, Addr, uint64_t tag, uint64_t ignore, void* context);
  ssize_t (*recvmsg)(FidEp*, const MsgTagged*, uint64_t flags);
  ssize_t (*send)(FidEp*, const void*, size_t, void* desc, Addr, uint64_t tag, void* context);
  ssize_t (*sendv)(FidEp*, const iovec*, void** desc, size_t, Addr, uint64_t tag, void* context);
  ssize_t (*sendmsg)(FidEp*, const MsgTagged*, uint64_t flags);
  ssize_t (*inject)(FidEp*, const void*, size_t, Addr, uint64_t tag);
  ssize_t (*senddata)(FidEp*, const void*, size_t, void* desc, uint64_t data, Addr, uint64_t tag, void* context);
  ssize_t (*injectdata)(FidEp*, const void*, size_t, uint64_t data, Addr, uint64_t tag);
};
struct AtomicOps {
  size_t size;
  ssize_t (*write)(FidEp*, const void*, size_t, void* desc, Addr, uint64_t addr, uint64_t key, int type, int op,
                   void* context);
  ssize_t (*writev)(FidEp*, const Ioc*, void** desc, size_t, Addr, uint64_t addr, uint64_t key, int type, int op,
                    void* context);
  ssize_t (*writemsg)(FidEp*, const MsgAtomic*, uint64_t flags);
  ssize_t (*inject)(FidEp*, const void*, size_t, Addr, uint64_t addr, uint64_t key, int type, int op);
  ssize_t (*readwrite)(FidEp*, const void*, size_t, void* desc, void* result, void* result_desc, Addr, uint64_t addr,
                       uint64_t key, int type, int op, void* context);
  ssize_t (*readwritev)(FidEp*, const Ioc*, void** desc, size_t, Ioc* result, void** result_desc, size_t, Addr,
                        uint64_t addr, uint64_t key, int type, int op, void* context);
  ssize_t (*readwritemsg)(FidEp*, const MsgAtomic*, Ioc* result, void** result_desc, size_t, uint64_t flags);
  ssize_t (*compwrite)(FidEp*, const void*, size_t, void* desc, const void* compare, void* compare_desc, void* result,
                       void* result_desc, Addr, uint64_t addr, uint64_t key, int type, int op, void* context);
  ssize_t (*compwritev)(FidEp*, const Ioc*, void** desc, size_t, const Ioc* compare, void** compare_desc, size_t,
                        Ioc* result, void** result_desc, size_t, Addr, uint64_t addr, uint64_t key, int type, int op,
                        void* context);
  ssize_t (*compwritemsg)(FidEp*, const MsgAtomic*, const Ioc* compare, void** compare_desc, size_t, Ioc* result,
                          void** result_desc, size_t, uint64_t flags);
  int (*writevalid)(FidEp*, int type, int op, size_t* count);
  int (*readwritevalid)(FidEp*, int type, int op, size_t* count);
  int (*compwritevalid)(FidEp*, int type, int op, size_t* count);
};
struct CollectiveOps {  // msg, and the exchanges that Weft's interface has not, keep their places
  size_t size;
  ssize_t (*barrier)(FidEp*, Addr group, void* context);
  ssize_t (*broadcast)(FidEp*, void*, size_t count, void* desc, Addr group, Addr root, int type, uint64_t flags,
                       void* context);
  void (*alltoall)();
  ssize_t (*allreduce)(FidEp*, const void*, size_t count, void* desc, void* result, void* result_desc, Addr group,
                       int type, int op, uint64_t flags, void* context);
  void (*allgather)();
  void (*reduce_scatter)();
  ssize_t (*reduce)(FidEp*, const void*, size_t count, void* desc, void* result, void* result_desc, Addr group,
                    Addr root, int type, int op, uint64_t flags, void* context);
  void (*scatter)();
  void (*gather)();
  void (*msg)();
  ssize_t (*barrier2)(FidEp*, Addr group, uint64_t flags, void* context);
};
struct FidEp {
  Fid fid;
  EpOps* ops;
  CmOps* cm;
  MsgOps* msg;
  RmaOps* rma;
  TaggedOps* tagged;
  AtomicOps* atomic;
  CollectiveOps* collective;
};
struct FidPep {
  Fid fid;
  EpOps* ops;
  CmOps* cm;
};

// ---- deferred work -------------------------------------------------------------------------------------------------

// enum fi_op_type
enum OpType : int {
  kOpRecv,
  kOpSend,
  kOpTrecv,
  kOpTsend,
  kOpRead,
  kOpWrite,
  kOpAtomic,
  kOpFetchAtomic,
  kOpCompareAtomic,
  kOpCntrSet,
  kOpCntrAdd
};
struct OpMsg {
  FidEp* ep;
  Msg msg;
  uint64_t flags;
};
struct OpTagged {
  FidEp* ep;
  MsgTagged msg;
  uint64_t flags;
};
struct OpRma {
  FidEp* ep;
  MsgRma msg;
  uint64_t flags;
};
struct OpAtomic {
  FidEp* ep;
  MsgAtomic msg;
  uint64_t flags;
};
struct MsgValues {  // fi_msg_fetch, fi_msg_compare
  const Ioc* iov;
  void** desc;
  size_t iov_count;
};
struct OpFetchAtomic {
  FidEp* ep;
  MsgAtomic msg;
  MsgValues fetch;
  uint64_t flags;
};
struct OpCompareAtomic {
  FidEp* ep;
  MsgAtomic msg;
  MsgValues fetch, compare;
  uint64_t flags;
};
struct OpCntr {
  FidCntr* cntr;
  uint64_t value;
};
struct DeferredWork {
  void* context[8];  // struct fi_context2
  uint64_t threshold;
  FidCntr *triggering, *completion;
  int op_type;
  void* op;
};
static_assert(sizeof(DeferredWork) == 104);
struct TriggeredContext {  // as far as fi_triggered_context and fi_triggered_context2 are the same
  int event_type;
  FidCntr* cntr;  // of FI_TRIGGER_THRESHOLD, as the next
  size_t threshold;
};
static_assert(offsetof(TriggeredContext, threshold) == 16);

// ---- calls ---------------------------------------------------------------------------------------------------------

// HOT. The call of a table, or null: the library is too old for it, or the provider has no such table.
template <typename Ops, typename Call>
Call op(const Ops* ops, Call Ops::* call) noexcept {
  if (ops == nullptr) return nullptr;
  const auto at = reinterpret_cast<const std::byte*>(&(ops->*call)) - reinterpret_cast<const std::byte*>(ops);
  return ops->size > static_cast<size_t>(at) ? ops->*call : nullptr;
}

}  // namespace weft::ofi
