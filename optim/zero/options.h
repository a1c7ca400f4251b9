// The options of a ZeroOptimizer.
//
// All ranks must give equal options, and models with the same parameters in the same order. The
// seed must be equal too, because all ranks draw initial weights and dropout masks from one seed.
// The library does not compare the options. If the options of two ranks differ, training may give a
// wrong model without an error, or the ranks may wait for each other for ever. A program whose
// options come from outside compares them first, with dist::check_agreement (dist/agreement.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/dtype.h"
#include "nn/parameter_source.h"
#include "optim/rules/loss_scaler.h"
#include "optim/rules/schedule.h"
#include "optim/rules/update_rule.h"

namespace tessera::optim {

using nn::ParameterSource;

enum class Reduction : uint8_t {
  ordered,  // adds contributions in order of micro-batch: the same bits for any number of ranks
  fast,     // uses the transport's own reduce-scatter: the same bits from run to run
};

enum class Offload : uint8_t {
  none,
  optimizer,  // master weights and optimizer state are on the host, and the CPU updates them
};

struct ZeroOptions {
  /// 0 to 3 (optim/zero_optimizer.h). At stage 3 all ranks must read their parameters in the same
  /// order in a micro-step. Otherwise their gathers fail over MPI; over NCCL the ranks may wait
  /// until the time limit, or mix up data. If the order depends on the micro-batch, as in a mixture
  /// of experts, use stage 2.
  int stage = 2;
  int64_t bucket_bytes = int64_t{4} << 20;
  bool overlap = true;  // communicate while backward and the next forward run
  Reduction reduction = Reduction::ordered;
  /// If true, each rank first sums the gradients of its micro-batches of a step. The sums are
  /// reduced once, at the end of the step. This sends fewer bytes, but keeps a full gradient on
  /// every rank, and the order of additions depends on the number of ranks. Row-sparse tables
  /// ignore this option: they send gradients in every micro-step.
  bool no_sync = false;
  float clip = 0;  // maximum of the global gradient norm; 0: no clipping
  Schedule schedule = constant_schedule();
  uint64_t seed = 0;  // determines initial weights and dropout masks; the same on all ranks
  /// Dtype of the gradient sums of dense 16-bit parameters: f32 or bf16. A bf16 sum is rounded
  /// after every addition. All other sums are f32.
  DType grad_shard = DType::f32;
  /// nullopt: LossScaling{} if a parameter is f16, else no loss scaling.
  std::optional<LossScaling> loss_scaling = std::nullopt;
  Offload offload = Offload::none;
  /// If true, micro-steps are launched as CUDA graphs (docs/cuda.md). The caller must then run them
  /// with ZeroOptimizer::micro_steps().
  bool graph = false;
  /// If true, batch norms normalise over the whole batch of a step, which must have one micro-batch
  /// per rank. With ordered reduction the weights then have the same bits for any stage, bucket
  /// size and overlap, but depend on the number of ranks.
  bool sync_batch_norm = false;
  /// The rule of row-sparse tables; nullopt: the rule of the other parameters.
  std::optional<UpdateRule> table_rule = std::nullopt;
  /// If true, an update changes all rows of a row-sparse table, as if the table were dense: rows
  /// that no micro-batch looked up have a zero gradient, but weight decay and moments still change
  /// them. The time of an update then grows with the whole table.
  bool update_all_rows = false;
  /// Returns the group of a parameter: 0 for the rule's own hyper-parameters, i for groups[i - 1].
  /// Must be set if there are groups. It is called several times per parameter and must return the
  /// same group each time.
  std::function<int(const nn::NamedParameter&)> group_of = nullptr;
  std::vector<GroupOptions> groups = {};
};

}  // namespace tessera::optim
