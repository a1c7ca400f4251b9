// Libraries of a GPU choose algorithms by estimates of their own. Where ranks must compute the same
// bits, rank 0's choices travel.
#pragma once

#include "dist/bootstrap.h"

namespace tessera::dist {

/// Every rank takes the algorithms that rank 0 has chosen so far for convolutions on its GPU
/// (core/convolution_choices.h). To be called before the first step, when rank 0 has asked for the
/// workspace of all that it will compute. Changes nothing on CPUs, and where the ranks' GPUs or
/// libraries differ (World::difference), so that no bits are promised. Collective. Throws where a
/// rank's library does not accept one of them.
void share_convolution_choices(const World& world);

}  // namespace tessera::dist
