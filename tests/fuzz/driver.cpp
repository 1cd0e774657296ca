// tests/fuzz/driver.cpp: runs a fuzz target where the compiler has no libFuzzer. Coverage guides this driver too: GCC
// and
// Clang call __sanitizer_cov_trace_pc at every edge (-fsanitize-coverage=trace-pc), and the driver keeps every input
// that
// reaches a new edge and mutates it further.
//
// fuzz_<name> [-max_total_time=S] [-runs=N] [-seed=N] [-max_len=N] [-timeout=S] [-artifact_prefix=P] PATH...
//
// Options and PATH mean the same as for libFuzzer: files are run once each; all files of folders are read, and new
// inputs
// go to the first folder. Unknown options are ignored.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

constexpr size_t kEdges = 1 << 16;
uint8_t reached[kEdges];  // how often this input reached the edge, up to 255
uint8_t known[kEdges];    // bits of the eight classes of counts that any input has reached
thread_local uintptr_t previous;

using Bytes = std::vector<uint8_t>;
const Bytes* current = nullptr;
char crash_path[512];

// May run in a signal handler: system calls only.
void save(const char* kind) {
  if (current == nullptr) return;
  const int fd = ::open(crash_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  (void)!::write(fd, current->data(), current->size());
  ::close(fd);
  char text[700];
  const int n = std::snprintf(text, sizeof(text), "driver: %s; the input is %s\n", kind, crash_path);
  (void)!::write(2, text, static_cast<size_t>(n));
  current = nullptr;
}
void on_death() {
  save("the sanitizer ended the run");
}
void on_signal(int number) {
  save(number == SIGALRM ? "the input took too long" : "the target ended by a signal");
  ::signal(number == SIGALRM ? SIGABRT : number, SIG_DFL);
  ::raise(number == SIGALRM ? SIGABRT : number);
}

uint8_t class_of(uint8_t count) {  // 1, 2, 3, 4-7, 8-15, 16-31, 32-127, 128 and more: the number of a loop's rounds
                                   // matters only roughly
  if (count <= 3) return static_cast<uint8_t>(1 << (count - 1));
  if (count < 8) return 8;
  if (count < 16) return 16;
  if (count < 32) return 32;
  return count < 128 ? 64 : 128;
}

// True: the input reached something new.
bool run(const Bytes& input, unsigned timeout) {
  std::memset(reached, 0, sizeof(reached));
  previous = 0;
  current = &input;
  if (timeout != 0) ::alarm(timeout);
  (void)LLVMFuzzerTestOneInput(input.data(), input.size());
  ::alarm(0);
  current = nullptr;
  bool found = false;
  for (size_t i = 0; i < kEdges; ++i) {
    if (reached[i] == 0) continue;
    const uint8_t c = class_of(reached[i]);
    found |= (known[i] & c) == 0;
    known[i] |= c;
  }
  return found;
}

Bytes read_file(const std::string& path) {
  Bytes bytes;
  if (std::FILE* f = std::fopen(path.c_str(), "rbe")) {
    uint8_t block[4096];
    for (size_t n; (n = std::fread(block, 1, sizeof(block), f)) > 0;) bytes.insert(bytes.end(), block, block + n);
    std::fclose(f);
  }
  return bytes;
}

class Mutator {
 public:
  Mutator(uint64_t seed, size_t length_max) : random_(seed), length_max_(length_max) {}
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
  Bytes from(const std::vector<Bytes>& corpus) {
    Bytes b = corpus.empty() ? Bytes{} : corpus[below(corpus.size())];
    for (size_t times = 1 + below(5); times > 0; --times) change(b, corpus);
    if (b.size() > length_max_) b.resize(length_max_);
    return b;
  }

 private:
  void change(Bytes& b, const std::vector<Bytes>& corpus) {
    static constexpr uint8_t kEnds[] = {0, 1, 7, 8, 15, 16, 63, 64, 127, 128, 199, 200, 239, 240, 254, 255};
    const size_t at = below(b.size());
    switch (b.empty() ? 5 : below(9)) {
      case 0:
        b[at] = static_cast<uint8_t>(b[at] ^ (1 << below(8)));
        break;
      case 1:
        b[at] = static_cast<uint8_t>(random_());
        break;
      case 2:
        b[at] = kEnds[below(sizeof(kEnds))];
        break;
      case 3:
        b[at] = static_cast<uint8_t>(b[at] + below(9) - 4);
        break;
      case 4: {  // shorter
        const size_t n = 1 + below(b.size() - at);
        b.erase(b.begin() + static_cast<long>(at), b.begin() + static_cast<long>(at + n));
        break;
      }
      case 5: {  // longer
        Bytes more(1 + below(16));
        for (uint8_t& x : more) x = static_cast<uint8_t>(random_());
        b.insert(b.begin() + static_cast<long>(at), more.begin(), more.end());
        break;
      }
      case 6: {  // copies a piece of the input itself
        const size_t n = 1 + below(b.size() - at);
        const Bytes piece(b.begin() + static_cast<long>(at), b.begin() + static_cast<long>(at + n));
        const size_t to = below(b.size());
        b.insert(b.begin() + static_cast<long>(to), piece.begin(), piece.end());
        break;
      }
      default: {  // copies a piece of another input
        const Bytes& other = corpus[below(corpus.size())];
        if (other.empty()) break;
        const size_t from = below(other.size()), n = 1 + below(other.size() - from);
        b.insert(b.begin() + static_cast<long>(at), other.begin() + static_cast<long>(from),
                 other.begin() + static_cast<long>(from + n));
      }
    }
  }
  std::mt19937_64 random_;
  size_t length_max_;
};

long option(const char* text, const char* name, long usual) {
  const size_t n = std::strlen(name);
  return std::strncmp(text, name, n) == 0 ? std::atol(text + n) : usual;
}

}  // namespace

extern "C" __attribute__((no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc() {
  const auto here = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const uintptr_t mixed = (here >> 2) * 0x9e3779b97f4a7c15ULL >> 48;
  uint8_t& count = reached[(mixed ^ previous) & (kEdges - 1)];
  if (count != 255) ++count;
  previous = mixed >> 1;
}

int main(int argc, char** argv) {
  long seconds = 0, runs = -1, seed = 0, length_max = 4096, timeout = 25;
  std::string prefix = "./", kept_in;
  std::vector<Bytes> inputs;
  bool folders = false;
  for (int i = 1; i < argc; ++i) {
    const char* a = argv[i];
    seconds = option(a, "-max_total_time=", seconds);
    runs = option(a, "-runs=", runs);
    seed = option(a, "-seed=", seed);
    length_max = option(a, "-max_len=", length_max);
    timeout = option(a, "-timeout=", timeout);
    if (std::strncmp(a, "-artifact_prefix=", 17) == 0) prefix = a + 17;
    struct stat status{};
    if (a[0] == '-' || ::stat(a, &status) != 0) continue;
    if (S_ISDIR(status.st_mode)) {
      if (!folders) kept_in = a;
      folders = true;
      DIR* folder = ::opendir(a);
      while (const dirent* entry = folder != nullptr ? ::readdir(folder) : nullptr) {
        if (entry->d_name[0] != '.') inputs.push_back(read_file(std::string(a) + "/" + entry->d_name));
      }
      if (folder != nullptr) ::closedir(folder);
    } else {
      inputs.push_back(read_file(a));
    }
  }
  if (seed == 0) seed = static_cast<long>(std::random_device{}());
  std::snprintf(crash_path, sizeof(crash_path), "%scrash-%ld-%d", prefix.c_str(), seed, ::getpid());
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) ::signal(number, on_signal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(on_death);

  std::vector<Bytes> corpus;
  for (const Bytes& input : inputs) {
    if (run(input, static_cast<unsigned>(timeout)) || !folders) corpus.push_back(input);
  }
  std::fprintf(stderr, "driver: seed %ld, %zu inputs read\n", seed, inputs.size());
  if (!folders && !inputs.empty()) return 0;
  if (corpus.empty()) corpus.emplace_back();  // a target without seeds begins with the empty input

  Mutator mutator(static_cast<uint64_t>(seed), static_cast<size_t>(length_max));
  const time_t end = ::time(nullptr) + seconds;
  long done = 0;
  size_t found = 0;
  for (; (runs < 0 || done < runs) && (seconds == 0 || ::time(nullptr) < end); ++done) {
    const Bytes input = mutator.from(corpus);
    if (!run(input, static_cast<unsigned>(timeout))) continue;
    corpus.push_back(input);
    ++found;
    if (kept_in.empty()) continue;
    const std::string path = kept_in + "/" + std::to_string(seed) + "-" + std::to_string(found);
    if (std::FILE* f = std::fopen(path.c_str(), "wbe")) {
      (void)!std::fwrite(input.data(), 1, input.size(), f);
      std::fclose(f);
    }
  }
  size_t edges = 0;
  for (const uint8_t k : known) edges += k != 0;
  std::fprintf(stderr, "driver: %ld runs, %zu edges, %zu inputs kept\n", done, edges, corpus.size());
  return 0;
}
