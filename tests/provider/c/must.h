/* What every program here prints of its calls. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include <rdma/fi_errno.h>

/* A call that has to succeed. */
#define MUST(call)                                                                              \
  do {                                                                                          \
    long must_ = (long)(call);                                                                  \
    if (must_ < 0) {                                                                            \
      printf("%s:%d: %s: %ld (%s)\n", __FILE__, __LINE__, #call, must_, fi_strerror((int)-must_)); \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

/* A call that is tried: its error in words. */
static inline void refused(const char* what, long r) {
  printf("%s: %s\n", what, r < 0 ? fi_strerror((int)-r) : "no error");
}
