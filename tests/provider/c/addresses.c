/* Texts of addresses of the provider weft, with and without a host: which fi_av_insert takes, and what fi_av_lookup
 * returns. */
#include "pair.h"

/* fi_av_insertsvc: the address that fi_av_lookup returns. */
static void named(const char* node, const char* service) {
  fi_addr_t found = FI_ADDR_UNSPEC;
  char back[512] = "";
  size_t size = sizeof(back);
  int n = fi_av_insertsvc(sides[A].av, node, service, &found, 0, NULL);
  if (n == 1) MUST(fi_av_lookup(sides[A].av, found, back, &size));
  printf("fi_av_insertsvc(%s, %s): %s\n", node ? node : "NULL", service ? service : "NULL",
         n == 1 ? back : fi_strerror(-n));
}

int main(int argc, char** argv) {
  static const char* const texts[] = {
      "weft://3/4/5",
      "weft://3/65535/5",
      "weft://3/65536/5",
      "weft://3/4",
      "weft://3/4/5/6",
      "tcp://3/4/5",
      "weft://127.0.0.1:7000/1/2/3",
      "weft://127.0.0.1:65535/2147483647/65535/4294967295",
      "weft://127.0.0.1:65536/1/2/3",
      "weft://127.0.0.1:0/1/2/3",
      "weft://127.0.0.1:/1/2/3",
      "weft://127.0.0.1:7000x/1/2/3",
      "weft://127.0.0.1:7000/2147483648/2/3",
      "weft://127.0.0.1:7000/1/65536/3",
      "weft://127.0.0.1:7000/1/2/4294967296",
      "weft://127.0.0.1:7000/1/2/3/4",
      "weft://127.0.0.1:7000/1/2/",
      "weft://127.0.0.1:7000/1/2",
      "weft://127.0.0.1:7000/1",
      "weft://127.0.0.1:7000",
      "weft://[::1]:7000/1/2/3",
      "weft://[]:7000/1/2/3",
  };
  begin(argc, argv, FI_MSG);
  for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); ++i) {
    fi_addr_t found = FI_ADDR_UNSPEC;
    char back[512] = "";
    size_t size = sizeof(back);
    int n = fi_av_insert(sides[A].av, texts[i], 1, &found, 0, NULL);
    if (n == 1) MUST(fi_av_lookup(sides[A].av, found, back, &size));
    printf("%s: %s\n", texts[i], n == 1 ? back : found == FI_ADDR_NOTAVAIL ? "none" : "?");
  }
  char own[512] = "";
  size_t size = sizeof(own);
  MUST(fi_av_lookup(sides[A].av, sides[A].peer, own, &size)); /* an address with a host, if this process listens */
  printf("an endpoint of this process: %s\n", strchr(own + 7, ':') ? "of another host" : "here");
  named("weft0", "77");
  named("0", "78");
  named("127.0.0.1:7000", "79");
  named(NULL, NULL);
  named("weft0", "many");
  fi_addr_t one;
  refused("fi_av_insertsym", fi_av_insertsym(sides[A].av, "weft0", 2, "1", 2, &one, 0, NULL));
  end();
  return 0;
}
