// Dynamic loss scaling for f16 (Micikevicius et al., arXiv:1710.03740). The loss is multiplied by a
// scale, so that small gradients do not vanish in 16 bits. Before the update, the gradient sums are
// divided by the scale. If the loss or gradients overflow, every rank skips the step and halves the
// scale.
//
// Scales are powers of two, so that multiplying by a scale does not round.
#pragma once

#include <cstdint>

namespace tessera::optim {

struct LossScaling {
  float initial = 65536;  // 2^16
  // The scale doubles after this many steps in a row without overflow, unless it has reached 2^60.
  int64_t growth_interval = 1000;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaling& options);

  float scale() const { return scale_; }
  /// The number of steps in a row without overflow. On reaching growth_interval it becomes 0 again.
  int64_t good_steps() const { return good_steps_; }
  /// Sets scale and good steps from a checkpoint. Throws InputError unless the scale is a power of
  /// two of at least 1 and good_steps is in [0, growth_interval).
  void restore(float scale, int64_t good_steps);
  /// Adjusts the scale after a step. `loss` is the step's loss without the scale. Throws if the
  /// scale would become less than 1. The error says whether the loss or only gradients overflow.
  void step(bool overflow, int64_t step, float loss);

 private:
  float scale_;
  int64_t growth_interval_;
  int64_t good_steps_ = 0;
};

}  // namespace tessera::optim
