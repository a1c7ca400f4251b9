#include "apps/cli/command_line.h"

#include <csignal>

#include "train/checkpoint/run_checkpoints.h"

namespace tessera::apps {

int run_job(int argc, char** argv, const std::function<int(dist::World&)>& body) {
  prepare_streams();
  const int result = dist::run(argc, argv, [&](dist::World& world) {
    return run_and_check([&] { return body(world); });
  });
  if (train::was_interrupted()) {
    // After an exit code, even 130, a shell would go on with its script.
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  return result;
}

}  // namespace tessera::apps
