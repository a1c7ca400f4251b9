// What a run will hold and send, for people to read: for each stage and several numbers of ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/support/plan_device.h"
#include "apps/support/table.h"
#include "apps/support/train_options.h"
#include "models/gpt/gpt.h"
#include "optim/plan/plan.h"

namespace tessera::apps {

optim::PlanInput plan_input(const RunOptions& options, const nn::Module& model,
                            const PlanDevice& device, int64_t ranks, int stage);

/// What the graphs of a rank hold of the workspace: room for what their dropout draws by.
struct GraphWorkspace {
  int64_t kept = 0;       // from their capture on
  int64_t capturing = 0;  // at most, while one is captured
};
GraphWorkspace graph_workspace(const RunOptions& options, int64_t ranks, bool has_dropout);

/// The plan of a rank, with activations and workspace at this process's number of threads.
optim::Plan plan_run(const TrainOptions& options, const models::Gpt& model,
                     const PlanDevice& device, int64_t ranks, int stage, int64_t rank);

/// The plan of a rank, by (device, ranks, stage, rank).
using RankPlan = std::function<optim::Plan(const PlanDevice&, int64_t, int, int64_t)>;
/// Memory and traffic of rank 0, which holds as much as any and sends the most.
std::string plan_table(const RunOptions& options, const std::string& model_name,
                       int64_t parameters, int64_t ranks, const RankPlan& plan_of);

/// A row of the tables below.
struct PlannedRun {
  int stage = 0;
  int64_t ranks = 1;
  optim::Plan plan = {};
};
/// Of device and host, of all ranks that share a node.
int64_t node_bytes(const optim::Plan& plan, int64_t ranks, int64_t ranks_per_node);
/// With activations, workspace, host and nodes of several ranks where there are any; a line below
/// says where workspace is unknown.
std::string memory_table(const std::vector<PlannedRun>& runs, int64_t ranks_per_node = 1);
std::string traffic_table(const std::vector<PlannedRun>& runs);

}  // namespace tessera::apps
