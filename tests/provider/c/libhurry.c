/* For LD_PRELOAD: while there is a file HURRY, a program waits one second where it would wait a minute for the policy
 * helper. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static const struct timeval a_second = {1, 0};

static int hurries(void) {
  const char* file = getenv("HURRY");
  return file != NULL && access(file, F_OK) == 0;
}

static int set(int fd, int level, int name, const void* value, socklen_t size) {
  int (*const theirs)(int, int, int, const void*, socklen_t) =
      (int (*)(int, int, int, const void*, socklen_t))dlsym(RTLD_NEXT, "setsockopt");
  return theirs(fd, level, name, value, size);
}

int setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  int limit = level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO);
  return set(fd, level, name, limit && hurries() ? &a_second : value, size);
}

ssize_t recv(int fd, void* buf, size_t size, int flags) {
  ssize_t (*const theirs)(int, void*, size_t, int) = (ssize_t(*)(int, void*, size_t, int))dlsym(RTLD_NEXT, "recv");
  int kind = 0;
  socklen_t length = sizeof(kind);
  if (hurries() && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &kind, &length) == 0 && kind == AF_UNIX)
    set(fd, SOL_SOCKET, SO_RCVTIMEO, &a_second, sizeof(a_second));
  return theirs(fd, buf, size, flags);
}
