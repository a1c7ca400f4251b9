// The input of a plan: the parameters of a model, the ranks, and how they share the work.
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
  int64_t block = -1;   // block that stage 3 gathers as a whole; -1: in no named block
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
  /// The whole run is one micro-step without an evaluation. Then stage 3 cannot gather blocks
  /// ahead, because it learns their order from an earlier pass over the model.
  bool single_pass = false;
  Reduction reduction = Reduction::ordered;
  bool no_sync = false;
  Batch batch = {};
  int64_t state_tensors = 2;     // of the update rule: 2 for the moments of Adam
  DType sum_dtype = DType::f32;  // of the gradient sums of 16-bit parameters; others have f32
  /// Master weights and state are on the host, and the values on another device.
  bool offload = false;
  bool graph = false;
  bool checkpoints = false;         // checkpoints are written
  bool checkpoint_staging = false;  // they are written from a copy of the rank's own state
  /// The most bytes of that copy; nullopt: all of the state is copied.
  std::optional<int64_t> checkpoint_limit = std::nullopt;
  bool saves = false;               // weights are saved while the run goes on
  bool loss_scaling = false;        // on, even without f16 parameters
  int64_t statistics = 0;  // values of running statistics: two for each channel of a batch norm
  int64_t batch_norms = 0;
  bool sync_batch_norm = false;
  Device device = {};  // on which the ranks compute
  /// GPUs communicate through the host, which holds a mirror of the largest call.
  bool staged = false;
  /// Staging bytes of the transport; nullopt: those of Tessera's own over MPI.
  std::optional<int64_t> staging_bytes = std::nullopt;
  /// Header bytes that a call sends to each other rank besides its data; nullopt: as over MPI.
  std::optional<int64_t> header_bytes = std::nullopt;
};

/// The parameters of a model with their present dtypes and trainability.
std::vector<PlanParameter> plan_parameters(const nn::Module& model);
/// Number of values in the model's running statistics.
int64_t plan_statistics(const nn::Module& model);
/// Number of batch norms that have running statistics.
int64_t plan_batch_norms(const nn::Module& model);

}  // namespace tessera::optim
