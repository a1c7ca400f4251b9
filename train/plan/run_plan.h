// What a training run will hold and send, from the same numbers that it is started with.
//
//   const optim::Plan plan = train::plan_run(run, model, train::place_of(world));
//
// After the run its report lays what was measured beside the plan (train/report/run_report.h): they
// are equal, to the byte.
#pragma once

#include <cstdint>

#include "models/gpt/gpt.h"
#include "optim/plan/plan.h"
#include "train/plan/plan_device.h"
#include "train/training_run.h"

namespace tessera::train {

/// A rank of a job.
struct JobPlace {
  PlanDevice device = {};
  int64_t ranks = 1;
  int64_t rank = 0;
};
/// The place of this process in a job that has chosen its devices.
JobPlace place_of(const dist::World& world);

optim::PlanInput plan_input(const TrainingRun& run, const nn::Module& model, const JobPlace& place);

/// What the graphs of a rank hold of the workspace: room for what their dropout draws by.
struct GraphWorkspace {
  int64_t kept = 0;       // from their capture on
  int64_t capturing = 0;  // at most, while one is captured
};
GraphWorkspace graph_workspace(const TrainingRun& run, int64_t ranks, bool has_dropout);

/// The plan of a rank for any model. Activations and workspace, which depend on its operations, are
/// not in it.
optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const JobPlace& place);

/// The plan of a rank that trains a GPT on whole contexts, with activations and workspace at this
/// process's number of threads.
optim::Plan plan_run(const TrainingRun& run, const models::Gpt& model, const JobPlace& place);

}  // namespace tessera::train
