// Inspects, verifies and compares checkpoints, exports their weights, and imports weights as
// checkpoints:
//
//   checkpoint inspect runs/a
//   checkpoint export runs/a model.safetensors
#include <fmt/format.h>

#include "apps/checkpoint/commands.h"
#include "apps/checkpoint_options.h"
#include "apps/console/console.h"
#include "train/report/progress.h"

namespace tessera::apps {
namespace {

int run(const CheckpointToolOptions& options) {
  train::set_up_messages(true);
  switch (options.command) {
    case CheckpointCommand::inspect:
      return inspect_checkpoints(options);
    case CheckpointCommand::verify:
      return verify_checkpoints(options);
    case CheckpointCommand::diff:
      return diff_checkpoints(options);
    case CheckpointCommand::export_weights:
      return export_checkpoint(options);
    case CheckpointCommand::import_weights:
      return import_weights(options);
  }
  return 0;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  using namespace tessera;
  return apps::run_tool([&] {
    const auto [options, help] = apps::parse_checkpoint_command_line(argc, argv);
    if (help.empty()) return apps::run(options);
    fmt::print("{}", help);
    return 0;
  });
}
