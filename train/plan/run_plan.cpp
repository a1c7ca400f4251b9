#include "train/plan/run_plan.h"

#include <algorithm>

#include "core/random.h"
#include "optim/plan/plan_tables.h"
#include "train/plan/plan_gpt.h"

namespace tessera::train {

JobPlace place_of(const dist::World& world) {
  return {.device = plan_device(world), .ranks = world.size, .rank = world.rank};
}

optim::PlanInput plan_input(const TrainingRun& run, const nn::Module& model,
                            const JobPlace& place) {
  const optim::ZeroOptions& zero = run.zero;
  const Device device = place.device.device;
  const optim::UpdateRule& table_rule = zero.table_rule ? *zero.table_rule : run.rule;
  run.loop.batch.validate();
  const bool one_micro_step =
      run.loop.steps_left() == 1 && run.loop.batch.micro_steps(place.ranks) == 1;
  return {.parameters = optim::plan_parameters(model),
          .ranks = place.ranks,
          .stage = zero.stage,
          .bucket_bytes = zero.bucket_bytes,
          .overlap = zero.overlap,
          .single_pass = one_micro_step && run.loop.eval_every == 0,
          .reduction = zero.reduction,
          .no_sync = zero.no_sync,
          .batch = run.loop.batch,
          .state_tensors = std::ssize(run.rule.state_names()),
          .table_state_tensors = std::ssize(table_rule.state_names()),
          .table_value_per_row = table_rule.value_per_row(),
          .update_all_rows = zero.update_all_rows,
          .sum_dtype = zero.grad_shard,
          .offload = zero.offload == optim::Offload::optimizer && !device.is_cpu(),
          .graph = zero.graph,
          .checkpoints = run.loop.checkpoints.wanted(),
          .checkpoint_staging = run.loop.checkpoints.staged(),
          .checkpoint_limit = run.loop.checkpoints.staging,
          .saves = run.loop.weights.wanted(),
          .loss_scaling = zero.loss_scaling.has_value(),
          .statistics = optim::plan_statistics(model),
          .fixed_statistics = optim::plan_fixed_statistics(model),
          .batch_norms = optim::plan_batch_norms(model),
          .sync_batch_norm = zero.sync_batch_norm,
          .device = device,
          .staged = place.device.staged(),
          .staging_bytes = place.device.staging_bytes(place.ranks),
          .header_bytes = place.device.header_bytes()};
}

// Every capture allocates one DropoutDraws. Only a graph with dropout keeps its DropoutDraws.
GraphWorkspace graph_workspace(const TrainingRun& run, int64_t ranks, bool has_dropout) {
  constexpr int64_t draws = sizeof(DropoutDraws);
  const int64_t graphs =
      run.zero.graph
          ? optim::graph_count(run.loop.batch, ranks, run.loop.steps_left(), run.zero.no_sync)
          : 0;
  const int64_t kept = has_dropout ? graphs * draws : 0;
  return {.kept = kept, .capturing = std::max(kept, std::min(graphs, int64_t{1}) * draws)};
}

optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const JobPlace& place) {
  const optim::PlanInput input = plan_input(run, model, place);
  optim::Plan plan = optim::plan(input, place.rank);
  if (run.rows) plan.counted_traffic = optim::tables_traffic(input, place.rank, *run.rows);
  return plan;
}

optim::Plan plan_run(const TrainingRun& run, const models::Gpt& model, const JobPlace& place) {
  const nn::Module& module = model;
  optim::Plan plan = plan_run(run, module, place);
  const models::GptConfig& config = model.config();
  const DType dtype = parameter_dtype(model);
  const int64_t sequences = run.loop.batch.micro;
  const Device device = place.device.device;
  add_activations(plan, config, dtype, sequences, device);
  if (!plan.workspace) return plan;
  const GraphWorkspace graphs = graph_workspace(run, place.ranks, config.dropout > 0);
  // Only a step captures graphs, but the random state that graphs keep is also held during an
  // evaluation. So graphs.kept is added to the larger of the two peaks.
  *plan.workspace += graphs.capturing - graphs.kept;
  if (run.loop.eval_every > 0) add_evaluation(plan, config, dtype, sequences, device);
  *plan.workspace += graphs.kept;
  return plan;
}

}  // namespace tessera::train
