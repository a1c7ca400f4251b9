// The command line of checkpoint, checked.
#pragma once

#include <cstdint>
#include <string>

#include "train/checkpoint/import_checkpoint.h"

namespace tessera::apps {

enum class CheckpointCommand : uint8_t { inspect, verify, diff, export_weights, import_weights };

struct CheckpointToolOptions {
  CheckpointCommand command = CheckpointCommand::inspect;
  std::string path;   // of a checkpoint, or of a folder of checkpoints
  std::string other;  // diff: the second one; export: the file to write
  bool json = false;
  train::ImportOptions import;
};

struct CheckpointCommandLine {
  CheckpointToolOptions options;
  std::string help;  // not empty: only to be printed
};

/// Throws InputError, one line, for what cannot be done as asked.
CheckpointCommandLine parse_checkpoint_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
