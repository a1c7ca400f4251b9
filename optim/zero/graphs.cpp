// Micro-steps as graphs.
#include <set>
#include <utility>

#include "core/ops/copy.h"
#include "core/trace.h"
#include "optim/zero/zero_engine.h"

namespace tessera::optim {
namespace {

const Tensor& with_data(const Tensor& loss) {
  TESSERA_CHECK(loss.defined(),
                "optimizer: a micro-batch has no data, which a graph of micro-steps cannot know; "
                "give all micro-batches data, or leave graphs off");
  return loss;
}

}  // namespace

int64_t graph_count(const Batch& batch, int64_t ranks, int64_t steps) {
  std::set<std::pair<bool, int64_t>> kinds;
  for (int64_t j = steps > 1 ? 0 : 1; j < batch.micro_steps(ranks); ++j) {
    kinds.emplace(j == 0, batch.contributors(ranks, j));
  }
  return std::ssize(kinds);
}

void ZeroEngine::run_micro_step(const std::function<Tensor()>& loss) {
  if (!options.graph) {
    const Tensor value = loss();
    return value.defined() ? backward(value) : skip();
  }
  // The first runs without a graph: libraries make their handles, stage 2 the slots of its ring,
  // and stage 3 learns in which order blocks are read.
  if (!ready_to_capture_) {
    begin_flows();
    backward(with_data(loss()));
    ready_to_capture_ = true;
    return;
  }
  const MicroStepKind kind{.micro_batches = micro_batches,
                           .first = micro_step.index == 0,
                           .reduces_sums = options.no_sync && micro_step.last(),
                           .contributors = micro_step.contributors,
                           .contributes = micro_step.contributes};
  auto graph = graphs_.find(kind);
  if (graph == graphs_.end()) graph = graphs_.emplace(kind, capture(loss)).first;
  const trace::Scope scope("graph of a micro-step");
  for (ParameterFlow* flow : flows()) flow->parameters().begin_forward();
  graph->second.launch();
  for (ParameterFlow* flow : flows()) flow->parameters().end_backward();
  if (micro_step.contributes) {
    record_.set_loss(micro_step.index, loss_);
    statistics_.keep(micro_step.index);
  }
  reached_ = graph->second.reached;
  end_micro_step();
}

ZeroEngine::Captured ZeroEngine::capture(const std::function<Tensor()>& loss) {
  begin_flows();
  settle();
  Captured captured;
  captured.launch = communicator->capture([&] {
    const Tensor value = with_data(loss());
    statistics_.check_observed();
    kernels::copy(current_context(loss_.device()), loss_, value);
    propagate(value);
    settle();
  });
  captured.reached = reached_;
  return captured;
}

// A graph knows no work from outside of it, and nothing outside work of a graph.
void ZeroEngine::settle() {
  for (const auto& flow : trainable_) flow->settle();
  for (const auto& flow : frozen_) flow->parameters().synchronize();
}

}  // namespace tessera::optim
