/* What MPI_Send and MPI_Recv cost between two ranks, over whatever the environment chooses. One figure a line, by rank 0:
 * name, value.
 *
 *   half_N_ns        half of a round trip of N bytes: the least of many batches, as many as fit into a second
 *   memory_mib       the larger rank's resident memory, in MiB: its own pages and those of shared memory, without the
 *                    pages of files, which are the programs and libraries that processes share
 *
 * The argument: how many times as long. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apart.h"

enum { kMost = 1 << 20 };
static char *out, *in;
static double limit_s = 1.0;

/* The least half round trip, in batches of `rounds`. Rank 0 ends the batches by another byte of the message. */
static double half_trip(int rank, int size, int rounds) {
  double least = 1e9, end = MPI_Wtime() + limit_s;
  for (int last = 0; !last;) {
    double begun = MPI_Wtime();
    if (rank == 0) last = out[0] = begun > end;
    for (int i = 0; i < rounds; ++i) {
      if (rank == 0) MPI_Send(out, size, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
      MPI_Recv(in, size, MPI_BYTE, 1 - rank, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (rank != 0) MPI_Send(out, size, MPI_BYTE, 0, 7, MPI_COMM_WORLD);
    }
    double spent = (MPI_Wtime() - begun) / (2.0 * rounds);
    if (spent < least) least = spent;
    if (rank != 0) last = in[0];
  }
  return least * 1e9;
}

/* Resident memory that is no file's, in MiB. */
static double memory_mib(void) {
  char line[256];
  long kib = 0, one;
  FILE* status = fopen("/proc/self/status", "r");
  if (status == NULL) return 0;
  while (fgets(line, sizeof(line), status) != NULL)
    if (sscanf(line, "RssAnon: %ld", &one) == 1 || sscanf(line, "RssShmem: %ld", &one) == 1) kib += one;
  fclose(status);
  return (double)kib / 1024;
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  if (argc > 1) limit_s *= atof(argv[1]);
  out = malloc(kMost);
  in = malloc(kMost);
  memset(out, 0, kMost);
  memset(in, 0, kMost);
  run_apart(rank);
  static const int sizes[][2] = {{8, 20}, {64 << 10, 4}, {kMost, 4}};
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); ++i) {
    double half = half_trip(rank, sizes[i][0], sizes[i][1]);
    if (rank == 0) printf("half_%d_ns %.1f\n", sizes[i][0], half);
  }
  double mine = memory_mib(), most = 0;
  MPI_Reduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("memory_mib %.1f\n", most);
  return MPI_Finalize();
}
