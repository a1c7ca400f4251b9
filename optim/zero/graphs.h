// Micro-steps as CUDA graphs (docs/cuda.md), used only with options.graph.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "optim/zero/reducer.h"

namespace tessera::optim {

/// A reducer that launches forward, backward and their collectives as one graph. The first
/// micro-step, and the first one after forget(), run without a graph. In these micro-steps
/// libraries make their handles, stages 2 and 3 allocate memory for buckets that do not fit into
/// the gradient ring, and stage 3 records the order in which operations read parameters. Every
/// micro-batch must have data.
class GraphedReducer : public Reducer {
 public:
  GraphedReducer(const ZeroOptions& options, std::shared_ptr<dist::Communicator> communicator,
                 const Notes& notes);
  void forget() override;
  void begin(const MicroStep& micro_step) override;
  void run(const std::function<Tensor()>& loss, float scale) override;

 private:
  /// Micro-steps of one kind make the same launches, so one graph serves them all (docs/cuda.md).
  struct Kind {
    int64_t micro_batches;  // of the step; gradients are scaled by 1 / micro_batches
    bool first;             // the first micro-step of a step overwrites the gradient sums
    bool reduces_sums;      // with no_sync: the last micro-step, which sends the local sums
    int64_t contributors;
    bool contributes;

    auto operator<=>(const Kind&) const = default;
  };
  /// The graph of a micro-step, and its results that the host needs.
  struct Captured {
    std::function<void()> launch;
    std::vector<int64_t> reached;  // parameters that get a gradient
  };
  Captured capture(const std::function<Tensor()>& loss, float scale);
  Kind kind() const;

  std::map<Kind, Captured> graphs_;
  bool ready_to_capture_ = false;  // a micro-step has run without a graph
  Tensor loss_;                    // [1]; each graph copies its micro-batch's loss to it
};

}  // namespace tessera::optim
