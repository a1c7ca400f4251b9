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
    // A shell stops its script only if this process ends by the signal. After an exit code, even
    // 130, the shell would continue the script. In a job of several ranks this process must not end
    // by a signal: mpirun would report a failure of this rank.
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  return result;
}

}  // namespace tessera::apps
