// ZeRO (Rajbhandari et al., arXiv:1910.02054): an optimizer whose state, and gradients, are sharded
// over the ranks of data-parallel training.
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
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/bootstrap.h"
#include "dist/shard_layout.h"
#include "nn/module.h"
#include "optim/micro_batch.h"
#include "optim/schedule.h"
#include "optim/update_rule.h"

namespace tessera::optim {

enum class Reduction : uint8_t {
  ordered,  // contributions in order of micro-batch: the same bits for any number of ranks
  fast,     // the transport's own reduce-scatter: the same bits from run to run
};

struct ZeroOptions {
  int stage = 2;
  int64_t bucket_bytes = int64_t{4} << 20;
  bool overlap = true;  // communicate while backward and the next forward run
  Reduction reduction = Reduction::ordered;
  /// Sum the micro-batches of a step on each rank first, and reduce once: fewer bytes, another
  /// order of summation, a full gradient on every rank.
  bool no_sync = false;
  float clip = 0;  // maximum of the global gradient norm; 0: no clipping
  Schedule schedule = constant_schedule();
  uint64_t seed = 0;  // of initial weights and dropout
  /// Which group a parameter joins, by name; `groups` are numbered from 1, 0 is the rule's own.
  std::function<int(const nn::NamedParameter&)> group_of = nullptr;
  std::vector<GroupOptions> groups = {};
};

/// What a step was.
struct StepReport {
  int64_t step = 0;
  float loss = 0;       // of the global batch
  float grad_norm = 0;  // before clipping
  float learning_rate = 0;
  int64_t exposed_ns = 0;  // waiting for communication, from the step's first micro-batch on
};

class ZeroOptimizer {
 public:
  /// Lays the model's parameters out, initialises those that have no values yet, and attaches to
  /// their hooks. The model must outlive the optimizer. Throws InputError for a stage other than 0,
  /// 1, 2. Collective.
  ZeroOptimizer(nn::Module& model, UpdateRule rule, const dist::World& world,
                ZeroOptions options = {});
  ~ZeroOptimizer();
  ZeroOptimizer(const ZeroOptimizer&) = delete;
  ZeroOptimizer& operator=(const ZeroOptimizer&) = delete;

  /// This rank's micro-batches of a step, the same number on every rank. Each begins when it is
  /// looked at; its backward must have run before the next one.
  class MicroBatches {
   public:
    class Iterator {
     public:
      MicroBatch operator*() const { return batches_->optimizer_.begin(*batches_, micro_step_); }
      Iterator& operator++() {
        ++micro_step_;
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
    Iterator begin() const { return {this, 0}; }
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
  MicroBatches micro_batches(int64_t step, const Batch& batch);

  /// Backward of the running micro-batch's mean loss: scales it by the micro-batch's share and
  /// sends gradients to their owners as buckets fill.
  void backward(const Tensor& loss);

  /// Ends the step: update the own shard, gather parameters. Collective.
  StepReport step();

  /// Adds parameters of another module, under a group with its own hyper-parameters, between
  /// steps. Collective.
  void add_parameters(nn::Module& module, const GroupOptions& group);

  /// Waits until every parameter has its new value; for reading parameters without an operation.
  void synchronize();

  /// The own shard of a parameter's optimizer state: "wte.weight" -> ranges and values.
  struct StateShard {
    dist::Range range;  // of the parameter's elements
    std::map<std::string, std::vector<float>> values;  // "exp_avg" -> range.size() values
  };
  std::map<std::string, StateShard> state() const;
  /// The same for whole parameters, on rank `root`; empty elsewhere. Collective.
  std::map<std::string, StateShard> consolidated_state(int root = 0);

  const ZeroOptions& options() const { return options_; }

 private:
  friend class MicroBatches;
  MicroBatch begin(const MicroBatches& batches, int64_t micro_step);

  struct Engine;
  std::unique_ptr<Engine> engine_;
  ZeroOptions options_;
};

}  // namespace tessera::optim
