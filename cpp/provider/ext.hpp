// cpp/provider/ext.hpp: calls beyond libfabric's interface: fi_open_ops, fi_set_ops, fi_set_val, a provider's own
// commands of fi_control. The policy helper decides and keeps the options; here the pointers of C are read and written.
// Source: fi_cxi(7) "CXI EXTENSIONS".
#pragma once

#include "provider/objects.hpp"

namespace weft::provider {

// Commands and values of the CXI provider that this library knows by number (FI_OPT_CXI_...).
namespace own {
constexpr int kFirst = -(0xccc << 16);
constexpr int kSetTclass = kFirst, kSetMsgOrder = kFirst + 1, kNicRefreshAttr = kFirst + 2,
              kSetMrMatchEvents = kFirst + 3, kGetMrMatchEvents = kFirst + 4, kSetOptimizedMrs = kFirst + 5,
              kGetOptimizedMrs = kFirst + 6, kSetProvKeyCache = kFirst + 7, kGetProvKeyCache = kFirst + 8,
              kSetRnrMaxRetryTime = kFirst + 9, kSetRxMatchMode = kFirst + 10, kGetRxMatchMode = kFirst + 11,
              kSetReqBufSize = kFirst + 12, kGetReqBufSize = kFirst + 13, kGetRnrAppendRetryAttempts = kFirst + 14;
}  // namespace own

// What the pointer of a command or of a value points to.
struct Argument {
  enum class Type : uint8_t { unknown, flag, number32, number64, text } type = Type::unknown;
  bool returns = false;  // the call writes there

  // Of a number.
  [[nodiscard]] size_t bytes() const noexcept {
    return type == Type::flag ? sizeof(bool) : type == Type::number32 ? sizeof(uint32_t) : sizeof(uint64_t);
  }
};
Argument argument_of(int number) noexcept;
// Adds the value behind the pointer, unless the pointer is null or the call only writes there.
void add_argument(Record* question, Argument argument, const void* from);

// Runs a command of the provider on the object of this lease; `domain`: the object, if it is one.
int control_beyond(const Front& front, Subject subject, uint64_t lease, int command, void* arg, Domain* domain);
// fi_open_ops: `table` in *ops if the policy knows these calls of the object.
int open_beyond(const Fabric& fabric, Subject subject, uint64_t lease, const char* name, uint64_t flags, void** ops,
                void* table, Domain* domain);

int domain_control(ofi::Fid* fid, int command, void* arg);
int domain_open_ops(ofi::Fid* fid, const char* name, uint64_t flags, void** ops, void* context);
int domain_set_ops(ofi::Fid* fid, const char* name, uint64_t flags, void* ops, void* context);

}  // namespace weft::provider
