/* An MPI library's use of a provider: messages of 0 B to 4 MiB, collectives, windows. Each part is checked, and
 * rank 0 prints it. With the argument "messages" there are no windows; with "forever", messages until a rank ends. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void must(int good, const char* what, long detail) {
  if (good) return;
  printf("rank %d: %s: wrong (%ld)\n", rank, what, detail);
  fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void done(const char* what) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) printf("%s\n", what);
  fflush(stdout);
}

static unsigned char byte_of(long i, int of) { return (unsigned char)(i * 7 + i / 251 + of * 31); }

static void fill(unsigned char* at, long n, int of) {
  for (long i = 0; i < n; ++i) at[i] = byte_of(i, of);
}

static int holds(const unsigned char* at, long n, int of) {
  for (long i = 0; i < n; ++i)
    if (at[i] != byte_of(i, of)) return 0;
  return 1;
}

#define MOST (4L << 20)

/* Around a ring, each size expected and unexpected. */
static void messages(void) {
  static const long sizes[] = {0, 1, 7, 8, 64, 192, 193, 1024, 4096, 8192, 16384, 16385, 65536, 1L << 20, (1L << 20) + 3, MOST};
  unsigned char *out = malloc(MOST), *in = malloc(MOST + 1);
  int right = (rank + 1) % size, left = (rank + size - 1) % size;
  for (unsigned s = 0; s < sizeof(sizes) / sizeof(*sizes); ++s) {
    for (int late = 0; late < 2; ++late) {
      long n = sizes[s];
      MPI_Request requests[2];
      MPI_Status status;
      int count;
      fill(out, n, rank + (int)s);
      memset(in, 0xEE, (size_t)n + 1);
      if (!late) MPI_Irecv(in, (int)n, MPI_BYTE, left, (int)s, MPI_COMM_WORLD, &requests[0]);
      MPI_Barrier(MPI_COMM_WORLD);
      MPI_Isend(out, (int)n, MPI_BYTE, right, (int)s, MPI_COMM_WORLD, &requests[1]);
      if (late) {
        MPI_Probe(left, (int)s, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        must(count == n, "MPI_Probe", count);
        MPI_Irecv(in, (int)n, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]);
      }
      MPI_Wait(&requests[0], &status);
      MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
      MPI_Get_count(&status, MPI_BYTE, &count);
      must(count == n && status.MPI_SOURCE == left && status.MPI_TAG == (int)s, "status", count);
      must(holds(in, n, left + (int)s) && in[n] == 0xEE, "message", n);
    }
  }
  free(out);
  free(in);
  done("messages");
}

/* Many at once, of mixed tags and synchronous ones; one is cancelled. */
static void floods(void) {
  enum { many = 500 };
  int right = (rank + 1) % size, left = (rank + size - 1) % size;
  static int out[many], in[many];
  static MPI_Request requests[2 * many];
  for (int i = 0; i < many; ++i) MPI_Irecv(&in[i], 1, MPI_INT, left, i % 50, MPI_COMM_WORLD, &requests[i]);
  for (int i = 0; i < many; ++i) {
    out[i] = rank * many + i;
    if (i % 3 == 0)
      MPI_Issend(&out[i], 1, MPI_INT, right, i % 50, MPI_COMM_WORLD, &requests[many + i]);
    else
      MPI_Isend(&out[i], 1, MPI_INT, right, i % 50, MPI_COMM_WORLD, &requests[many + i]);
  }
  MPI_Waitall(2 * many, requests, MPI_STATUSES_IGNORE);
  for (int i = 0; i < many; ++i) must(in[i] == left * many + i, "flood", i);
  MPI_Request never;
  MPI_Status status;
  int cancelled = 0;
  MPI_Irecv(in, 1, MPI_INT, left, 999, MPI_COMM_WORLD, &never);
  MPI_Cancel(&never);
  MPI_Wait(&never, &status);
  MPI_Test_cancelled(&status, &cancelled);
  must(cancelled, "MPI_Cancel", 0);
  done("floods");
}

static void collectives(void) {
  enum { most = 100000 };
  static long in[most], out[most];
  for (int n = 1; n <= most; n *= 10) {
    for (int i = 0; i < n; ++i) in[i] = rank + i;
    MPI_Allreduce(in, out, n, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; ++i) must(out[i] == (long)size * i + (long)size * (size - 1) / 2, "MPI_Allreduce", i);
    for (int i = 0; i < n; ++i) out[i] = rank == size - 1 ? i * 3 : -1;
    MPI_Bcast(out, n, MPI_LONG, size - 1, MPI_COMM_WORLD);
    for (int i = 0; i < n; ++i) must(out[i] == i * 3, "MPI_Bcast", i);
    int each = n / size;
    if (each == 0) continue;
    for (int i = 0; i < each * size; ++i) in[i] = rank * 1000000L + i;
    MPI_Alltoall(in, each, MPI_LONG, out, each, MPI_LONG, MPI_COMM_WORLD);
    for (int r = 0; r < size; ++r)
      for (int i = 0; i < each; ++i) must(out[r * each + i] == r * 1000000L + rank * each + i, "MPI_Alltoall", i);
    MPI_Allgather(in, each, MPI_LONG, out, each, MPI_LONG, MPI_COMM_WORLD);
    for (int r = 0; r < size; ++r) must(out[r * each] == r * 1000000L, "MPI_Allgather", r);
  }
  done("collectives");
}

static void windows(int allocated) {
  enum { room = 1 << 20 };
  unsigned char *base, *own = NULL, *mine = malloc(room);
  MPI_Win win;
  int right = (rank + 1) % size, left = (rank + size - 1) % size;
  if (allocated) {
    MPI_Win_allocate(room, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
  } else {
    base = own = malloc(room);
    MPI_Win_create(base, room, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
  }
  for (long n = 1; n <= room; n = n * 16 + 1) {
    memset(base, 0, room);
    fill(mine, n, rank);
    MPI_Win_fence(0, win);
    MPI_Put(mine, (int)n, MPI_BYTE, right, 0, (int)n, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    must(holds(base, n, left), "MPI_Put", n);
    memset(mine, 0, (size_t)n);
    MPI_Win_fence(0, win);
    MPI_Get(mine, (int)n, MPI_BYTE, right, 0, (int)n, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    must(holds(mine, n, rank), "MPI_Get", n);
  }
  long* values = (long*)base;
  memset(base, 0, room);
  MPI_Win_fence(0, win);
  long add[100];
  for (int i = 0; i < 100; ++i) add[i] = rank + i;
  for (int r = 0; r < size; ++r) MPI_Accumulate(add, 100, MPI_LONG, r, 0, 100, MPI_LONG, MPI_SUM, win);
  MPI_Win_fence(0, win);
  for (int i = 0; i < 100; ++i) must(values[i] == (long)size * i + (long)size * (size - 1) / 2, "MPI_Accumulate", i);
  memset(base, 0, room);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock_all(0, win);
  long one = 1, got = -1, seen = -1;
  for (int i = 0; i < 100; ++i) {
    MPI_Fetch_and_op(&one, &got, MPI_LONG, 0, 0, MPI_SUM, win);
    MPI_Win_flush(0, win);
    must(got > seen, "MPI_Fetch_and_op", got);
    seen = got;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  long zero = 0, expect = 100L * size, swapped = -1;
  MPI_Fetch_and_op(&zero, &got, MPI_LONG, 0, 0, MPI_NO_OP, win);
  MPI_Win_flush(0, win);
  must(got == expect, "MPI_Fetch_and_op, the sum", got);
  long mark = rank + 1, empty = 0;
  MPI_Compare_and_swap(&mark, &empty, &swapped, MPI_LONG, 0, 8, win);
  MPI_Win_flush(0, win);
  int won = swapped == 0, winners = 0;
  MPI_Allreduce(&won, &winners, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  must(winners == 1, "MPI_Compare_and_swap", winners);
  long sums[4] = {1, 2, 3, 4}, before[4];
  MPI_Get_accumulate(sums, 4, MPI_LONG, before, 4, MPI_LONG, 0, 64, 4, MPI_LONG, MPI_SUM, win);
  MPI_Win_flush(0, win);
  must(before[3] == before[0] * 4 && before[0] < size, "MPI_Get_accumulate", before[0]);
  MPI_Win_unlock_all(win);
  MPI_Win_free(&win);
  free(own);
  free(mine);
  done(allocated ? "windows, allocated" : "windows, created");
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
  do messages();
  while (argc > 1 && !strcmp(argv[1], "forever"));
  floods();
  collectives();
  if (argc < 2 || strcmp(argv[1], "messages") != 0) {
    windows(1);
    windows(0);
  }
  MPI_Finalize();
  if (rank == 0) printf("ended\n");
  return 0;
}
