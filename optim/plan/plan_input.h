// The input of a plan: the parameters of a model, the ranks, and the options of the run.
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
  int64_t block = -1;   // index of the block (Module::begin_block); -1: in no block
  DType dtype = DType::f32;
  bool trainable = true;
  nn::BackwardReads backward_reads = nn::BackwardReads::always;
  // `rows` and `distinct` describe a row-sparse table [rows, elements / rows]. For a dense
  // parameter, both are 0.
  int64_t rows = 0;
  int64_t distinct = 0;     // the largest number of different rows that a micro-batch looks up
  // How many operations of a micro-batch look up rows of this table, which may be dense or
  // row-sparse. 0: the parameter is not a table.
  int64_t lookups = 0;

  bool row_sparse() const { return distinct > 0; }
  int64_t width() const { return elements / rows; }
};

struct PlanInput {
  std::vector<PlanParameter> parameters = {};  // in order of registration
  int64_t ranks = 1;
  int stage = 2;
  int64_t bucket_bytes = int64_t{4} << 20;
  bool overlap = true;
  /// True if the whole run is one micro-step without an evaluation. Stage 3 then cannot gather
  /// blocks ahead, because it learns the order of blocks in an earlier pass over the model.
  bool single_pass = false;
  Reduction reduction = Reduction::ordered;
  bool no_sync = false;
  Batch batch = {};
  int64_t state_tensors = 2;     // state tensors of the update rule: 2 for the moments of Adam
  /// State tensors of a row-sparse table; nullopt: as many as state_tensors.
  std::optional<int64_t> table_state_tensors = std::nullopt;
  bool table_value_per_row = false;  // true: a table's state tensors have one value for each row
  bool update_all_rows = false;
  DType sum_dtype = DType::f32;  // of gradient sums of dense 16-bit parameters; other sums: f32
  /// True if master weights and optimizer state are offloaded to the host.
  bool offload = false;
  bool graph = false;
  bool checkpoints = false;         // checkpoints are written
  bool checkpoint_staging = false;  // checkpoints are written from a copy of training state
  /// Limit on the bytes of the copy for a checkpoint; nullopt: no limit. Some state, such as all
  /// state in GPU memory, is copied even beyond the limit (train/checkpoint/state_copy.h). The rest
  /// of the state is copied only as far as it fits.
  std::optional<int64_t> checkpoint_limit = std::nullopt;
  bool saves = false;               // weights are saved during the run
  bool loss_scaling = false;        // false: loss scaling only if a parameter is f16
  int64_t statistics = 0;  // values of running statistics: two for each channel of a batch norm
  int64_t fixed_statistics = 0;  // number of these values that are fixed (nn::RunningStatistics)
  int64_t batch_norms = 0;       // batch norms whose statistics are not fixed
  bool sync_batch_norm = false;
  Device device = {};  // the device on which the ranks compute
  /// True if GPUs communicate through the host. The host then needs copies as large as the largest
  /// buffers that are passed to a collective. Exchanges of rows of row-sparse tables are left out,
  /// because their sizes depend on the data.
  bool staged = false;
  /// Staging bytes of the transport; nullopt: dist::mpi_staging_bytes.
  std::optional<int64_t> staging_bytes = std::nullopt;
  /// Header bytes that a call sends to each other rank, in addition to its data; nullopt:
  /// dist::mpi_header_bytes.
  std::optional<int64_t> header_bytes = std::nullopt;
};

/// Returns the parameters of a model with their current dtypes and trainability.
std::vector<PlanParameter> plan_parameters(const nn::Module& model);
/// Returns the number of values in the model's running statistics.
int64_t plan_statistics(const nn::Module& model);
/// Returns how many of the values that plan_statistics() counts are fixed
/// (nn::RunningStatistics::fixed). With sync_batch_norm, ranks send nothing for fixed values.
int64_t plan_fixed_statistics(const nn::Module& model);
/// Returns the number of batch norms that have running statistics which are not fixed.
int64_t plan_batch_norms(const nn::Module& model);

}  // namespace tessera::optim
