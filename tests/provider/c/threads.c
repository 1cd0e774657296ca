/* Threads that read errors of one queue at the same time (FI_THREAD_SAFE), each into a buffer of its own and into the
 * provider's: threads PROVIDER ERRORS. */
#include <pthread.h>

#include "pair.h"

#define THREADS 4

static char memory[64];
static _Atomic long failed;
static long errors;

static void* reader(void* own) {
  while (failed < errors) {
    char text[512];
    struct fi_cq_tagged_entry e;
    struct fi_cq_err_entry error = {0};
    if (own) {
      error.err_data = text;
      error.err_data_size = sizeof(text);
    }
    fi_write(sides[A].ep, memory, 8, NULL, sides[A].peer, 0, 9999, &contexts[1]); /* there is no such region */
    if (fi_cq_read(sides[A].tx, &e, 1) == 1) puts("a write without a region");
    if (fi_cq_readerr(sides[A].tx, &error, 0) != 1) continue;
    ++failed;
    if (own && (error.err_data != text || error.err_data_size == 0 || error.err_data_size > sizeof(text)))
      puts("no text in the caller's buffer");
  }
  return NULL;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  errors = atol(argv[2]);
  threading = FI_THREAD_SAFE;
  begin(argc, argv, FI_RMA);
  pthread_t threads[THREADS];
  for (long i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, reader, i % 2 ? memory : NULL);
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  puts("errors are read");
  end();
  return 0;
}
