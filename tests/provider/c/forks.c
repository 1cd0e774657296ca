/* A program that forks while it has endpoints: they stay the parent's, and the child opens its own. */
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"

static char out[64], in[64];

static void message(const char* who) {
  POST(fi_recv(sides[B].ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, &contexts[1]));
  POST(fi_send(sides[A].ep, out, 10, NULL, sides[A].peer, &contexts[2]));
  struct fi_cq_tagged_entry e;
  if (next(sides[A].tx, &e) < 0 || next(sides[B].rx, &e) < 0) exit(1);
  printf("%s: a message\n", who);
  fflush(stdout);
}

int main(int argc, char** argv) {
  begin(argc, argv, FI_MSG);
  message("before");
  pid_t child = fork();
  if (child == 0) {
    long r = fi_send(sides[A].ep, out, 10, NULL, sides[A].peer, NULL);
    printf("the parent's endpoint in the child: %s\n", fi_strerror((int)-r));
    r = fi_close(&sides[A].ep->fid);
    printf("closing it: %s\n", r ? fi_strerror((int)-r) : "no effect");
    memset(sides, 0, sizeof(sides));
    begin(argc, argv, FI_MSG);
    message("child");
    end();
    fflush(stdout);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  printf("the child ended with %d\n", status);
  message("after");
  end();
  return 0;
}
