// ZeRO (Rajbhandari et al., arXiv:1910.02054): an optimizer whose state, gradients and parameters
// are sharded over the ranks of data-parallel training.
//
//   optim::ZeroOptimizer optimizer(model, optim::AdamW{.learning_rate = 3e-4f}, world,
//                                  {.stage = 2});
//   for (int64_t step = 0; step < steps; ++step) {
//     for (const auto& micro : optimizer.micro_batches(step, {.global = 48, .micro = 12})) {
//       auto [tokens, targets] = data.read(micro);
//       optimizer.backward(model.loss(tokens, targets));
//     }
//     optimizer.step();
//   }
//
// A step is three verbs: reduce gradients to their owners (while backward runs), update the own
// shard, gather parameters (while the next forward runs).
//
//   stage 0  plain data parallel: every rank holds and updates everything
//   stage 1  optimizer state is sharded
//   stage 2  gradients too: buckets come from a small ring and leave as they fill
//   stage 3  parameters too: each block is gathered before it is read, and released afterwards
//
// Parameters may be f32, bf16 or f16, in any mixture. 16-bit parameters have f32 master weights
// beside the optimizer's state, 16-bit gradients, and f32 sums of these.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "core/micro_batch.h"
#include "dist/bootstrap.h"
#include "nn/parameter_source.h"
#include "optim/rules/update_rule.h"
#include "optim/zero/optimizer_state.h"
#include "optim/zero/options.h"
#include "optim/zero/step_report.h"

namespace tessera::optim {

/// What set_parameters does with the update rule's state, such as Adam's moments and the counts of
/// updates. That state was built up while training the present weights.
enum class RuleState : uint8_t {
  reset,  // the new values are other weights, such as those of a file
  keep,   // the new values are still these weights: their average, or a copy put back
};

/// A step that was launched; on a GPU it may still run. Its result must be asked for, in the order
/// of the launches, before the optimizer is destroyed.
class [[nodiscard]] LaunchedStep {
 public:
  /// Waits for the step's loss and norm if they are not on the host yet. May be called once. Throws
  /// NonFiniteError if the step was not finite, or if it was launched before such a failure was
  /// known: it has changed no weight either.
  StepReport get();

  /// True if get() would return at once. May differ between ranks.
  bool ready() const;
  /// True if get() may have to wait: with a GPU, except with loss scaling or offload, where the
  /// launch itself waits. The same on every rank.
  bool deferred() const { return deferred_; }
  /// The bits that set_notes was given on any rank, known without waiting. The same on every rank.
  uint8_t notes() const { return notes_; }

 private:
  friend class ZeroOptimizer;
  LaunchedStep(class ZeroEngine& engine, int64_t number, bool deferred, uint8_t notes)
      : engine_(&engine), number_(number), deferred_(deferred), notes_(notes) {}
  ZeroEngine* engine_;
  int64_t number_;
  bool deferred_;
  uint8_t notes_;
};

class ZeroOptimizer {
 public:
  /// Checks the options before anything is allocated or written. Throws InputError for a stage
  /// other than 0 to 3, an invalid bucket size or clip, ordered reduction on ranks that differ, and
  /// graphs where they are not possible; Error for invalid hyper-parameters.
  static void check(const nn::Module& model, const UpdateRule& rule, const dist::World& world,
                    const ZeroOptions& options);

  /// Lays the model's parameters out, initialises those that have no values yet, and attaches to
  /// their hooks. The model must outlive the optimizer; at stage 3 it has values only as long as
  /// the optimizer lives. Parameters that are frozen now get neither gradient nor state. Throws as
  /// `check` does. Collective.
  ZeroOptimizer(nn::Module& model, UpdateRule rule, const dist::World& world,
                ZeroOptions options = {});
  ~ZeroOptimizer();
  ZeroOptimizer(const ZeroOptimizer&) = delete;
  ZeroOptimizer& operator=(const ZeroOptimizer&) = delete;

  /// This rank's micro-batches of a step, the same number on every rank. The first one begins with
  /// begin(), each further one when the iterator reaches it, and its backward must have run before
  /// the next one begins. Dereferencing the iterator changes nothing.
  class MicroBatches {
   public:
    class Iterator {
     public:
      MicroBatch operator*() const { return batches_->optimizer_.describe(*batches_, micro_step_); }
      Iterator& operator++() {
        if (++micro_step_ < batches_->micro_steps_) {
          batches_->optimizer_.begin(*batches_, micro_step_);
        }
        return *this;
      }
      bool operator!=(const Iterator& other) const { return micro_step_ != other.micro_step_; }

     private:
      friend class MicroBatches;
      Iterator(const MicroBatches* batches, int64_t micro_step)
          : batches_(batches), micro_step_(micro_step) {}
      const MicroBatches* batches_;
      int64_t micro_step_;
    };
    Iterator begin() const {
      optimizer_.begin(*this, 0);
      return {this, 0};
    }
    Iterator end() const { return {this, micro_steps_}; }
    int64_t size() const { return micro_steps_; }

   private:
    friend class ZeroOptimizer;
    MicroBatches(ZeroOptimizer& optimizer, int64_t step, const Batch& batch, int64_t micro_steps)
        : optimizer_(optimizer), step_(step), batch_(batch), micro_steps_(micro_steps) {}
    ZeroOptimizer& optimizer_;
    int64_t step_;
    Batch batch_;
    int64_t micro_steps_;
  };
  /// The micro-batches of a step. Throws with options.graph.
  MicroBatches micro_batches(int64_t step, const Batch& batch);

  /// Runs all micro-steps of a step. `load` puts a micro-batch's values where `loss` reads them;
  /// `loss` returns their mean loss, or an undefined tensor for no data. With options.graph, `loss`
  /// and its backward are captured in graphs and replayed (cuda::Graph says what that takes), so
  /// `loss` itself runs in few micro-steps, but `load` in each, and every micro-batch must have
  /// data.
  void micro_steps(int64_t step, const Batch& batch,
                   const std::function<void(const MicroBatch&)>& load,
                   const std::function<Tensor()>& loss);

  /// Backward of the current micro-batch's mean loss: scales it by the micro-batch's share and
  /// sends gradients to their owners as buckets fill.
  void backward(const Tensor& loss);

  /// Replaces forward and backward if this rank has no data for the current micro-batch. The rank
  /// takes part in the collective calls and contributes nothing: the step's loss and gradient are
  /// the means over the micro-batches that had data. At stage 3 it gathers in the order of its last
  /// micro-batch with data, or of the run that restore_state resumed, so it cannot skip the first
  /// micro-batch of a new run or after add_param_group.
  void skip();

  /// Ends the step: update the own shard, gather parameters. Throws NonFiniteError. Collective.
  StepReport step() { return launch_step().get(); }

  /// As step(), but the host goes on while a GPU computes: launch a step, then ask for the result
  /// of the step before it. At most two steps may be in flight. Collective.
  LaunchedStep launch_step();

  /// Runs a step: `loss` returns a micro-batch's mean loss, or an undefined tensor for no data.
  StepReport step(int64_t step, const Batch& batch,
                  const std::function<Tensor(const MicroBatch&)>& loss);

  /// Bits that travel with the flags that ranks exchange at the end of the current step, or of the
  /// next one, at no cost. LaunchedStep::notes has the bits of all ranks. So ranks can agree
  /// between two steps on what one of them has noticed, such as a signal or a file that is written.
  void set_notes(uint8_t notes);

  /// The step's summed gradient of a parameter, f32 and whole on every rank, between the last
  /// backward and step(). Collective.
  Tensor gradient(const std::string& name);
  /// Norms of all parameters' summed gradients at the same time, before clipping. Collective.
  std::map<std::string, float> gradient_norms();

  /// Adds parameters of another module, as a group with its own hyper-parameters, between steps. If
  /// it throws, on one rank or on all, optimizer and module are as before on every rank.
  /// Collective.
  void add_param_group(nn::Module& module, const GroupOptions& group);

  /// Waits until every parameter has its new value. Needed before parameters are read without an
  /// operation; at stage 3 use for_each_parameter instead.
  void synchronize();

  /// Calls `body` with the f32 values of each parameter, whole, on every rank; of 16-bit parameters
  /// these are the master weights. Holds one bucket at a time. Its traffic counts as
  /// dist::Traffic::saves. Collective.
  void for_each_parameter(
      const std::function<void(const nn::NamedParameter&, std::span<const float>)>& body);
  /// Sets every parameter from `source`, which is asked for what this rank holds, between steps. By
  /// default the update rule then starts anew, as with a new optimizer: its state is zero, and no
  /// update is counted. Throws if a step is not finished, and what `source` throws; the rule's
  /// state is reset only after all parameters are set.
  void set_parameters(const ParameterSource& source, RuleState state = RuleState::reset);

  /// The tensors that a run needs in order to go on, the same on every rank and at every stage.
  std::vector<StateTensor> state_tensors() const;
  /// The pieces of them that this rank saves, between steps: its own shards at every stage, and on
  /// rank 0 all state that is not sharded. Valid until the next step. Counts are copies in host
  /// memory, of Category::checkpoint.
  std::vector<StatePiece> own_state_pieces() const;
  /// The order in which the last micro-batch with data used parameters and completed their
  /// gradients: numbers 4 x registration index + kind (optim/zero/step_state.h). At stage 3 a rank
  /// without data in its first micro-batch follows this order, which depends on the model and not
  /// on the layout.
  std::vector<int64_t> parameter_events() const;
  /// Restores that state: the next steps have the same bits as in the run that saved it. Every rank
  /// reads what it holds. Throws if a step is not finished, and what `source` throws; in the second
  /// case the optimizer holds a mixture of states, and its job should end.
  void restore_state(const StateSource& source);

  /// The own shards of the parameters' optimizer state, by name.
  StateByName state() const;
  /// The state of whole parameters, on rank `root`; empty elsewhere. Collective.
  StateByName consolidated_state(int root = 0);

  const ZeroOptions& options() const { return options_; }
  /// True if losses are scaled, because a parameter is f16 or the options ask for it.
  bool scales_losses() const;

 private:
  friend class MicroBatches;
  MicroBatches all_of(int64_t step, const Batch& batch);
  void check_between_steps(const char* what) const;
  /// Does nothing if this micro-step is already running.
  void begin(const MicroBatches& batches, int64_t micro_step);
  MicroBatch describe(const MicroBatches& batches, int64_t micro_step) const;

  ZeroOptions options_;
  std::unique_ptr<class ZeroEngine> engine_;
};

}  // namespace tessera::optim
