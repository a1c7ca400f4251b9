// Describes the owners of all parameters for the header of a run's log.
#pragma once

#include "core/text/json_line.h"
#include "optim/zero/ownership.h"

namespace tessera::train {

/// Returns the header's member "layout" (docs/formats.md).
JsonObject layout_json(const optim::Ownership& ownership);

}  // namespace tessera::train
