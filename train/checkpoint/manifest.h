// What a checkpoint consists of: manifest.json in its folder (docs/checkpoints.md has the format).
// It is written last, so that a folder without it, or with one whose own checksum does not fit, is
// no checkpoint.
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
  std::string name;          // within the folder
  int64_t bytes = 0;         // of the whole file
  int64_t header_bytes = 0;  // before the first tensor's
  uint64_t header = 0;       // their XXH3
};

/// Elements [begin, end) of a tensor, and where their bytes are.
struct CheckpointRange {
  int64_t tensor = 0;  // of the manifest's tensors
  int64_t begin = 0;
  int64_t end = 0;
  int64_t file = 0;         // of the manifest's files
  int64_t offset = 0;       // of the first byte in the file
  BlockDigest digest = {};  // of the elements, with the tensor's path as the name

  bool operator==(const CheckpointRange&) const = default;
};

/// The ranks that wrote it: nothing that reads a checkpoint depends on it.
struct CheckpointLayout {
  int64_t ranks = 1;
  int64_t stage = 0;
  int64_t bucket_bytes = 0;
};

struct Manifest {
  std::string version = {};  // of Tessera
  int64_t step = 0;     // steps that were finished
  int64_t skipped = 0;  // of these, without an update
  std::optional<BestEvaluation> best = std::nullopt;  // of these, where its weights are kept
  BlockDigest digest = {};  // of all the state: the sum of the ranges' digests
  CheckpointLayout layout = {};
  dist::Settings run = {};   // what the run is: another value is another run
  dist::Settings bits = {};  // what its bits depend on besides
  /// Metadata of a file of these weights: what export_weights needs besides the state to write what
  /// the program would save. Empty where the writer did not say.
  std::map<std::string, std::string> weights = {};
  /// The name of the file that the weights were imported from; empty where a run wrote them. The
  /// `run` of an imported checkpoint has only the settings that the file fixes.
  std::string imported = {};
  std::vector<int64_t> events = {};  // optim::ZeroOptimizer::parameter_events, where it is known
  std::vector<CheckpointFile> files = {};
  std::vector<optim::StateTensor> tensors = {};
  std::vector<CheckpointRange> ranges = {};  // by tensor, and within a tensor by element
};

/// JSON, with a checksum of itself as its last member.
std::string manifest_text(const Manifest& manifest);

/// A manifest's text up to its last member, with the checksum behind it.
std::string with_checksum(const std::string& members);

/// Trusts nothing: throws InputError, which begins with `where`, for a text that is no manifest, or
/// not whole, or whose ranges do not cover each tensor once or do not lie in their files.
Manifest parse_manifest(const std::string& where, const std::string& text);

inline constexpr const char* manifest_name = "manifest.json";

}  // namespace tessera::train
