/* Every collective of a group of processes, with every operation and datatype that the provider's query allows. The
 * results of all members are compared with the serial ones; member 0 prints which combinations there are. argv[3]:
 * "rooted" (fi_reduce as well), or "plain" (what libfabric's own collectives have, whose results are printed). */
#include "group.h"

#define KINDS_MAX 14 /* FI_INT8 to FI_LONG_DOUBLE_COMPLEX */
#define OPS_MAX 20

static struct fid_mc* mc;
static int wrong;

static void fill(unsigned char* at, int type, size_t size, size_t count, int member) {
  for (size_t i = 0; i < count; ++i, at += size) {
    int value = (int)(member * 3 + (int)i + 1);
    switch (type) {
      case FI_FLOAT: *(float*)at = (float)value; break;
      case FI_DOUBLE: *(double*)at = value; break;
      default: {
        uint64_t whole = (uint64_t)value;
        memcpy(at, &whole, size);
      }
    }
  }
}

static double number(const unsigned char* at, int type, size_t size) {
  if (type == FI_FLOAT) return *(const float*)at;
  if (type == FI_DOUBLE) return *(const double*)at;
  uint64_t whole = 0;
  memcpy(&whole, at, size);
  return (double)whole;
}

static double combined(int op, double a, double b) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  switch (op) {
    case FI_MIN: return a < b ? a : b;
    case FI_MAX: return a > b ? a : b;
    case FI_SUM: return a + b;
    case FI_PROD: return a * b;
    case FI_LOR: return x || y;
    case FI_LAND: return x && y;
    case FI_BOR: return (double)(x | y);
    case FI_BAND: return (double)(x & y);
    case FI_LXOR: return !x != !y;
    case FI_BXOR: return (double)(x ^ y);
    default: return -1;
  }
}

/* A reduction of these elements at every member, or at the root alone (root < members). */
static void reduce(int type, int op, size_t size, size_t count, int root) {
  unsigned char in[64] = {0}, out[64];
  memset(out, 0xee, sizeof(out));
  fill(in, type, size, count, me);
  if (root < members) {
    POST(fi_reduce(ep, in, count, NULL, me == root ? out : NULL, NULL, fi_mc_addr(mc), addrs[root], type, op, 0,
                   &contexts[2]));
  } else {
    POST(fi_allreduce(ep, in, count, NULL, out, NULL, fi_mc_addr(mc), type, op, 0, &contexts[2]));
  }
  done(&contexts[2]);
  if (root < members && me != root) return;
  for (size_t i = 0; i < count; ++i) {
    unsigned char mine[64];
    fill(mine, type, size, count, 0);
    double expected = number(mine + i * size, type, size);
    for (int m = 1; m < members; ++m) {
      fill(mine, type, size, count, m);
      expected = combined(op, expected, number(mine + i * size, type, size));
    }
    if (size < 8 && type != FI_FLOAT) expected = (double)((uint64_t)expected & ((1ull << (8 * size)) - 1));
    if (number(out + i * size, type, size) != expected) ++wrong;
  }
  if (out[count * size] != 0xee) ++wrong; /* nothing is written behind the result */
}

/* What libfabric's own collectives have too: without fi_reduce, and with a part of each broadcast for each member. */
static void plain(void) {
  static const int ops[] = {FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_BOR, FI_BAND, FI_LXOR, FI_BXOR};
  static const int types[] = {FI_INT8, FI_UINT16, FI_INT32, FI_UINT64, FI_INT64, FI_FLOAT, FI_DOUBLE};
  static const size_t sizes[] = {1, 2, 4, 8, 8, 4, 8};
  for (size_t o = 0; o < sizeof(ops) / sizeof(*ops); ++o) {
    for (size_t t = 0; t < sizeof(types) / sizeof(*types); ++t) {
      struct fi_collective_attr attr = {.op = ops[o], .datatype = types[t]};
      int bits = ops[o] == FI_BOR || ops[o] == FI_BAND || ops[o] == FI_BXOR;
      if (types[t] == FI_FLOAT && bits) continue; /* libfabric allows it */
      if (types[t] == FI_DOUBLE && bits) continue;
      long r = fi_query_collective(domain, FI_ALLREDUCE, &attr, 0);
      printf("allreduce %s", fi_tostr(&ops[o], FI_TYPE_ATOMIC_OP));
      printf(" of %s:", fi_tostr(&types[t], FI_TYPE_ATOMIC_TYPE));
      if (r < 0) {
        printf(" %s\n", fi_strerror((int)-r));
        continue;
      }
      unsigned char in[64] = {0}, out[64] = {0};
      fill(in, types[t], sizes[t], 2, me);
      POST(fi_allreduce(ep, in, 2, NULL, out, NULL, fi_mc_addr(mc), types[t], ops[o], 0, &contexts[2]));
      done(&contexts[2]);
      printf(" %g %g\n", number(out, types[t], sizes[t]), number(out + sizes[t], types[t], sizes[t]));
    }
  }
  for (int root = 0; root < members; ++root) {
    uint32_t buf[MEMBERS_MAX];
    for (int i = 0; i < members; ++i) buf[i] = (uint32_t)(me * 100 + i);
    POST(fi_broadcast(ep, buf, (size_t)members, NULL, fi_mc_addr(mc), addrs[root], FI_UINT32, 0, &contexts[4]));
    done(&contexts[4]);
    printf("broadcast of member %d:", root);
    for (int i = 0; i < members; ++i) printf(" %u", buf[i]);
    puts("");
  }
}

int main(int argc, char** argv) {
  begin(argc, argv);
  struct fid_av_set* set = whole_set();
  mc = join(set);
  for (int i = 0; i < 20; ++i) {
    POST(fi_barrier(ep, fi_mc_addr(mc), &contexts[3]));
    done(&contexts[3]);
  }
  puts("barriers");
  if (argc > 3 && !strcmp(argv[3], "plain")) {
    plain();
    meet();
    MUST(fi_close(&mc->fid));
    MUST(fi_close(&set->fid));
    finish(0);
    return 0;
  }
  struct fi_collective_attr attr = {0};
  for (int type = 0; type < KINDS_MAX; ++type) {
    attr = (struct fi_collective_attr){.datatype = type};
    if (fi_query_collective(domain, FI_BROADCAST, &attr, 0) < 0) continue;
    size_t size = attr.datatype_attr.size, count = 32 / size;
    for (int root = 0; root < members; ++root) {
      unsigned char buf[64], expected[64];
      memset(buf, me, sizeof(buf));
      memset(expected, root, sizeof(expected));
      POST(fi_broadcast(ep, buf, count, NULL, fi_mc_addr(mc), addrs[root], type, 0, &contexts[4]));
      done(&contexts[4]);
      if (memcmp(buf, expected, size * count) != 0 || buf[size * count] != me) ++wrong;
    }
    printf("broadcast: %s\n", fi_tostr(&(enum fi_datatype){type}, FI_TYPE_ATOMIC_TYPE));
  }
  for (int op = 0; op < OPS_MAX; ++op) {
    for (int type = 0; type < KINDS_MAX; ++type) {
      if (type > FI_DOUBLE) continue; /* complex numbers and long doubles: the serial ones are not computed here */
      attr = (struct fi_collective_attr){.op = op, .datatype = type};
      if (fi_query_collective(domain, FI_ALLREDUCE, &attr, 0) < 0) continue;
      size_t size = attr.datatype_attr.size;
      for (size_t count = 1; count * size <= 32; count *= 2) {
        reduce(type, op, size, count, MEMBERS_MAX);
        for (int root = 0; root < members && argc > 3; ++root) reduce(type, op, size, count, root);
      }
      printf("reductions: %s", fi_tostr(&(enum fi_op){op}, FI_TYPE_ATOMIC_OP));
      printf(" of %s\n", fi_tostr(&(enum fi_datatype){type}, FI_TYPE_ATOMIC_TYPE));
    }
  }
  printf("wrong results: %d\n", wrong);
  meet();
  MUST(fi_close(&mc->fid));
  MUST(fi_close(&set->fid));
  finish(0);
  return wrong != 0;
}
