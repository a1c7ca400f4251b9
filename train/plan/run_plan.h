// Plans the memory and traffic of a training run, from the same options that start the run.
//
//   const optim::Plan plan = train::plan_run(run, model, train::place_of(world));
//
// After the run, a report compares the measured with the planned bytes (train/report/run_report.h).
// Measured and planned bytes are expected to be equal. Row-sparse tables are an exception if they
// are prefetched, or if GPUs communicate over MPI (docs/tables.md, "Bytes").
#pragma once

#include <cstdint>

#include "models/gpt/gpt.h"
#include "optim/plan/plan.h"
#include "train/plan/plan_device.h"
#include "train/training_run.h"

namespace tessera::train {

/// The place of a rank in a job.
struct JobPlace {
  PlanDevice device = {};
  int64_t ranks = 1;
  int64_t rank = 0;
};
/// Returns the place of this process in a job that has already chosen its devices.
JobPlace place_of(const dist::World& world);

/// Returns the input of optim::plan for a run.
optim::PlanInput plan_input(const TrainingRun& run, const nn::Module& model, const JobPlace& place);

/// Bytes of workspace that a rank's CUDA graphs need for the random state of dropout.
struct GraphWorkspace {
  int64_t kept = 0;       // held by all captured graphs together, until the run ends
  int64_t capturing = 0;  // peak while graphs are captured, including `kept`
};
GraphWorkspace graph_workspace(const TrainingRun& run, int64_t ranks, bool has_dropout);

/// Returns the plan of a rank for any model. Activations and workspace are left out, because they
/// depend on the model's operations.
optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const JobPlace& place);

/// Returns the plan of a rank that trains a GPT on whole contexts, with activations and workspace
/// for this process's number of threads.
optim::Plan plan_run(const TrainingRun& run, const models::Gpt& model, const JobPlace& place);

}  // namespace tessera::train
