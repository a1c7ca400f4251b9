// GPU libraries choose algorithms by their own estimates, which may differ between ranks. So that
// all ranks compute the same bits, rank 0 sends its choices to the others.
#pragma once

#include "dist/bootstrap.h"

namespace tessera::dist {

/// Every rank takes the algorithms that rank 0 has chosen so far for convolutions on its GPU
/// (core/convolution_choices.h). Call it before the first step, once rank 0 has asked for the
/// workspace of every convolution that it will compute, because asking chooses the algorithm. Does
/// nothing on CPUs, or if the ranks' GPUs or libraries differ (World::difference), because equal
/// bits are not promised then. Collective. Throws if a rank's library does not accept one of the
/// algorithms.
void share_convolution_choices(const World& world);

}  // namespace tessera::dist
