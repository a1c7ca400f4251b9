// The results of a ZeroOptimizer: the report of a step, and the optimizer state that a rank holds.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "dist/shard_layout.h"

namespace tessera::optim {

/// The result of a step.
struct StepReport {
  int64_t step = 0;     // counted from 0, as given to micro_batches()
  float loss = 0;       // of the global batch
  float grad_norm = 0;  // before clipping
  /// The rule's learning rate times the schedule's factor. Parameter groups and
  /// ZeroOptions::table_rule may have learning rates of their own, which are not reported. If the
  /// rule's rate depends on the number of updates, this is the rate of the parameter that has had
  /// the most updates.
  float learning_rate = 0;
  float loss_scale = 1;  // the loss scale of this step
  /// True if no weight was changed: loss or gradients overflowed under loss scaling, or no rank
  /// had data.
  bool skipped = false;
  /// Parameters without an update, because no micro-batch gave them a gradient. An optimizer lists
  /// a parameter only in the first such step.
  std::vector<std::string> without_gradient;
  uint8_t notes = 0;       // bitwise or of all ranks' bits (ZeroOptimizer::set_notes)
  int64_t exposed_ns = 0;  // time that the host was blocked by communication (dist::waited_ns)
};

/// Thrown on every rank, and only without loss scaling, for a step that changed no weight because
///  - its loss or gradient is not finite, or
///  - the previous step failed in this way, and this step was launched before the error was thrown.
struct NonFiniteError : Error {
  NonFiniteError(const std::string& text, int64_t micro_batch_index)
      : Error(text), micro_batch(micro_batch_index) {}
  int64_t micro_batch;  // index of the first micro-batch whose loss is not finite, or -1
};

/// A parameter's optimizer state, or the shard of it that a rank holds.
struct StateShard {
  /// A range of the parameter's elements. If the parameter is a row-sparse table whose rule has one
  /// state value for each row, this is a range of the table's rows.
  dist::Range range;
  std::map<std::string, std::vector<float>> values;  // "exp_avg" -> range.size() values
};

/// "wte.weight" -> its state.
using StateByName = std::map<std::string, StateShard>;

}  // namespace tessera::optim
