// The owners of all parameters, as the header of a run's log has them.
#pragma once

#include "core/text/json_line.h"
#include "optim/zero/ownership.h"

namespace tessera::train {

/// Returns the header's member "layout" (docs/formats.md).
JsonObject layout_json(const optim::Ownership& ownership);

}  // namespace tessera::train
