// Formats the plan of a run as tables: memory and traffic of rank 0, for each stage and several
// numbers of ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "optim/plan/plan.h"
#include "train/plan/run_plan.h"

namespace tessera::train {

struct PlanHeading {
  std::string model_name;
  int64_t parameters = 0;
  DType dtype = DType::f32;  // of the parameters
  std::string optimizer;
};

/// Computes the plan of one rank of a run.
using RankPlan = std::function<optim::Plan(const TrainingRun&, const JobPlace&)>;
/// Returns tables of rank 0's memory and traffic. No other rank uses more memory or sends more.
std::string plan_table(const PlanHeading& heading, const TrainingRun& run, const JobPlace& place,
                       const RankPlan& plan_of);

/// A row of the tables that memory_table and traffic_table return.
struct PlannedRun {
  int stage = 0;
  int64_t ranks = 1;
  optim::Plan plan = {};
};
/// Returns the bytes on device and host that the ranks of a node use together, if every rank has
/// the plan `plan`. The node has ranks_per_node ranks, or all ranks of a smaller job.
int64_t node_bytes(const optim::Plan& plan, int64_t ranks, int64_t ranks_per_node);
/// Returns a table of memory. Some columns, such as those for activations, host and node, appear
/// only if a run has such bytes. If a run's workspace is unknown, a line below the table says so.
std::string memory_table(const std::vector<PlannedRun>& runs, int64_t ranks_per_node = 1);
std::string traffic_table(const std::vector<PlannedRun>& runs);

}  // namespace tessera::train
