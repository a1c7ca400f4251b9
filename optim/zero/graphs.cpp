#include "optim/zero/graphs.h"

#include <utility>

#include "core/ops/copy.h"
#include "core/trace.h"

namespace tessera::optim {
namespace {

const Tensor& with_data(const Tensor& loss) {
  TESSERA_CHECK(loss.defined(),
                "optimizer: a micro-batch has no data, and a graph of micro-steps cannot skip it; "
                "give all micro-batches data, or leave graphs off");
  return loss;
}

}  // namespace

GraphedReducer::GraphedReducer(const ZeroOptions& options,
                               std::shared_ptr<dist::Communicator> communicator, const Notes& notes)
    : Reducer(options, std::move(communicator), notes),
      loss_(flat_buffer(*communicator_, 1, DType::f32, Category::communication)) {}

void GraphedReducer::forget() {
  Reducer::forget();
  graphs_.clear();
  ready_to_capture_ = false;
}

// Unlike Reducer::begin(), does not call open(), because the launch of a graph runs no host code
// that fills buckets. run() calls open() for a micro-step without a graph, and to capture a graph.
void GraphedReducer::begin(const MicroStep& micro_step) { start(micro_step); }

void GraphedReducer::run(const std::function<Tensor()>& loss, float scale) {
  // The first micro-step, and the first one after forget(), run without a graph. They initialise
  // libraries and buffers for later captures.
  if (!ready_to_capture_) {
    open();
    backward(with_data(loss()), scale);
    ready_to_capture_ = true;
    return;
  }
  auto graph = graphs_.find(kind());
  if (graph == graphs_.end()) graph = graphs_.emplace(kind(), capture(loss, scale)).first;
  const trace::Scope scope("graph of a micro-step");
  // A launch runs no host code of the micro-step. So this function does what that host code would
  // do: it tells the parameter policies when forward begins and when backward has ended, and
  // records the loss and the parameters with a gradient.
  begin_forward();
  graph->second.launch();
  end_backward();
  note_data(loss_);
  reached_ = graph->second.reached;
  note_reached();
}

GraphedReducer::Kind GraphedReducer::kind() const {
  return {.micro_batches = micro_step_.micro_batches,
          .first = micro_step_.index == 0,
          .reduces_sums = options_.no_sync && micro_step_.last(),
          .contributors = micro_step_.contributors,
          .contributes = micro_step_.contributes};
}

GraphedReducer::Captured GraphedReducer::capture(const std::function<Tensor()>& loss, float scale) {
  open();
  // A graph cannot wait for work outside the graph, and work outside cannot wait for work in the
  // graph. So no collective may be in flight when the capture begins or ends.
  wait_for_all();
  Captured captured;
  captured.launch = communicator_->capture([&] {
    const Tensor value = with_data(loss());
    notes_.statistics.check_observed();
    // The memory of `value` is freed within the graph, so the loss is copied to permanent memory.
    kernels::copy(current_context(loss_.device()), loss_, value);
    propagate(value, scale);
    wait_for_all();
  });
  // Every launch reaches the parameters that the captured backward has reached.
  captured.reached = reached_;
  return captured;
}

}  // namespace tessera::optim
