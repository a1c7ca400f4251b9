// Learning-rate schedules: a factor on every group's learning rate, as a function of the step.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::optim {

/// step, counted from 0 -> factor.
using Schedule = std::function<float(int64_t)>;

Schedule constant_schedule();

/// Rises linearly over `warmup` steps to 1, then falls as half a cosine to `minimum` at `steps`
/// (Loshchilov and Hutter, arXiv:1608.03983, without restarts). Step s of the warm-up has factor
/// (s + 1) / (warmup + 1), as nanoGPT's. Throws unless 0 <= warmup, 0 <= steps and
/// 0 <= minimum <= 1.
Schedule warmup_cosine(int64_t warmup, int64_t steps, float minimum);

}  // namespace tessera::optim
