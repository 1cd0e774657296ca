// cpp/host/viewers.cpp: see viewers.hpp.
#include "host/viewers.hpp"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "nic/nic.hpp"

namespace weft::host {

namespace {

constexpr int kBacklog = 16;
constexpr int kAnswersMax = 4;  // in one round

UniqueFd accept_viewer(int listener) noexcept {
  return UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

bool is_ours(int fd) noexcept {
  ucred who{};
  socklen_t size = sizeof(who);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && (who.uid == ::geteuid() || who.uid == 0);
}

UniqueFd file_of(const std::string& text) {
  UniqueFd file(::memfd_create("weft-snapshot", MFD_CLOEXEC));
  size_t written = 0;
  while (file.valid() && written < text.size()) {
    const ssize_t n = ::write(file.get(), text.data() + written, text.size() - written);
    if (n <= 0) return UniqueFd();
    written += static_cast<size_t>(n);
  }
  return file;
}

void send_file(int viewer, int file) noexcept {
  char byte = 1;
  iovec data{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &file, sizeof(file));
  (void)!::sendmsg(viewer, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

ViewerSocket::ViewerSocket(Random& random, link::EpollWaiter& waiter) noexcept {
  try {
    listen(random, waiter);
  } catch (const std::exception&) {  // no memory for the name
    fd_.reset();
  }
}

void ViewerSocket::listen(Random& random, link::EpollWaiter& waiter) {
  char name[64];
  const int length = std::snprintf(name, sizeof(name), "weft.top.%u.%d.%016llx", static_cast<unsigned>(::geteuid()),
                                   static_cast<int>(::getpid()), static_cast<unsigned long long>(random.next()));
  name_.assign(name, static_cast<size_t>(length));
  sockaddr_un here{};
  here.sun_family = AF_UNIX;
  std::memcpy(here.sun_path + 1, name_.data(), name_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&here), size) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return;
  }
  waiter.watch(fd.get(), &asked_);
  fd_ = std::move(fd);
}

size_t ViewerSocket::answer(nic::Nic& nic) noexcept try {
  if (!fd_.valid()) return 0;
  const bool asked = asked_.load(std::memory_order_relaxed);
  if (!asked && (nic.has_engine() || ++rounds_ % kRoundsBetweenLooks != 0)) return 0;
  asked_.store(false, std::memory_order_relaxed);  // before accept4(): a later viewer sets it again
  size_t answered = 0;
  UniqueFd file;
  while (answered < kAnswersMax) {
    const UniqueFd viewer = accept_viewer(fd_.get());
    if (!viewer.valid()) break;
    if (is_ours(viewer.get())) {
      if (!file.valid()) file = file_of(nic.snapshot());
      if (file.valid()) send_file(viewer.get(), file.get());
    }
    ++answered;
  }
  return answered;
} catch (const std::exception&) {  // out of memory: the viewer gets no answer
  return 0;
}

}  // namespace weft::host
