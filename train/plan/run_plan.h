// The plan of a training run: its memory and traffic, from the same options that start it.
//
//   const optim::Plan plan = train::plan_run(run, model, train::place_of(world));
//
// After the run, its report compares measurements with the plan (train/report/run_report.h): they
// are equal, to the byte.
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
/// The place of this process in a job that has chosen its devices.
JobPlace place_of(const dist::World& world);

optim::PlanInput plan_input(const TrainingRun& run, const nn::Module& model, const JobPlace& place);

/// Workspace of a rank's graphs: room for the state that their dropout draws from.
struct GraphWorkspace {
  int64_t kept = 0;       // from the capture of a graph on
  int64_t capturing = 0;  // the most, while a graph is captured
};
GraphWorkspace graph_workspace(const TrainingRun& run, int64_t ranks, bool has_dropout);

/// The plan of a rank for any model, without activations and workspace, which depend on the model's
/// operations.
optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const JobPlace& place);

/// The plan of a rank that trains a GPT on whole contexts, with activations and workspace at this
/// process's number of threads.
optim::Plan plan_run(const TrainingRun& run, const models::Gpt& model, const JobPlace& place);

}  // namespace tessera::train
