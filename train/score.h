// The score of a model's weights in an evaluation, and the choice of the best evaluation.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "core/digest.h"

namespace tessera::train {

/// The number by which evaluations are compared, and a second number for ties.
struct Score {
  double value = 0;
  bool higher_is_better = false;
  double tie = 0;  // lower is better

  /// True if value and tie are finite, so that the score can be compared.
  bool valid() const { return std::isfinite(value) && std::isfinite(tie); }
};

/// The evaluation whose weights are kept as the best so far.
struct BestEvaluation {
  int64_t step = 0;  // steps finished at the evaluation
  double value = 0;
  double tie = 0;
  /// WeightSaveOptions::evaluated. Empty if the checkpoint is of an earlier version, which did not
  /// record this text.
  std::string evaluated = {};
  /// The digest_of_file of the saved weights, which covers only 64 blocks of a large file. Rank 0
  /// computes the digest after a save, and records the digest in checkpoints. Other ranks have
  /// nullopt until they read a checkpoint. All ranks have nullopt if the weights are not in one
  /// file, or if an earlier version wrote the checkpoint: a resume then does not compare the
  /// weights.
  std::optional<FileDigest> file = std::nullopt;

  bool operator==(const BestEvaluation&) const = default;
};

/// True if a score is valid and better than the best so far. If the values are equal, the lower tie
/// is better. If the ties are equal too, the earlier evaluation stays the best.
inline bool is_better(const Score& score, const BestEvaluation& best) {
  if (!score.valid()) return false;
  if (score.value == best.value) return score.tie < best.tie;
  return score.higher_is_better ? score.value > best.value : score.value < best.value;
}

}  // namespace tessera::train
