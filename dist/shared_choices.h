// GPU libraries choose algorithms by their own estimates, which may differ between ranks. Rank 0
// sends its choices to the other ranks, so that all ranks compute the same bits.
#pragma once

#include "dist/bootstrap.h"

namespace tessera::dist {

/// Makes every rank use the convolution algorithms that rank 0 has chosen so far
/// (core/convolution_choices.h). Call it before the first training step, after rank 0 has queried
/// the workspace size of all convolutions of the run: this query chooses the algorithm. Does
/// nothing on CPUs. Also does nothing if the ranks' GPUs or libraries differ (World::difference),
/// because equal bits are not promised in this case. Collective. Throws if a rank's library does
/// not accept one of the algorithms.
void share_convolution_choices(const World& world);

}  // namespace tessera::dist
