#include "train/ratings/plan_ratings.h"

#include <algorithm>

#include "data/ratings/rating_input.h"
#include "models/recommender/recommender_memory.h"
#include "optim/plan/checked_int.h"

namespace tessera::train {
namespace {

models::RecommenderMemory training_memory(const PlannedRatings& ratings, DType dtype,
                                          Device device) {
  return models::recommender_training_memory(ratings.config,
                                             {.dtype = dtype,
                                              .samples = ratings.batch.samples,
                                              .items = ratings.batch.items,
                                              .history_places = ratings.batch.history_places(),
                                              .objective = ratings.objective,
                                              .l2 = ratings.l2,
                                              .device = device});
}

models::RecommenderMemory evaluation_memory(const PlannedRatings& ratings, DType dtype,
                                            Device device, bool sharded) {
  const RatingEvaluationSizes& sizes = *ratings.evaluation;
  return models::recommender_evaluation_memory(ratings.config,
                                               {.dtype = dtype,
                                                .samples = sizes.samples,
                                                .items = sizes.items,
                                                .shared_items = sizes.shared_items,
                                                .history_places = sizes.batch().history_places(),
                                                .fetches = sharded,
                                                .device = device});
}

/// Throws if a generous estimate of the memory that grows with the training batch does not fit into
/// int64.
void check_size(const PlannedRatings& ratings) {
  using optim::CheckedInt;
  // The estimate counts samples * items * width values of operations, and samples *
  // longest_history entries of histories, with this many bytes for each value or entry.
  constexpr int64_t more_than_all = 1 << 8;
  const models::RecommenderConfig& config = ratings.config;
  CheckedInt width = CheckedInt(config.factors) + 2;
  for (const int64_t hidden : config.hidden) width = width + hidden;
  const CheckedInt samples = CheckedInt(ratings.batch.samples) * ratings.batch.items;
  (void)((samples * width + CheckedInt(ratings.batch.samples) * ratings.batch.longest_history) *
         more_than_all);
}

}  // namespace

optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const PlannedRatings& ratings,
                     const JobPlace& place) {
  optim::Plan plan = plan_run(run, model, place);
  check_size(ratings);
  const Device device = place.device.device;
  const DType dtype = parameter_dtype(model);
  const GraphWorkspace graphs = graph_workspace(run, place.ranks, false);
  models::RecommenderMemory peak = training_memory(ratings, dtype, device);
  if (peak.workspace) *peak.workspace += graphs.capturing;
  plan.host.activations = data::RatingInput::host_bytes(ratings.batch, device);
  if (ratings.evaluation && run.loop.eval_every > 0) {
    // The training batch stays in memory during an evaluation; its bytes are added below. The
    // evaluation frees its own batch (`input` bytes) before it allocates the results. So the peak
    // has either the evaluation's batch or the results, never both.
    const models::RecommenderMemory other = evaluation_memory(
        ratings, dtype, device, run.zero.stage == 3 && place.ranks > 1);
    const int64_t input = ratings.evaluation->input_bytes();
    peak.activations = std::max({peak.activations, input + other.activations,
                                 ratings.evaluation_results * dtype_size(DType::f32)});
    if (peak.workspace) {
      peak.workspace = std::max(*peak.workspace, *other.workspace + graphs.kept);
    }
    if (!device.is_cpu()) plan.host.activations += input;
  }
  plan.activations = peak.activations + ratings.batch.bytes();
  plan.workspace = peak.workspace;
  if (plan.workspace) plan.workspace = std::max(*plan.workspace, plan.filling);
  const bool saves_here = run.loop.weights.wanted() && place.rank == 0 && device.is_cpu();
  if (plan.workspace && saves_here) {
    plan.workspace = std::max(*plan.workspace, ratings.saved_bytes);
  }
  return plan;
}

}  // namespace tessera::train
