// comm_bench's figures: a table for each collective, in nccl-tests' columns, and JSON.
#pragma once

#include <string>
#include <vector>

#include "apps/comm_bench/comm_measure.h"
#include "apps/comm_bench_options.h"
#include "core/text/json_line.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// The heading: ranks, device, communicator, and how time is measured, in lines that begin with #.
std::string comm_title(const CommOptions& options, const dist::World& world);

/// The table of one collective, with a row for each size; all other lines begin with #.
std::string comm_table(const std::vector<CommResult>& results, DType dtype, int64_t ranks);

/// The results of all collectives, as JSON.
JsonObject comm_json(const CommOptions& options, const dist::World& world,
                     const std::vector<CommResult>& results);

}  // namespace tessera::apps
