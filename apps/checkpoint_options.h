// Parses and checks the command line of `checkpoint`.
#pragma once

#include <cstdint>
#include <string>

#include "train/checkpoint/import_checkpoint.h"

namespace tessera::apps {

enum class CheckpointCommand : uint8_t { inspect, verify, diff, export_weights, import_weights };

struct CheckpointToolOptions {
  CheckpointCommand command = CheckpointCommand::inspect;
  std::string path;   // a checkpoint, or a folder of checkpoints
  std::string other;  // diff: the second checkpoint or folder; export: the file to write
  bool json = false;
  train::ImportOptions import;
};

struct CheckpointCommandLine {
  CheckpointToolOptions options;
  std::string help;  // if not empty: print this text and exit
};

/// Throws InputError, with a one-line message, if the command, an argument or a flag is missing or
/// invalid.
CheckpointCommandLine parse_checkpoint_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
