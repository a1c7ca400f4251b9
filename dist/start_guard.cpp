#include "dist/start_guard.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "core/awake_time.h"
#include "core/run_status.h"
#include "dist/communicator.h"

namespace tessera::dist {

double comm_timeout_in(int argc, const char* const* argv) {
  constexpr std::string_view flag = "--comm-timeout";
  double timeout_s = default_comm_timeout_s;
  for (int i = 1; i < argc; ++i) {
    std::string_view text = argv[i];
    if (!text.starts_with(flag)) continue;
    text.remove_prefix(flag.size());
    if (text.starts_with('=')) {
      text.remove_prefix(1);
    } else if (text.empty() && i + 1 < argc) {
      text = argv[i + 1];
    } else {
      continue;  // no value, or another flag, such as --comm-timeout5
    }
    // The parser of the command line accepts a plus sign, which from_chars refuses.
    if (text.starts_with('+')) text.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    if (whole && std::isfinite(value) && value > 0) timeout_s = value;
  }
  return timeout_s;
}

StartGuard::StartGuard(double comm_timeout_s)
    : thread_([this, comm_timeout_s] {
        constexpr double most_s = 1e7;
        watch(std::clamp(comm_timeout_s, least_start_timeout_s, most_s));
      }) {}

StartGuard::~StartGuard() {
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StartGuard::watch(double timeout_s) {
  const pid_t launcher = ::getppid();
  constexpr std::chrono::milliseconds between_looks(250);
  std::unique_lock lock(mutex_);
  for (AwakeTime waited; waited.seconds() < timeout_s; waited.look()) {
    if (changed_.wait_for(lock, between_looks, [this] { return started_; })) return;
    if (::getppid() == launcher) continue;
    std::fputs("the launcher has died while MPI was starting\n", stderr);
    _exit(1);
  }
  publish_failure(RunFailure::stalled);
  std::fputs(fmt::format("MPI has not started within {} s (--comm-timeout, but at least {} s): a "
                         "rank is stopped or hangs, or a host does not answer\n",
                         timeout_s, least_start_timeout_s)
                 .c_str(),
             stderr);
  _exit(1);
}

}  // namespace tessera::dist
