// What a plan is asked for: the parameters of a model, the ranks, and how they share the work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/micro_batch.h"
#include "nn/module.h"
#include "optim/zero/options.h"

namespace tessera::optim {

struct PlanParameter {
  std::string name;
  int64_t elements = 0;
  bool shared = false;  // tied: used under two names
  int64_t block = -1;   // that stage 3 gathers as one; -1: named by nobody
  DType dtype = DType::f32;
  bool trainable = true;
  nn::BackwardReads backward_reads = nn::BackwardReads::always;
};

struct PlanInput {
  std::vector<PlanParameter> parameters = {};  // in order of registration
  int64_t ranks = 1;
  int stage = 2;
  int64_t bucket_bytes = int64_t{4} << 20;
  bool overlap = true;
  /// The whole run is one micro-step, without an evaluation. Stage 3 gathers blocks ahead in the
  /// order that a pass over the model has shown before, and here there is none before.
  bool single_pass = false;
  Reduction reduction = Reduction::ordered;
  bool no_sync = false;
  Batch batch = {};
  int64_t state_tensors = 2;     // of the update rule: Adam's two moments
  DType sum_dtype = DType::f32;  // of the gradient sums of 16-bit parameters; others have f32
  /// Master weights and state on the host, where that is another device than the values'.
  bool offload = false;
  bool graph = false;
  bool checkpoints = false;         // are written,
  bool checkpoint_staging = false;  // from a copy of the own state,
  /// of so many bytes at most; absent: of all of it
  std::optional<int64_t> checkpoint_limit = std::nullopt;
  bool saves = false;               // weights are saved while the run goes on
  bool loss_scaling = false;        // also without parameters of f16
  int64_t statistics = 0;  // values of running statistics: two for each channel of a batch norm
  int64_t batch_norms = 0;
  bool sync_batch_norm = false;
  Device device = {};  // that ranks compute on
  /// Of a GPU: what ranks send passes through the host, which mirrors the largest call.
  bool staged = false;
  /// What the transport holds; absent: that of Tessera's over MPI.
  std::optional<int64_t> staging_bytes = std::nullopt;
  /// What a call sends to each other rank besides its data; absent: as over MPI.
  std::optional<int64_t> header_bytes = std::nullopt;
};

/// The parameters of a model as they are now: with their dtypes, and frozen where they are.
std::vector<PlanParameter> plan_parameters(const nn::Module& model);
/// The values of its running statistics.
int64_t plan_statistics(const nn::Module& model);
/// The batch norms that have them.
int64_t plan_batch_norms(const nn::Module& model);

}  // namespace tessera::optim
