#include "optim/rules/schedule.h"

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
    // Unsigned, because warmup + 1 overflows int64_t for the largest warm-up.
    const uint64_t above = static_cast<uint64_t>(warmup) + 1;
    if (step < warmup) return static_cast<float>(step + 1) / static_cast<float>(above);
    if (step >= steps) return minimum;
    const double progress =
        static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
    const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    return static_cast<float>(minimum + (1.0 - minimum) * cosine);
  };
}

Schedule one_cycle(int64_t steps) {
  TESSERA_CHECK(steps >= 0, "one_cycle: steps {}, expected at least 0", steps);
  constexpr double first = 1.0 / 25;
  constexpr double last = first / 1e4;
  // The factor reaches 1 at `top`, which may lie between two steps.
  const double top = 0.3 * static_cast<double>(steps) - 1;
  const auto end = static_cast<double>(steps - 1);
  const auto half_cosine = [](double from, double to, double progress) {
    return to + (from - to) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  };
  return [=](int64_t step) {
    const auto at = static_cast<double>(step);
    if (at >= end) return static_cast<float>(last);
    if (at < top) return static_cast<float>(half_cosine(first, 1, at / top));
    return static_cast<float>(half_cosine(1, last, (at - top) / (end - top)));
  };
}

}  // namespace tessera::optim
