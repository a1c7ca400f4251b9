#include "train/plan/plan_table.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "core/cuda.h"
#include "core/text/number_text.h"
#include "optim/plan/checked_int.h"
#include "train/report/table.h"

namespace tessera::train {
namespace {

constexpr int stages = 4;

struct Column {
  std::string heading;
  std::function<std::optional<int64_t>(const PlannedRun&)> value;
  bool always = true;  // false: the column is shown only if a run has such bytes
};

bool is_shown(const Column& column, const std::vector<PlannedRun>& runs) {
  return column.always || std::any_of(runs.begin(), runs.end(), [&](const PlannedRun& run) {
    return column.value(run).value_or(0) > 0;
  });
}

std::string table(std::vector<Column> columns, const std::vector<PlannedRun>& runs) {
  std::erase_if(columns, [&](const Column& column) { return !is_shown(column, runs); });
  std::vector<std::string> heading = {"stage", "ranks"};
  for (const Column& column : columns) heading.push_back(column.heading);
  Table text(heading);
  for (const PlannedRun& run : runs) {
    std::vector<std::string> cells = {std::to_string(run.stage), grouped(run.ranks)};
    for (const Column& column : columns) {
      const std::optional<int64_t> value = column.value(run);
      cells.push_back(value ? grouped(*value) : "-");
    }
    text.add(std::move(cells));
  }
  return text.text();
}

bool lacks_workspace(const PlannedRun& run) {
  return run.plan.activations && !run.plan.workspace;
}

}  // namespace

int64_t node_bytes(const optim::Plan& plan, int64_t ranks, int64_t ranks_per_node) {
  const optim::CheckedInt rank =
      optim::CheckedInt(plan.peak()) + plan.host.memory() + plan.checkpoint;
  return (rank * std::min(ranks, ranks_per_node)).value();
}

std::string memory_table(const std::vector<PlannedRun>& runs, int64_t ranks_per_node) {
  const auto node = [=](const PlannedRun& run) {
    return ranks_per_node == 1 ? 0 : node_bytes(run.plan, run.ranks, ranks_per_node);
  };
  const bool unknown = std::any_of(runs.begin(), runs.end(), lacks_workspace);
  std::string text =
      table({{"parameters", [](const auto& run) { return run.plan.parameters; }},
             {"gathered therein", [](const auto& run) { return run.plan.parts.gathered; }, false},
             {"gradients", [](const auto& run) { return run.plan.gradients; }},
             {"optimizer state", [](const auto& run) { return run.plan.optimizer_state; }},
             {"communication", [](const auto& run) { return run.plan.communication; }},
             {"activations", [](const auto& run) { return run.plan.activations; }, false},
             {"workspace", [](const auto& run) { return run.plan.workspace; }, unknown},
             {"total", [](const auto& run) { return run.plan.peak(); }},
             {"checkpoint besides", [](const auto& run) { return run.plan.checkpoint; }, false},
             {"on the host", [](const auto& run) { return run.plan.host.memory(); }, false},
             {"all of a node", node, false},
             {"padding therein", [](const auto& run) { return run.plan.padding; }}},
            runs);
  if (unknown) {
    text += fmt::format(
        "workspace is unknown here, and not part of any total: the GPU's cuBLASLt says what "
        "products take, and there is no usable GPU ({})\n",
        cuda::unusable());
  }
  return text;
}

std::string traffic_table(const std::vector<PlannedRun>& runs) {
  std::vector<Column> columns;
  for (int i = 0; i < dist::traffic_count; ++i) {
    const auto purpose = static_cast<dist::Traffic>(i);
    if (purpose == dist::Traffic::other) continue;
    if (purpose == dist::Traffic::saves) continue;
    columns.push_back({std::string(dist::traffic_name(purpose)),
                       [i](const auto& run) { return run.plan.traffic[static_cast<size_t>(i)]; },
                       purpose != dist::Traffic::statistics && purpose != dist::Traffic::rows &&
                           purpose != dist::Traffic::headers});
  }
  columns.push_back({"total", [](const auto& run) { return run.plan.sent(); }});
  columns.push_back({"a save besides",
                     [](const auto& run) {
                       const auto& bytes = run.plan.save_traffic;
                       return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
                     },
                     false});
  return table(columns, runs);
}

std::string plan_table(const PlanHeading& heading, const TrainingRun& run, const JobPlace& place,
                       const RankPlan& plan_of) {
  std::set<int64_t> sizes = {1, 2, 4, 8, 16, 64};
  sizes.insert(place.ranks);
  std::vector<PlannedRun> runs;
  TrainingRun staged = run;
  for (int stage = 0; stage < stages; ++stage) {
    staged.zero.stage = stage;
    for (const int64_t size : sizes) {
      runs.push_back({stage, size, plan_of(staged, {place.device, size, 0})});
    }
  }
  const Batch& batch = run.loop.batch;
  return fmt::format(
      "{}: {} parameters, {}, {}, global batch {} in micro-batches of {}, buckets of {} bytes,\n"
      "{} reduction, overlap {}{}; this run: {}, stage {}\n\n"
      "Memory of rank 0, in bytes\n{}\n"
      "Traffic that rank 0 sends in one step, in bytes\n{}",
      heading.model_name, grouped(heading.parameters), precision_name(heading.dtype),
      heading.optimizer, batch.global, batch.micro, grouped(run.zero.bucket_bytes),
      reduction_name(run.zero.reduction), run.zero.overlap ? "on" : "off", place.device.text(),
      counted(place.ranks, "rank"), run.zero.stage, memory_table(runs), traffic_table(runs));
}

}  // namespace tessera::train
