// comm_bench's figures: a table for each collective, in nccl-tests' columns, and JSON.
#pragma once

#include <string>
#include <vector>

#include "apps/comm_bench/comm_measure.h"
#include "apps/comm_bench_options.h"
#include "core/text/json_line.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// Ranks, device, communicator, and how it is measured; lines that begin with #.
std::string comm_title(const CommOptions& options, const dist::World& world);

/// Of one collective, by size; lines that are no row begin with #.
std::string comm_table(const std::vector<CommResult>& results, DType dtype, int64_t ranks);

/// All of them.
JsonObject comm_json(const CommOptions& options, const dist::World& world,
                     const std::vector<CommResult>& results);

}  // namespace tessera::apps
