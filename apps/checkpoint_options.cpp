#include "apps/checkpoint_options.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/console/console.h"
#include "apps/console/flag_value.h"
#include "apps/console/flags.h"
#include "apps/cli/paths.h"
#include "core/error.h"

namespace tessera::apps {
namespace {

constexpr const char* description =
    "Inspects, verifies and compares the checkpoints of runs, exports their weights, and makes "
    "checkpoints from weights";

constexpr const char* commands = R"(
Commands (checkpoint COMMAND --help explains each):
  inspect DIR       Shows the checkpoints in a folder, or the contents of one checkpoint
  verify DIR        Reads every byte of the checkpoints, and checks their digests
  diff A B          Compares two checkpoints bit for bit, whatever ranks and stages wrote them
  export DIR FILE   Writes a checkpoint's weights as safetensors, as --save of the run would, but a
                    recommender's without ids and histories
  import FILE DIR   Makes a checkpoint from weights, and from the state of PyTorch's optimizers

Examples:
  checkpoint inspect runs/a
  checkpoint verify runs/a
  checkpoint diff runs/a/step-000000500 runs/b/step-000000500
  checkpoint export runs/a model.safetensors
  checkpoint import gpt2/model.safetensors runs/b --moments state.safetensors
)";

void required(const std::string& value, const char* usage) {
  if (value.empty()) fail_input("an argument is missing: checkpoint {}", usage);
}

std::string parse_inspect(int argc, const char* const* argv, CheckpointToolOptions& options) {
  Flags app("Shows the checkpoints in a folder, or the contents of one checkpoint",
            "checkpoint inspect");
  app.add_option("dir,--dir", options.path, "A folder of checkpoints, or one checkpoint");
  app.add_flag("--json", options.json, "Print JSON, for scripts");
  app.add_examples(R"(
Files are called complete if their sizes and headers are right. Only verify reads the tensors, and
finds elements that were changed.

Examples:
  checkpoint inspect runs/a                          each checkpoint of the run, newest first
  checkpoint inspect runs/a/step-000000500 --json    settings, best evaluation, files, tensors
)");
  std::string help = app.parse(argc, argv);
  if (help.empty()) required(options.path, "inspect DIR");
  return help;
}

std::string parse_verify(int argc, const char* const* argv, CheckpointToolOptions& options) {
  Flags app(
      "Reads every byte of one checkpoint, or of all checkpoints in a folder, and checks their "
      "digests",
      "checkpoint verify");
  app.add_option("dir,--dir", options.path, "A folder of checkpoints, or one checkpoint");
  app.add_examples(R"(
The exit code is 0 if all checkpoints are whole, and 1 if one is not.

Example:
  checkpoint verify runs/a
)");
  std::string help = app.parse(argc, argv);
  if (help.empty()) required(options.path, "verify DIR");
  return help;
}

std::string parse_diff(int argc, const char* const* argv, CheckpointToolOptions& options) {
  Flags app("Compares two checkpoints bit for bit, whatever ranks and stages wrote them",
            "checkpoint diff");
  app.add_option("a,--a", options.path,
                 "A checkpoint, or a folder of checkpoints, whose newest whole one is taken");
  app.add_option("b,--b", options.other,
                 "The checkpoint to compare it with, or a folder, whose newest whole one is taken");
  app.add_examples(R"(
The exit code is 0 if all tensors are equal, 1 if one differs, 2 for bad input. Settings that differ
are listed, but do not change the exit code. In a folder, a damaged checkpoint is passed over with a
warning, and an older one is compared; the first two lines of the output name the checkpoints.

Example:
  checkpoint diff runs/a/step-000000500 runs/b/step-000000500
)");
  std::string help = app.parse(argc, argv);
  if (!help.empty()) return help;
  required(options.path, "diff A B");
  required(options.other, "diff A B");
  return help;
}

std::string parse_export(int argc, const char* const* argv, CheckpointToolOptions& options) {
  Flags app("Writes the weights of a checkpoint as safetensors", "checkpoint export");
  app.add_option("dir,--dir", options.path,
                 "A checkpoint, or a folder of checkpoints, whose newest whole one is taken");
  app.add_option("file,--file", options.other, "File to write, FILE.safetensors");
  app.add_examples(R"(
The file is the one that --save of the run would have written at that step. Only a recommender's
file differs: without ids and histories, it can be given to --init, but not to recommend. In a
folder, a damaged checkpoint is passed over with a warning.

Examples:
  checkpoint export runs/a model.safetensors                 the newest whole checkpoint
  checkpoint export runs/a/step-000000500 half.safetensors   this checkpoint
)");
  std::string help = app.parse(argc, argv);
  if (!help.empty()) return help;
  required(options.path, "export DIR FILE");
  required(options.other, "export DIR FILE");
  check_paths({.inputs = {{"DIR", options.path}}, .outputs = {{"FILE", options.other}}});
  return help;
}

std::string parse_import(int argc, const char* const* argv, CheckpointToolOptions& options) {
  train::ImportOptions& import = options.import;
  std::optional<int64_t> shard_bytes;
  Flags app("Imports weights as a checkpoint from which a run can resume", "checkpoint import");
  app.add_option("file,--file", import.weights,
                 "Weights to import, FILE.safetensors; for a GPT, with config.json beside it");
  app.add_option("dir,--dir", import.folder,
                 "The folder of checkpoints in which to write the new one");
  app.add_option("--moments", import.moments,
                 "State of PyTorch's AdamW, Adam or SGD in STATE.safetensors: NAME.exp_avg, "
                 "NAME.exp_avg_sq and NAME.step, or NAME.momentum_buffer");
  app.add_option("--optimizer", import.optimizer,
                 "Optimizer whose state is created (default: that of --moments, else adamw)")
      ->one_of({"adamw", "adam", "sgd", "plain-sgd"});
  app.add_option("--step", import.step,
                 "How many steps are finished (default: the step in --moments, else 0)");
  app.add_bytes("--shard-bytes", shard_bytes,
                "Most bytes of tensors in one file, and in memory at once (default: 256MiB)");
  app.add_examples(R"(
Examples:
  checkpoint import gpt2/model.safetensors runs/b
  checkpoint import gpt2/model.safetensors runs/b --moments gpt2/state.safetensors
  train_gpt --data text.txt --init gpt2 --checkpoint runs/b --steps 20000
)");
  std::string help = app.parse(argc, argv);
  if (!help.empty()) return help;
  required(import.weights, "import FILE DIR");
  required(import.folder, "import FILE DIR");
  check_not_a_checkpoint(import.weights);
  check_not_a_dash("DIR", import.folder);
  check_outside_checkpoints("DIR", import.folder);
  check_checkpoint_folder("DIR", import.folder);
  if (import.step) {
    at_least("--step", *import.step, 0);
    at_most("--step", *import.step, int64_t{1} << 40);
  }
  if (shard_bytes) {
    // Tensors are divided among files in whole blocks of the digest, so a file must have room for
    // one block: 256 elements (core/block_digest.h), each of up to 8 bytes.
    at_least("--shard-bytes", *shard_bytes, 2048);
    at_most("--shard-bytes", *shard_bytes, int64_t{1} << 40);
    import.shard_bytes = *shard_bytes;
  }
  return help;
}

struct Command {
  const char* name;
  CheckpointCommand command;
  std::string (*parse)(int argc, const char* const* argv, CheckpointToolOptions& options);
};
constexpr Command all_commands[] = {
    {"inspect", CheckpointCommand::inspect, parse_inspect},
    {"verify", CheckpointCommand::verify, parse_verify},
    {"diff", CheckpointCommand::diff, parse_diff},
    {"export", CheckpointCommand::export_weights, parse_export},
    {"import", CheckpointCommand::import_weights, parse_import},
};

}  // namespace

CheckpointCommandLine parse_checkpoint_command_line(int argc, const char* const* argv) {
  CheckpointCommandLine result;
  const std::string_view first = argc > 1 ? argv[1] : "";
  for (const Command& command : all_commands) {
    if (first != command.name) continue;
    result.options.command = command.command;
    result.help = command.parse(argc - 1, argv + 1, result.options);
    return result;
  }
  std::vector<std::string> names;
  for (const Command& command : all_commands) names.emplace_back(command.name);
  if (!first.starts_with("-")) {
    fail_input("{}, expected one of the commands {}; --help explains them",
               argc > 1 ? "unknown command " + quoted(std::string(first)) : "no command is given",
               fmt::join(names, ", "));
  }
  std::string command;
  Flags app(description, "checkpoint");
  app.add_option("command", command,
                 "What to do: inspect, verify, diff, export or import, as listed below");
  app.add_examples(commands);
  result.help = app.parse(argc, argv);
  if (result.help.empty()) fail_input("no command is given; --help explains them");
  return result;
}

}  // namespace tessera::apps
