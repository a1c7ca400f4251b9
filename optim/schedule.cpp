#include "optim/schedule.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace tessera::optim {

Schedule constant_schedule() {
  return [](int64_t) { return 1.0f; };
}

Schedule warmup_cosine(int64_t warmup, int64_t steps, float minimum) {
  TESSERA_CHECK(warmup >= 0 && steps >= 0 && minimum >= 0 && minimum <= 1,
                "warmup_cosine: warm-up {}, steps {}, minimum factor {}, expected warm-up and "
                "steps >= 0 and a minimum in [0, 1]",
                warmup, steps, minimum);
  return [=](int64_t step) {
    if (step < warmup) return static_cast<float>(step + 1) / static_cast<float>(warmup + 1);
    if (step >= steps) return minimum;
    const double progress =
        static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
    const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    return static_cast<float>(minimum + (1.0 - minimum) * cosine);
  };
}

}  // namespace tessera::optim
