// The memory and traffic of row-sparse tables. Memory is known before a run: the sizes of buffers
// depend on the largest number of distinct rows that a micro-batch may look up, and not on the
// data. Traffic is linear in the counts of rows that a rank looks up, sends and updates
// (RowCounts). A run counts these rows (ZeroOptimizer::row_counts), and expected_counts() estimates
// the counts. Memory, numbers of calls and bytes of row counts are those of a run without
// ZeroOptimizer::prefetch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dist/row_layout.h"
#include "dist/traffic.h"
#include "optim/plan/checked_int.h"
#include "optim/plan/plan_input.h"
#include "optim/tables/row_counts.h"

namespace tessera::optim {

/// Bytes that one rank holds for a table. Only `blocks` is not in bytes.
struct TableMemory {
  CheckedInt values = 0;
  CheckedInt looked_up = 0;
  CheckedInt gradients = 0;  // of a micro-batch
  CheckedInt sums = 0;
  CheckedInt masters = 0;
  CheckedInt state = 0;
  CheckedInt device_rows = 0;  // row indices and buffers of rows, on the device that computes
  CheckedInt host_rows = 0;    // lists and counts of rows, on the host
  CheckedInt crossing = 0;     // offload: copies of gradient sums and weights on the host
  CheckedInt blocks = 0;       // the number of block sums that the norm's buffer must hold
};

dist::RowLayout plan_row_layout(const PlanInput& input, const PlanParameter& table);
TableMemory table_memory(const PlanInput& input, const PlanParameter& table, int64_t rank);

/// Returns the bytes of each tensor that a rank writes to a checkpoint for its rows of a table: the
/// weights, then, if the table is trained, each state tensor.
std::vector<int64_t> table_pieces(const PlanInput& input, const PlanParameter& table, int64_t rank);

/// Numbers of collectives that a rank starts for a table, if there are several ranks. A step starts
/// `micro_step` collectives in each micro-step, then `step` more, and then, if the step has an
/// update, `update` more.
struct TableCalls {
  int64_t micro_step = 0;
  int64_t step = 0;
  int64_t update = 0;
};
TableCalls table_calls(const PlanInput& input, const PlanParameter& table);
/// Returns the bytes that a rank sends in each micro-step to tell other ranks how many rows of a
/// table follow.
CheckedInt table_count_bytes(const PlanInput& input, const PlanParameter& table);

/// Returns the bytes that a rank sends for the rows of a table, given the rows' counts.
std::array<int64_t, dist::traffic_count> table_traffic(const PlanInput& input,
                                                       const PlanParameter& table, int64_t rank,
                                                       const RowCounts& counts);
/// Returns the sum of table_traffic over all tables of the input. The keys of `counts` are table
/// names. Throws for a table without counts.
std::array<int64_t, dist::traffic_count> tables_traffic(
    const PlanInput& input, int64_t rank, const std::map<std::string, RowCounts>& counts);

/// Returns advice if one dense table that is trained and not tied has more than half of all
/// parameters, else an empty string. At every stage, a step sends the gradient of all rows of such
/// a table and updates all rows. Stage 3 also gathers the whole table.
std::string dense_table_advice(const PlanInput& input);

/// How lookups are spread over the rows of a table.
struct RowDistribution {
  double zipf = 0;  // row i is drawn with a probability proportional to (i + 1)^-zipf; 0: uniform
};
/// Returns the expected number of distinct rows among `lookups` independent draws from `rows` rows:
/// the sum of 1 - (1 - p)^lookups over all rows, where p is a row's probability.
double expected_rows(int64_t rows, int64_t lookups, const RowDistribution& distribution);
/// Returns the expected counts of one step on `rank`, if every micro-batch draws `lookups` rows.
RowCounts expected_counts(const PlanInput& input, const PlanParameter& table, int64_t rank,
                          int64_t lookups, const RowDistribution& distribution);

}  // namespace tessera::optim
