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
    // If the process only returned an exit code, even 130, a shell would go on with its script. So
    // the process ends itself by SIGINT. A job of several ranks returns the exit code instead,
    // because mpirun would treat the death of a rank by a signal as a failure.
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  return result;
}

}  // namespace tessera::apps
