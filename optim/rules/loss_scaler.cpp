#include "optim/rules/loss_scaler.h"

#include <cmath>

#include "core/error.h"
#include "core/text/number_text.h"
#include "core/text/step_number.h"

namespace tessera::optim {

namespace {

void check_scale(float scale) {
  int exponent = 0;
  if (!(scale >= 1) || std::frexp(scale, &exponent) != 0.5f) {
    fail_input("loss scale {}, expected a power of two, at least 1", scale);
  }
}

}  // namespace

LossScaler::LossScaler(const LossScaling& options)
    : scale_(options.initial), growth_interval_(options.growth_interval) {
  check_scale(scale_);
  if (growth_interval_ < 1) {
    fail_input("loss scale grows after {} steps, expected at least 1", growth_interval_);
  }
}

void LossScaler::restore(float scale, int64_t good_steps) {
  check_scale(scale);
  if (good_steps < 0 || good_steps >= growth_interval_) {
    fail_input("loss scale: {} good steps since its last change, expected 0 to {}", good_steps,
               growth_interval_ - 1);
  }
  scale_ = scale;
  good_steps_ = good_steps;
}

void LossScaler::step(bool overflow, int64_t step, float loss) {
  // Small enough that loss * scale does not overflow f32 for any loss below 2^68.
  constexpr float largest = 0x1p60f;
  if (overflow) {
    TESSERA_CHECK(
        scale_ >= 2 || std::isfinite(loss),
        "step {}: the loss is not finite ({}) at a loss scale of {}, and the scale cannot fall "
        "below 1: activations overflow in fp16, or the weights or the data are invalid",
        step_number(step), without_nan_sign(loss), scale_);
    TESSERA_CHECK(
        scale_ >= 2,
        "step {}: gradients overflow at a loss scale of {}, and the scale cannot fall below 1",
        step_number(step), scale_);
    scale_ /= 2;
    good_steps_ = 0;
  } else if (++good_steps_ == growth_interval_) {
    good_steps_ = 0;
    if (scale_ < largest) scale_ *= 2;
  }
}

}  // namespace tessera::optim
