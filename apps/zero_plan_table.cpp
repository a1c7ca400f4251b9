#include "apps/zero_plan_table.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "core/text/number_text.h"
#include "optim/plan/plan_tables.h"
#include "train/plan/plan_table.h"

namespace tessera::apps {
namespace {

std::vector<train::PlannedRun> plans(const PlanOptions& options,
                                     const optim::PlanParameter& parameter) {
  std::vector<train::PlannedRun> runs;
  for (const int stage : options.stages) {
    optim::PlanInput input = options.run;
    input.parameters = {parameter};
    input.stage = stage;
    optim::Plan plan = optim::plan(input, 0);
    if (parameter.row_sparse()) {
      const optim::RowCounts counts = optim::expected_counts(
          input, parameter, 0, options.table->lookups, {.zipf = options.table->zipf});
      const auto rows = optim::table_traffic(input, parameter, 0, counts);
      for (size_t i = 0; i < rows.size(); ++i) plan.traffic[i] += rows[i];
    }
    runs.push_back({.stage = stage, .ranks = input.ranks, .plan = plan});
  }
  return runs;
}

}  // namespace

std::string table_plan_text(const PlanOptions& options) {
  const TableOptions& table = *options.table;
  const int64_t distinct = std::min(table.rows, table.lookups);
  optim::PlanParameter parameter{.name = "table",
                                 .elements = table.rows * table.width,
                                 .dtype = options.dtype,
                                 .backward_reads = nn::BackwardReads::never,
                                 .lookups = 1};
  const std::vector<train::PlannedRun> dense = plans(options, parameter);
  parameter.rows = table.rows;
  parameter.distinct = distinct;
  const std::vector<train::PlannedRun> sparse = plans(options, parameter);
  const double expected = optim::expected_rows(table.rows, table.lookups, {.zipf = table.zipf});
  std::string text = fmt::format(
      "a table of {} of {} {} values, {}, {}, {} a step\n"
      "a micro-batch looks up {} ({}), of which {:.0f} distinct ones are expected\n\n",
      counted(table.rows, "row"), table.width, dtype_name(options.dtype), options.optimizer,
      counted(options.run.ranks, "rank"),
      counted(options.run.batch.micro_batches(), "micro-batch", "micro-batches"),
      counted(table.lookups, "row"),
      table.zipf == 0 ? "uniform" : fmt::format("Zipf {:.4g}", table.zipf), expected);
  text += fmt::format(
      "row-sparse, with room for {}:\n\n{}\n{}\n", counted(distinct, "distinct row"),
      train::memory_table(sparse, options.ranks_per_node), train::traffic_table(sparse));
  text += fmt::format("dense:\n\n{}\n{}", train::memory_table(dense, options.ranks_per_node),
                      train::traffic_table(dense));
  return text;
}

}  // namespace tessera::apps
