#include "apps/relaunch/record_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"

namespace tessera::apps {
namespace {

constexpr int socket_type = SOCK_DGRAM | SOCK_CLOEXEC;

struct Address {
  sockaddr_un value{};
  socklen_t bytes = 0;

  // An abstract name begins with a zero byte and is no path.
  explicit Address(std::string_view name) {
    value.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof(value.sun_path) - 1);
    std::memcpy(value.sun_path + 1, name.data(), length);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

// A launcher may copy the environment to another host, where another relaunch may have the same
// process id. Without the random part, ranks there would send their records to that relaunch.
std::string random_name() {
  std::random_device random;
  return fmt::format("tessera-relaunch-{}-{:08x}{:08x}", ::getpid(), random(), random());
}

}  // namespace

RecordSocket::RecordSocket() {
  descriptor_ = ::socket(AF_UNIX, socket_type | SOCK_NONBLOCK, 0);
  TESSERA_CHECK(descriptor_ >= 0, "relaunch: socket: {}", std::strerror(errno));
  const std::string name = random_name();
  const Address address(name);
  const int yes = 1;
  if (::setsockopt(descriptor_, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
      ::bind(descriptor_, address.get(), address.bytes) != 0) {
    const int error = errno;
    ::close(descriptor_);
    fail("relaunch: a socket for its ranks: {}", std::strerror(error));
  }
  ::setenv(record_socket_variable, name.c_str(), 1);
}

RecordSocket::~RecordSocket() { ::close(descriptor_); }

std::string RecordSocket::next() {
  std::array<char, 1 << 13> text{};
  for (;;) {
    iovec part{.iov_base = text.data(), .iov_len = text.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t count = ::recvmsg(descriptor_, &message, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return "";
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
    if (count > 0 && sender.uid == ::getuid()) return {text.data(), static_cast<size_t>(count)};
  }
}

RecordSender::RecordSender() {
  const char* const name = std::getenv(record_socket_variable);
  if (name == nullptr) return;
  descriptor_ = ::socket(AF_UNIX, socket_type, 0);
  if (descriptor_ < 0) return;
  const Address address(name);
  const timeval patience{.tv_sec = 0, .tv_usec = 500'000};
  if (::setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
      ::connect(descriptor_, address.get(), address.bytes) == 0) {
    return;
  }
  ::close(descriptor_);
  descriptor_ = -1;
}

RecordSender::~RecordSender() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool RecordSender::send(const std::string& text) const {
  if (descriptor_ < 0 || ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL) >= 0) {
    return true;
  }
  return errno != EAGAIN && errno != EINTR;
}

}  // namespace tessera::apps
