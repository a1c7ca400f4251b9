// The manifest of a checkpoint: manifest.json in its folder lists its contents (docs/checkpoints.md
// has the format). It is written last, so that a folder without a manifest, or with one whose
// checksum does not fit, is no checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/block_digest.h"
#include "dist/agreement.h"
#include "optim/zero/optimizer_state.h"
#include "train/score.h"

namespace tessera::train {

/// A file of a checkpoint, written by one rank.
struct CheckpointFile {
  std::string name;          // inside the folder
  int64_t bytes = 0;         // of the whole file
  int64_t header_bytes = 0;  // before the first tensor's bytes
  uint64_t header = 0;       // XXH3 of the header
};

/// Elements [begin, end) of a tensor, and where their bytes are.
struct CheckpointRange {
  int64_t tensor = 0;  // index in the manifest's tensors
  int64_t begin = 0;
  int64_t end = 0;
  int64_t file = 0;         // index in the manifest's files
  int64_t offset = 0;       // of the first byte in the file
  BlockDigest digest = {};  // of the elements, with the tensor's path as the name

  bool operator==(const CheckpointRange&) const = default;
};

/// The layout of the run that wrote the checkpoint. Reading a checkpoint does not depend on it.
struct CheckpointLayout {
  int64_t ranks = 1;
  int64_t stage = 0;
  int64_t bucket_bytes = 0;
};

struct Manifest {
  std::string version = {};  // of Tessera
  int64_t step = 0;     // steps that were finished
  int64_t skipped = 0;  // finished steps without an update
  std::optional<BestEvaluation> best = std::nullopt;  // so far, if its weights are kept
  BlockDigest digest = {};  // of all the state: the sum of the ranges' digests
  CheckpointLayout layout = {};
  dist::Settings run = {};   // settings that define the run: with another value it is another run
  dist::Settings bits = {};  // further settings that its bits depend on
  /// Metadata of a file of these weights: export_weights needs it, besides the state, to write the
  /// file that the program would save. Empty if the writer gave none.
  std::map<std::string, std::string> weights = {};
  /// The name of the file from which the weights were imported; empty if a run wrote the
  /// checkpoint. The `run` of an imported checkpoint has only the settings that the file fixes.
  std::string imported = {};
  std::vector<int64_t> events = {};  // optim::ZeroOptimizer::parameter_events, if known
  std::vector<CheckpointFile> files = {};
  std::vector<optim::StateTensor> tensors = {};
  std::vector<CheckpointRange> ranges = {};  // by tensor, and within a tensor by element
};

/// The manifest as JSON. Its last member is a checksum of the text before it.
std::string manifest_text(const Manifest& manifest);

/// Appends the checksum, as the last member, to a manifest's text up to there.
std::string with_checksum(const std::string& members);

/// Parses a manifest, and trusts nothing in it. Throws an InputError that begins with `where` if
/// the text is no manifest or not whole, or if its ranges do not cover each tensor exactly once or
/// do not lie in their files.
Manifest parse_manifest(const std::string& where, const std::string& text);

inline constexpr const char* manifest_name = "manifest.json";

}  // namespace tessera::train
