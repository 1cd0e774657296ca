/* What MPI_Put, MPI_Get and MPI_Accumulate of 8 B cost, each completed by MPI_Win_flush, over whatever the environment
 * chooses. The target waits in MPI_Barrier, as in IMB-RMA. One figure a line, by rank 0: name, value.
 *
 *   put_ns, get_ns, accumulate_ns      the least of many batches, as many as fit into a second
 *   put_median_ns ...                  the median of the batches
 *   kernel_write_ns, kernel_read_ns    process_vm_writev and readv of 8 B of the same window: a bare system call
 *
 * The argument: how many times as long. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "apart.h"

enum { kBatch = 20, kBatchesMax = 1 << 18, kWindow = 4096 };
static double limit_s = 1.0;
static double spent[kBatchesMax];
static MPI_Win window;
static int64_t here = 1;
static struct card {
  pid_t pid;
  uint64_t base;
} target;

static void put(void) {
  MPI_Put(&here, 1, MPI_INT64_T, 1, 0, 1, MPI_INT64_T, window);
  MPI_Win_flush(1, window);
}
static void get(void) {
  MPI_Get(&here, 1, MPI_INT64_T, 1, 1, 1, MPI_INT64_T, window);
  MPI_Win_flush(1, window);
}
static void accumulate(void) {
  MPI_Accumulate(&here, 1, MPI_INT64_T, 1, 2, 1, MPI_INT64_T, MPI_SUM, window);
  MPI_Win_flush(1, window);
}
static int refused;
static void kernel(int write) {
  struct iovec mine = {&here, 8}, theirs = {(char*)(uintptr_t)target.base + 64, 8};
  ssize_t n = write ? process_vm_writev(target.pid, &mine, 1, &theirs, 1, 0)
                    : process_vm_readv(target.pid, &mine, 1, &theirs, 1, 0);
  if (n != 8) refused = 1;
}
static void kernel_write(void) { kernel(1); }
static void kernel_read(void) { kernel(0); }

static int by_size(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void measure(const char* name, void (*one)(void)) {
  int n = 0;
  for (double begun = MPI_Wtime(), end = begun + limit_s; begun < end && n < kBatchesMax; ++n) {
    begun = MPI_Wtime();
    for (int i = 0; i < kBatch; ++i) one();
    spent[n] = (MPI_Wtime() - begun) / kBatch;
  }
  if (refused) return; /* the kernel's permission */
  qsort(spent, (size_t)n, sizeof(*spent), by_size);
  printf("%s_ns %.1f\n%s_median_ns %.1f\n", name, spent[0] * 1e9, name, spent[n / 2] * 1e9);
  fflush(stdout);
}

int main(int argc, char** argv) {
  int rank, ranks;
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* for the bare calls, where Yama restricts them */
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  if (argc > 1) limit_s *= atof(argv[1]);
  int64_t* base = calloc(1, kWindow);
  if (base == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
  MPI_Win_create(base, kWindow, sizeof(*base), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  target = (struct card){getpid(), (uintptr_t)base};
  MPI_Bcast(&target, sizeof(target), MPI_BYTE, 1, MPI_COMM_WORLD);
  run_apart(rank);
  if (rank == 0) {
    MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
    measure("put", put);
    measure("get", get);
    here = 1;
    measure("accumulate", accumulate);
    MPI_Win_unlock(1, window);
    measure("kernel_write", kernel_write);
    measure("kernel_read", kernel_read);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_free(&window);
  if (rank == 1 && base[2] <= 0) MPI_Abort(MPI_COMM_WORLD, 4); /* nothing was accumulated */
  free(base);
  return MPI_Finalize();
}
