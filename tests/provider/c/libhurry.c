/* For LD_PRELOAD: a program waits one second where it would wait a minute for the policy helper. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/time.h>

int setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  int (*const theirs)(int, int, int, const void*, socklen_t) =
      (int (*)(int, int, int, const void*, socklen_t))dlsym(RTLD_NEXT, "setsockopt");
  const struct timeval hurry = {1, 0};
  if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO)) value = &hurry;
  return theirs(fd, level, name, value, size);
}
