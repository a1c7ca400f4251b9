// Micro-steps as graphs (docs/cuda.md). Only an optimizer with options.graph has them.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "optim/zero/micro_step_kind.h"
#include "optim/zero/reducer.h"

namespace tessera::optim {

/// A reducer that launches forward, backward and their collectives as one graph. The run's first
/// micro-step runs without one: libraries make their handles, stage 2 the slots of its ring, and
/// stage 3 learns in which order blocks are read.
class GraphedReducer : public Reducer {
 public:
  GraphedReducer(const ZeroOptions& options, std::shared_ptr<dist::Communicator> communicator,
                 const Notes& notes);
  void forget() override;
  void begin(const MicroStep& micro_step) override;
  void run(const std::function<Tensor()>& loss, float scale) override;

 private:
  /// A graph of a micro-step, and what of it only hosts know.
  struct Captured {
    std::function<void()> launch;
    std::vector<int64_t> reached;  // parameters
  };
  Captured capture(const std::function<Tensor()>& loss, float scale);
  MicroStepKind kind() const;

  std::map<MicroStepKind, Captured> graphs_;
  bool ready_to_capture_ = false;  // a micro-step has run without a graph
  Tensor loss_;                    // [1], where graphs leave their micro-batch's loss
};

}  // namespace tessera::optim
