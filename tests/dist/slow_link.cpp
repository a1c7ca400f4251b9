// A link between two network namespaces that is slow and loses packets, for tests/apps/hosts.sh:
//
//   slow_link NAMESPACE NAMESPACE DELAY_MS LOSS_PERCENT
//
// The program makes an interface "slow0" in each namespace, and carries IP packets between the two
// interfaces until it is killed. It prints "ready" when packets can flow, and exits with 77 if the
// system does not allow such interfaces.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int skipped = 77;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(skipped);
}

// Opens a namespace's end of the link. Reading from this end gives the packets that the namespace
// sends.
int open_end(const std::string& name) {
  const int name_space = ::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (name_space < 0 || ::setns(name_space, CLONE_NEWNET) != 0) give_up(name.c_str());
  const int end = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (end < 0) give_up("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strcpy(request.ifr_name, "slow0");
  if (::ioctl(end, TUNSETIFF, &request) != 0) give_up("slow0");
  return end;
}

/// One direction of the link.
class Direction {
 public:
  Direction(int from, int to, std::chrono::milliseconds delay, double loss, unsigned seed)
      : from_(from), to_(to), delay_(delay), random_(seed), lost_(loss) {}

  void take() {
    std::array<char, 1 << 16> bytes{};
    for (;;) {
      const ssize_t count = ::read(from_, bytes.data(), bytes.size());
      if (count <= 0) return;
      if (lost_(random_)) continue;
      waiting_.push_back({Clock::now() + delay_, {bytes.data(), bytes.data() + count}});
    }
  }

  void deliver() {
    while (!waiting_.empty() && waiting_.front().due <= Clock::now()) {
      const std::vector<char>& bytes = waiting_.front().bytes;
      // An interface that is down drops the packet, as a network would.
      [[maybe_unused]] const ssize_t written = ::write(to_, bytes.data(), bytes.size());
      waiting_.pop_front();
    }
  }

 private:
  struct Packet {
    Clock::time_point due;
    std::vector<char> bytes;
  };
  int from_;
  int to_;
  std::chrono::milliseconds delay_;
  std::mt19937 random_;
  std::bernoulli_distribution lost_;
  std::deque<Packet> waiting_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: slow_link NAMESPACE NAMESPACE DELAY_MS LOSS_PERCENT\n", stderr);
    return 2;
  }
  const int a = open_end(argv[1]);
  const int b = open_end(argv[2]);
  const std::chrono::milliseconds delay(std::atoi(argv[3]));
  const double loss = std::atof(argv[4]) / 100;
  std::array<Direction, 2> directions{Direction(a, b, delay, loss, 1),
                                      Direction(b, a, delay, loss, 2)};
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    std::array<pollfd, 2> ready{
        {{.fd = a, .events = POLLIN, .revents = 0}, {.fd = b, .events = POLLIN, .revents = 0}}};
    ::poll(ready.data(), ready.size(), 1);
    for (Direction& direction : directions) {
      direction.take();
      direction.deliver();
    }
  }
}
