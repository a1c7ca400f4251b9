// Dynamic loss scaling for f16 (Micikevicius et al., arXiv:1710.03740): the loss is multiplied so
// that small gradients do not vanish in 16 bits, and the sums are divided by as much before the
// update. A step whose gradients overflow is skipped, on every rank alike, and the scale halves.
//
// Scales are powers of two, so that scaling itself rounds nothing.
#pragma once

#include <cstdint>

namespace tessera::optim {

struct LossScaling {
  float initial = 65536;         // 2^16
  int64_t growth_interval = 1000;  // good steps until the scale doubles
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaling& options);

  float scale() const { return scale_; }
  /// Steps without an overflow since the scale last changed.
  int64_t good_steps() const { return good_steps_; }
  /// Sets both, as from a checkpoint. Throws InputError for values that no scaler can have.
  void restore(float scale, int64_t good_steps);
  /// Adjusts the scale after a step. Throws if an overflow would bring the scale below 1.
  void step(bool overflow, int64_t step);

 private:
  float scale_;
  int64_t growth_interval_;
  int64_t good_steps_ = 0;
};

}  // namespace tessera::optim
