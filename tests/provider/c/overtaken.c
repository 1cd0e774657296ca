/* A program that relies on an order it did not request: it writes eight numbers to one place and expects the last. It
 * prints in how many of a hundred rounds another number stayed. */
#include "pair.h"

int main(int argc, char** argv) {
  static uint64_t from[8], to;
  begin(argc, argv, FI_RMA);
  struct fid_mr* theirs = region(B, &to, sizeof(to), FI_REMOTE_WRITE, 1);
  struct fid_mr* ours = info->domain_attr->mr_mode & FI_MR_LOCAL ? region(A, from, sizeof(from), FI_WRITE, 2) : NULL;
  int wrong = 0;
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 8; ++i) {
      from[i] = (uint64_t)round * 8 + i;
      POST(fi_write(sides[A].ep, &from[i], sizeof(from[i]), ours ? fi_mr_desc(ours) : NULL, sides[A].peer,
                    place(&to, 0), fi_mr_key(theirs), &contexts[i]));
    }
    struct fi_cq_tagged_entry e;
    for (int i = 0; i < 8; ++i) MUST(next(sides[A].tx, &e));
    wrong += to != from[7];
  }
  printf("%d\n", wrong);
  if (ours) MUST(fi_close(&ours->fid));
  MUST(fi_close(&theirs->fid));
  end();
  return 0;
}
