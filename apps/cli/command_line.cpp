#include "apps/cli/command_line.h"

#include <csignal>

#include "train/checkpoint/run_checkpoints.h"

namespace tessera::apps {

int run_job(int argc, char** argv, const std::function<int(dist::World&)>& body) {
  prepare_streams();
  int ranks = 1;
  const int result = dist::run(argc, argv, [&](dist::World& world) {
    ranks = world.size;
    return run_and_check([&] { return body(world); });
  });
  if (train::was_interrupted() && ranks == 1) {
    // After an exit code, even 130, a shell would go on with its script. In a job of several ranks
    // mpirun would take the signal for a failure of this rank.
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  return result;
}

}  // namespace tessera::apps
