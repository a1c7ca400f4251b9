// Learning-rate schedules: a factor on every group's learning rate, as a function of the training
// step.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::optim {

/// Maps a step, counted from 0, to the factor. The factor must be finite and at least 0. If it is
/// not, the step throws an Error and updates nothing. The optimizer calls the schedule once a step.
using Schedule = std::function<float(int64_t)>;

/// Factor 1 in every step.
Schedule constant_schedule();

/// Rises linearly over `warmup` steps to 1, then falls as half a cosine to `minimum` at step
/// `steps` (Loshchilov and Hutter, arXiv:1608.03983, without restarts), and stays there. Step s of
/// the warm-up has factor (s + 1) / (warmup + 1), as in nanoGPT. If `steps` <= `warmup`, the
/// factor is `minimum` right after the warm-up. Throws unless 0 <= warmup, 0 <= steps and
/// 0 <= minimum <= 1.
Schedule warmup_cosine(int64_t warmup, int64_t steps, float minimum);

/// The 1cycle policy (Smith and Topin, arXiv:1708.07120) with the defaults of
/// torch.optim.lr_scheduler.OneCycleLR, for the learning rate only. The factor rises as half a
/// cosine from 1 / 25 to 1 over the first 30 % of the steps. Then it falls as half a cosine to
/// 1 / 250,000 at the last step. Throws unless 0 <= steps.
Schedule one_cycle(int64_t steps);

}  // namespace tessera::optim
