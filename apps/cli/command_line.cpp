#include "apps/cli/command_line.h"

namespace tessera::apps {

int run_job(int argc, char** argv, const std::function<int(dist::World&)>& body) {
  prepare_streams();
  return dist::run(argc, argv,
                   [&](dist::World& world) { return run_and_check([&] { return body(world); }); });
}

}  // namespace tessera::apps
