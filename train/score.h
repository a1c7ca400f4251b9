// How good an evaluation found a model's weights to be, and which of several is the best.
#pragma once

#include <cmath>
#include <cstdint>

namespace tessera::train {

/// The number that evaluations are compared by, and another one for those where it is equal.
struct Score {
  double value = 0;
  bool higher_is_better = false;
  double tie = 0;  // lower is better

  /// Whether there is something to compare: a loss that is not finite is no score.
  bool valid() const { return std::isfinite(value) && std::isfinite(tie); }
};

/// The evaluation whose weights are kept as the best so far.
struct BestEvaluation {
  int64_t step = 0;  // steps that were finished then
  double value = 0;
  double tie = 0;

  bool operator==(const BestEvaluation&) const = default;
};

/// Whether a score is better than the best so far. Of two that are equal the first stays.
inline bool is_better(const Score& score, const BestEvaluation& best) {
  if (!score.valid()) return false;
  if (score.value == best.value) return score.tie < best.tie;
  return score.higher_is_better ? score.value > best.value : score.value < best.value;
}

}  // namespace tessera::train
