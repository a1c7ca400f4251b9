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
//   stage 3  parameters too: each block is gathered before it is read, and let go after
//
// Parameters may be f32, bf16 or f16, mixed as the model likes. Those of 16 bits have f32 master
// weights beside the optimizer's state, gradients of 16 bits, and sums of these in f32.
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

/// What happens to the update rule's state, Adam's moments and counts of updates for instance, when
/// parameters are set: it was gathered along the way of the weights before.
enum class RuleState : uint8_t {
  reset,  // the values are other weights, as of a file
  keep,   // they are these weights still: an average of them, or the same after a look at others
};

/// A step that is launched: on a GPU it may still run. Its result must be asked for, in the order
/// of the launches, before the optimizer goes.
class [[nodiscard]] LaunchedStep {
 public:
  /// Waits for the step's loss and norm where they are not on the host. Once. Throws
  /// NonFiniteError, also for a step that was launched meanwhile: it changes no weight either.
  StepReport get();

  /// Whether get() would return at once. Not the same on every rank.
  bool ready() const;
  /// Whether get() has something to wait for: with a GPU, but for loss scaling and offload, with
  /// which the launch itself waits. The same on every rank.
  bool deferred() const { return deferred_; }
  /// The bits that set_notes was given on any rank, known without waiting, the same on every rank.
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
  /// Looks at the options before anything is laid out or written. Throws InputError for a stage
  /// other than 0 to 3, a bucket or clip that cannot be, ordered reduction on GPUs that differ, and
  /// graphs where there can be none; Error for hyper-parameters with which no update makes sense.
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

  /// This rank's micro-batches of a step, the same number on every rank. The first begins with
  /// begin(), each other when the iterator comes to it; its backward must have run before the next
  /// one. To look at one, as often as one likes, changes nothing.
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
  /// Throws with options.graph.
  MicroBatches micro_batches(int64_t step, const Batch& batch);

  /// All micro-steps of a step: `load` brings a micro-batch's values to where `loss` reads them,
  /// which gives their mean loss, or an undefined tensor for no data. With options.graph `loss` and
  /// its backward are captured in graphs and replayed (cuda::Graph says what that takes), so that
  /// `loss` itself runs in few micro-steps; `load` runs in each. Every micro-batch has data then.
  void micro_steps(int64_t step, const Batch& batch,
                   const std::function<void(const MicroBatch&)>& load,
                   const std::function<Tensor()>& loss);

  /// Backward of the running micro-batch's mean loss: scales it by the micro-batch's share and
  /// sends gradients to their owners as buckets fill.
  void backward(const Tensor& loss);

  /// In place of forward and backward: this rank has no data for the running micro-batch. It takes
  /// part in what the ranks do together and changes nothing: the step's loss and gradient are the
  /// means over the micro-batches that had data. At stage 3 it gathers in the order of its last
  /// micro-batch with data, or of the run that restore_state goes on from, so not in the first one
  /// of a new run or after add_param_group.
  void skip();

  /// Ends the step: update the own shard, gather parameters. Throws NonFiniteError. Collective.
  StepReport step() { return launch_step().get(); }

  /// The same, for the host to go on while a GPU computes: launch a step, then ask for the result
  /// of the one before it. At most two may be under way. Collective.
  LaunchedStep launch_step();

  /// A whole step: `loss` gives a micro-batch's mean loss, or an undefined tensor for no data.
  StepReport step(int64_t step, const Batch& batch,
                  const std::function<Tensor(const MicroBatch&)>& loss);

  /// Bits that travel with what the ranks tell each other at the end of the running step, or the
  /// next one, and cost nothing: LaunchedStep::notes has those of all ranks. So ranks agree,
  /// between two steps, on what one of them has heard: a signal, or a file that is written.
  void set_notes(uint8_t notes);

  /// The step's summed gradient of a parameter, f32 and whole on every rank, between the last
  /// backward and step(). Collective.
  Tensor gradient(const std::string& name);
  /// Norms of all parameters' summed gradients at that time, before clipping. Collective.
  std::map<std::string, float> gradient_norms();

  /// Adds parameters of another module, as a group with its own hyper-parameters, between steps. If
  /// it throws, on one rank or on all, optimizer and module are as before on every rank.
  /// Collective.
  void add_param_group(nn::Module& module, const GroupOptions& group);

  /// Waits until every parameter has its new value; for reading parameters without an operation,
  /// which at stage 3 needs for_each_parameter.
  void synchronize();

  /// Calls `body` with the f32 values of each parameter, whole, on every rank; never more than a
  /// bucket is held. Of 16-bit parameters these are the master weights. What is sent for it counts
  /// as dist::Traffic::saves. Collective.
  void for_each_parameter(
      const std::function<void(const nn::NamedParameter&, std::span<const float>)>& body);
  /// Sets every parameter from `source`, which is asked for what this rank holds, between steps.
  /// By default the update rule starts anew, as with a new optimizer: its state is zero, and no
  /// update is counted. Throws where a step is not finished, and what `source` throws; `source`
  /// must have set all parameters before the state goes.
  void set_parameters(const ParameterSource& source, RuleState state = RuleState::reset);

  /// All tensors that a run needs in order to go on, the same on every rank and at every stage.
  std::vector<StateTensor> state_tensors() const;
  /// What this rank answers for of them, between steps: the own shards at every stage, and of
  /// what no rank shards rank 0. Good until the next step. Counts are copies in the host's memory,
  /// of the category checkpoint.
  std::vector<StatePiece> own_state_pieces() const;
  /// In what order the last micro-batch with data used parameters and completed their gradients:
  /// numbers 4 x place of registration + kind (optim/zero/step_state.h). A rank that has no data in
  /// its first micro-batch follows it at stage 3. It is the model's, not the layout's.
  std::vector<int64_t> parameter_events() const;
  /// Goes on from there: the next steps have the bits that they would have had where the state was
  /// taken. Every rank asks for what it holds. Throws where a step is not finished, and what
  /// `source` throws; then the optimizer holds a mixture, and its job should end.
  void restore_state(const StateSource& source);

  /// The own shards of the parameters' optimizer state, by name.
  StateByName state() const;
  /// The state of whole parameters, on rank `root`; empty elsewhere. Collective.
  StateByName consolidated_state(int root = 0);

  const ZeroOptions& options() const { return options_; }
  /// Whether losses are scaled, because a parameter is f16 or the options ask for it.
  bool scales_losses() const;

 private:
  friend class MicroBatches;
  MicroBatches all_of(int64_t step, const Batch& batch);
  void check_between_steps(const char* what) const;
  /// Does nothing where this micro-step is running already.
  void begin(const MicroBatches& batches, int64_t micro_step);
  MicroBatch describe(const MicroBatches& batches, int64_t micro_step) const;

  ZeroOptions options_;
  std::unique_ptr<class ZeroEngine> engine_;
};

}  // namespace tessera::optim
