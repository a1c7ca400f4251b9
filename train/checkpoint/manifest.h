// The manifest of a checkpoint: manifest.json in the checkpoint's folder lists the contents
// (docs/checkpoints.md has the format). The manifest is written last. A folder without a manifest,
// or with a manifest whose checksum does not match, is therefore not a whole checkpoint.
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
  std::string name;          // file name in the checkpoint's folder
  int64_t bytes = 0;         // size of the whole file
  int64_t header_bytes = 0;  // size of the part before the first tensor's bytes
  uint64_t header = 0;       // XXH3 of the header
};

/// Elements [begin, end) of a tensor, and the place of their bytes.
struct CheckpointRange {
  int64_t tensor = 0;  // index in the manifest's tensors
  int64_t begin = 0;
  int64_t end = 0;
  int64_t file = 0;         // index in the manifest's files
  int64_t offset = 0;       // position of the first byte in the file
  BlockDigest digest = {};  // covers the elements and the tensor's StateTensor::path()

  bool operator==(const CheckpointRange&) const = default;
};

/// The layout of the run that wrote the checkpoint. Reading a checkpoint does not depend on the
/// layout.
struct CheckpointLayout {
  int64_t ranks = 1;
  int64_t stage = 0;
  int64_t bucket_bytes = 0;
};

struct Manifest {
  std::string version = {};  // version of Tessera
  int64_t step = 0;     // number of finished steps
  int64_t skipped = 0;  // finished steps without an update
  std::optional<BestEvaluation> best = std::nullopt;  // nullopt: no best weights were saved
  BlockDigest digest = {};  // digest of all state: the sum of the ranges' digests
  CheckpointLayout layout = {};
  dist::Settings run = {};   // settings that define the run; a resume changes one only on request
  dist::Settings bits = {};  // may change when the run resumes, but then the results' bits change
  /// The metadata that the training program and export_weights save with the weights: for a GPT in
  /// config.json, and for other models in the file of the weights. Empty if the writer of the
  /// checkpoint gave none. In an imported checkpoint, the metadata may also have
  /// imported_batches_key, which export_weights leaves out.
  std::map<std::string, std::string> weights = {};
  /// The name of the file from which the weights were imported; empty if a run wrote the
  /// checkpoint. In an imported checkpoint, `run` has only the settings that follow from this file.
  std::string imported = {};
  /// The table of algorithms that the run used on a GPU (train/tuned_file.h); empty if none.
  std::string tuned = {};
  std::vector<int64_t> events = {};  // optim::ZeroOptimizer::parameter_events(); empty: unknown
  std::vector<CheckpointFile> files = {};
  std::vector<optim::StateTensor> tensors = {};
  std::vector<CheckpointRange> ranges = {};  // sorted by tensor, and within a tensor by element
};

/// Returns the manifest as JSON. The last member is a checksum of the text before it.
std::string manifest_text(const Manifest& manifest);

/// Completes the text of a manifest: `members` is the JSON object's text without the checksum and
/// the closing brace. Appends the checksum as the last member.
std::string with_checksum(const std::string& members);

/// Parses a manifest, and checks every value because the text may be wrong or hostile. The ranges
/// must cover each element of each tensor exactly once, and be inside their files. Throws an
/// InputError that begins with `where` if the text is not a valid manifest.
Manifest parse_manifest(const std::string& where, const std::string& text);

inline constexpr const char* manifest_name = "manifest.json";

}  // namespace tessera::train
