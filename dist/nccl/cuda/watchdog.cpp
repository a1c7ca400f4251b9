#include "dist/nccl/cuda/watchdog.h"

#include <chrono>
#include <utility>

#include "core/awake_time.h"
#include "core/cuda.h"
#include "core/error.h"
#include "core/run_status.h"
#include "dist/bootstrap.h"

namespace tessera::dist {

namespace {
constexpr auto period = std::chrono::milliseconds(100);
}  // namespace

Watchdog::Watchdog(Watched watched)
    : watched_(std::move(watched)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  std::optional<Flights::UnderWay> oldest;
  AwakeTime waited;  // since `oldest` became the oldest call: its timeout starts then
  try {
    cuda::use_device(watched_.device);  // otherwise the thread would use device 0
    for (;;) {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, period, [&] { return closing_; })) return;
      const auto now = watched_.oldest();
      if (!now || !oldest || now->number != oldest->number) waited = {};
      oldest = now;
      waited.look();
      const std::string failure = watched_.failure();
      if (!failure.empty()) {
        fail_job(fmt::format("{}: {}", oldest ? oldest->name : "between two calls", failure));
      }
      if (oldest && waited.seconds() > watched_.timeout_s) {
        publish_failure(RunFailure::stalled);
        fail_job(
            fmt::format("{} has not finished in {} s: another rank is gone, is stuck, or runs "
                        "another collective",
                        oldest->name, watched_.timeout_s));
      }
    }
  } catch (const std::exception& error) {
    fail_job(fmt::format("{}: {}", oldest ? oldest->name : "the watchdog", error.what()));
  }
}

}  // namespace tessera::dist
