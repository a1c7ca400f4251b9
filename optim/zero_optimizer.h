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
// A step has three phases: reduce gradients to their owners (while backward runs), update this
// rank's shard, gather parameters (while the next forward runs).
//
//   stage 0  plain data parallel: every rank holds and updates everything
//   stage 1  optimizer state is sharded
//   stage 2  gradients are sharded too: they fill buckets that share a small ring of memory, and
//            each bucket is sent when it is full
//   stage 3  parameters are sharded too: gathered before operations read them, then released
//
// Parameters may be f32, bf16 or f16, in any mixture. A trained 16-bit parameter has f32 master
// weights beside the optimizer's state, a 16-bit gradient in each micro-batch, and by default an
// f32 sum of these gradients.
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
#include "optim/tables/row_counts.h"
#include "optim/zero/optimizer_state.h"
#include "optim/zero/options.h"
#include "optim/zero/ownership.h"
#include "optim/zero/step_dropout.h"
#include "optim/zero/step_report.h"

namespace tessera::optim {

/// Says whether set_parameters resets the update rule's state (for Adam, the moments) and the
/// counts of updates. The state fits only weights of the run that computed it.
enum class RuleState : uint8_t {
  reset,  // for unrelated weights, such as those of a file
  keep,   // for weights of the same run, such as an average over several steps, or a copy of the
          // weights that is put back afterwards
};

/// A step that was launched; on a GPU it may still run. Every launched step needs a call of get(),
/// in the order of the launches, before the optimizer is destroyed.
class [[nodiscard]] LaunchedStep {
 public:
  /// Waits for the step's loss and norm if they are not on the host yet. May be called once.
  ///
  /// If the loss or gradient of a step is not finite, the step changes no weight. With loss scaling
  /// the report says that the step was skipped, unless the loss scale is 1: then launch_step() has
  /// thrown Error. Without loss scaling, get() throws NonFiniteError. If the next step was launched
  /// before that error was thrown, the next step changes no weight either, and its get() throws
  /// too.
  StepReport get();

  /// True if get() would not wait. The result may differ between ranks.
  bool ready() const;
  /// True if get() may have to wait for a GPU. False on the CPU. Also false with loss scaling or
  /// offload, because launch_step() then waits. The result is the same on every rank.
  bool deferred() const { return deferred_; }
  /// Returns the bits that were passed to set_notes on any rank, without waiting. The result is the
  /// same on every rank.
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
  /// Checks the options before anything is allocated or written. Only options.loss_scaling is left
  /// to the constructor. Throws InputError for
  ///  - an invalid stage, bucket size, clip or grad_shard,
  ///  - ordered reduction on ranks with different GPUs or GPU libraries,
  ///  - options.graph, if other options, the parameters or the communicator rule out CUDA graphs.
  /// Throws Error for a missing schedule, for invalid hyper-parameters, for parameter groups
  /// without group_of, for a parameter whose group does not exist, and for a rule that cannot
  /// update a parameter of the model.
  static void check(const nn::Module& model, const UpdateRule& rule, const dist::World& world,
                    const ZeroOptions& options);

  /// Moves the model's parameters into flat buffers, initialises parameters without values, and
  /// sets hooks on all parameters. The model must outlive the optimizer. At stage 3 the parameters
  /// lose their values when the optimizer is destroyed. Parameters that are frozen at this time get
  /// neither gradient nor state. Throws as `check` does. Also throws if parameters or running
  /// statistics already have an optimizer, for batch norms with different momentum, and for an
  /// invalid options.loss_scaling. If the constructor throws, for instance for lack of memory, the
  /// parameters and their gradients are as before. So the previous memory of parameters that have
  /// values is freed only at the end of the constructor. Collective.
  ZeroOptimizer(nn::Module& model, UpdateRule rule, const dist::World& world,
                ZeroOptions options = {});
  ~ZeroOptimizer();
  ZeroOptimizer(const ZeroOptimizer&) = delete;
  ZeroOptimizer& operator=(const ZeroOptimizer&) = delete;

  /// This rank's micro-batches of a step; every rank has equally many. begin() begins the first
  /// micro-batch, and incrementing the iterator begins the next one. backward() or skip() must have
  /// run in a micro-batch before the next one begins. After the last one, step() must have run
  /// before other micro-batches begin. Otherwise begin() and the increment throw. Dereferencing the
  /// iterator changes nothing. A micro-batch is open until its backward() or skip(). While
  /// micro-batches of two optimizers are open on a thread, dropout throws on this thread.
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
  /// Returns this rank's micro-batches of a step. Steps are counted from 0. Throws if the previous
  /// step is not finished, if `step` is negative, or if the batch is invalid or does not fit the
  /// options. Always throws with options.graph: call micro_steps() instead.
  MicroBatches micro_batches(int64_t step, const Batch& batch);

  /// Runs all micro-steps of a step. In each micro-step, `load` writes a micro-batch's data to the
  /// memory that `loss` reads. `loss` returns the mean loss, or an undefined tensor for no data.
  /// Throws as micro_batches() does for the step and the batch, and as backward() and skip() do.
  ///
  /// With options.graph, every micro-batch must have data. `loss` and its backward are captured in
  /// CUDA graphs and replayed (cuda::Graph lists the conditions). A replay does not call `loss`.
  /// The optimizer's first micro-step, and the first one after each add_param_group, run without a
  /// graph.
  void micro_steps(int64_t step, const Batch& batch,
                   const std::function<void(const MicroBatch&)>& load,
                   const std::function<Tensor()>& loss);

  /// Runs backward of the current micro-batch's mean loss, an f32 scalar, scaled by the
  /// micro-batch's share. Sends gradients to their owners as buckets fill; with options.no_sync,
  /// only in the last micro-batch. If an operation throws after backward has completed the gradient
  /// of a parameter, the step can neither be completed nor given up: the optimizer can then only be
  /// destroyed.
  void backward(const Tensor& loss);

  /// Replaces forward and backward if this rank has no data for the current micro-batch. The rank
  /// takes part in the collective calls and contributes nothing: the step's loss and gradient are
  /// the means over the micro-batches that had data. Throws with options.sync_batch_norm.
  ///
  /// At stage 3 the rank gathers parameters in the order of its last micro-batch with data. A rank
  /// that has had no data uses the order of the run that restore_state resumed. With several ranks,
  /// skip() throws if neither order exists: in the first micro-batch of a new run, and in the first
  /// one after add_param_group.
  void skip();

  /// Fetches the rows of a row-sparse table that this rank's next micro-batch will look up, while
  /// the current micro-batch computes. At stage 3 the owners send the rows. Every rank must call
  /// prefetch within a micro-batch, once for the table and before the micro-batch's backward;
  /// `indices` (i32) may be empty. The next micro-batch may then look up only these rows. If the
  /// step's update comes before the next micro-batch, the rows are fetched after the update. Throws
  /// if the parameter is not a row-sparse table, or if a lookup of `indices` would throw.
  /// Collective.
  void prefetch(const nn::Parameter& table, const Tensor& indices);
  /// Calls prefetch with the table of a module such as nn::Embedding.
  template <class Embedding>
    requires requires(const Embedding& embedding) { embedding.weight; }
  void prefetch(const Embedding& embedding, const Tensor& indices) {
    prefetch(embedding.weight, indices);
  }

  /// Ends the step: updates this rank's shard and gathers parameters. Throws NonFiniteError as
  /// LaunchedStep::get() does. Collective.
  StepReport step() { return launch_step().get(); }

  /// Does the same as step(), but the host goes on while a GPU computes: the caller launches a step
  /// and then calls get() of the previous step. At most two steps may be in flight. Collective.
  LaunchedStep launch_step();

  /// Runs a whole step. `loss` returns a micro-batch's mean loss, or an undefined tensor for no
  /// data. Always throws with options.graph: call micro_steps() and then step() instead.
  StepReport step(int64_t step, const Batch& batch,
                  const std::function<Tensor(const MicroBatch&)>& loss);

  /// Sets the bits that this rank sends to all ranks in the current step, without an additional
  /// message. Between two steps, and after this step's gradient() or gradient_norms(), sets the
  /// bits of the next step. A later call for the same step replaces the bits. LaunchedStep::notes
  /// returns the bits that any rank has set. With these bits, all ranks learn of an event that only
  /// one rank has noticed, such as a signal or a finished file.
  void set_notes(uint8_t notes);

  /// Returns a parameter's gradient of the step's mean loss, before clipping, in f32 and whole on
  /// every rank. A shared parameter may be given by any of its names. The result is a copy: writing
  /// to it does not change the update. Must be called between the last backward and step();
  /// otherwise throws. Also throws for a frozen parameter. Collective.
  Tensor gradient(const std::string& name);
  /// Returns the norm of gradient(name) for each trainable parameter, by name. Throws unless called
  /// between the last backward and step(). Collective.
  std::map<std::string, float> gradient_norms();

  /// Adds the parameters of another module as a new parameter group with the hyper-parameters
  /// `group`. Throws unless called between steps. If the call throws on any rank, optimizer and
  /// module stay unchanged on all ranks. On the CPU, a part of the memory for the new parameters'
  /// gradients is allocated only in the next step. That step throws if memory is too small.
  /// Collective.
  void add_param_group(nn::Module& module, const GroupOptions& group);

  /// Returns which rank owns which elements of which parameter. The result is the same on every
  /// rank.
  Ownership ownership() const;

  /// Returns how many rows of each row-sparse table this rank has looked up, sent and updated so
  /// far, by table name.
  std::map<std::string, RowCounts> row_counts() const;

  /// Waits until every parameter has its new value. Operations wait by themselves; other code that
  /// reads parameters must call this first. At stage 3 such code needs for_each_parameter instead.
  void synchronize();

  /// Calls `body` on every rank with the whole values of each parameter in f32; for trained 16-bit
  /// parameters these are the master weights. Leaves out parameters without elements. Holds one
  /// gathered bucket or one whole row-sparse table at a time. The traffic counts as
  /// dist::Traffic::saves. Collective.
  void for_each_parameter(
      const std::function<void(const nn::NamedParameter&, std::span<const float>)>& body);
  /// Sets every parameter, and asks `source` only for the values that this rank holds. By default
  /// the update rule then starts anew, as with a new optimizer: its state and the counts of updates
  /// are zero. Throws if a step is not finished. Exceptions of `source` propagate. The rule's state
  /// is reset only after all parameters are set.
  void set_parameters(const ParameterSource& source, RuleState state = RuleState::reset);

  /// Lists the tensors that a run needs in order to resume. The list is the same on every rank and
  /// at every stage.
  std::vector<StateTensor> state_tensors() const;
  /// Returns the pieces of state_tensors() that this rank saves: its shards at every stage, and on
  /// rank 0 also all state that is not sharded. Pieces are valid until the next step. The counts of
  /// updates and the loss scaler's state are copied to host memory, which is counted as
  /// Category::checkpoint. Throws if a step is not finished.
  std::vector<StatePiece> own_state_pieces() const;
  /// Returns the events of the last micro-batch that had data, such as uses of parameters and
  /// completed gradients, in order. Each entry is 4 x registration index + ParameterEvent::Kind
  /// (optim/zero/step_state.h). The events are the same for any number of ranks, any stage and any
  /// bucket size. When a run resumes at stage 3, a rank without data in its first micro-batch
  /// follows these events.
  std::vector<int64_t> parameter_events() const;
  /// Restores all tensors of state_tensors(). Each rank asks `source` only for the ranges that it
  /// holds. The next steps have the same bits as in the run that saved the state, under the
  /// conditions in docs/checkpoints.md. Throws if a step is not finished. Exceptions of `source`
  /// propagate. Events, counts of updates and the loss scale are read first. If one of them is
  /// refused or cannot be read, the optimizer is as it was. After any later exception, it holds a
  /// mixture of old and restored state, and the job should end.
  void restore_state(const StateSource& source);

  /// Returns the optimizer state that this rank holds, by parameter name: at stage 0 the state of
  /// whole parameters, at other stages this rank's shards.
  StateByName state() const;
  /// Gathers the optimizer state of whole parameters on rank `root`. Returns an empty map on the
  /// other ranks. Collective.
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
  std::map<std::string, std::string> further_names_;  // further name of a parameter -> first name
  std::unique_ptr<class ZeroEngine> engine_;
  StepDropout dropout_;
};

}  // namespace tessera::optim
