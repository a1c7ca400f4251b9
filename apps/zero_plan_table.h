// Plans a row-sparse embedding table and, for comparison, a dense table of the same size.
#pragma once

#include <string>

#include "apps/zero_plan_options.h"

namespace tessera::apps {

/// Returns text tables of memory and traffic for each stage. The traffic of a row-sparse table is
/// computed for the expected number of distinct rows. `options.table` must be set.
std::string table_plan_text(const PlanOptions& options);

}  // namespace tessera::apps
