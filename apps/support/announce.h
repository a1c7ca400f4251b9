// What a training run says of itself before its first step.
#pragma once

#include <cstdint>
#include <string>

#include "apps/support/run_options.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// Model, ranks and device, and warnings of what is allowed but slow.
void announce_run(const RunOptions& options, const std::string& model, int64_t parameters,
                  const dist::World& world);

}  // namespace tessera::apps
