// Divides the model's dense parameters into groups, for the predictions of a plan. The parameters
// of a group have one dtype, and are all trainable or all frozen. Each group has its own buckets.
// Stage 3 gathers buckets in blocks (PlanBlock). Groups are computed from the plan's input, without
// devices and communication. Row-sparse tables are in no group (optim/plan/plan_tables.h).
#pragma once

#include <cstdint>
#include <vector>

#include "dist/shard_layout.h"
#include "optim/plan/checked_int.h"
#include "optim/plan/plan_input.h"

namespace tessera::optim {

/// Buckets that stage 3 gathers together: the group's buckets of one block of the model
/// (Module::begin_block), or a single bucket of parameters outside of such blocks.
struct PlanBlock {
  int first_bucket = 0;
  int end_bucket = 0;
  int64_t elements = 0;        // with padding
  int64_t shard_elements = 0;
  bool tied = false;           // has a tied parameter: stays gathered until backward ends
  bool read_by_backward = true;
  int64_t gathers = 0;         // per micro-step
};

struct PlanGroup {
  DType dtype = DType::f32;
  DType sum_dtype = DType::f32;
  bool trainable = true;
  std::vector<int64_t> registered;  // registration index of each parameter of the layout
  dist::ShardLayout layout;
  // Empty unless the stage is 3. The blocks have the order of the buckets: from the model's end to
  // its beginning.
  std::vector<PlanBlock> blocks;

  /// Returns the lowest registration index in a bucket. It belongs to the parameter that backward
  /// reaches last.
  int64_t first_registered(const dist::Bucket& bucket) const {
    return registered[static_cast<size_t>(bucket.parameters.back())];
  }
  /// Returns the highest registration index in a bucket. It belongs to the parameter that backward
  /// reaches first.
  int64_t last_registered(const dist::Bucket& bucket) const {
    return registered[static_cast<size_t>(bucket.parameters.front())];
  }
};

/// Returns the number of elements of the largest bucket.
int64_t largest_bucket(const PlanGroup& group);
/// Returns the number of elements in the buffers for a micro-batch's gradients. The accumulators of
/// the step's gradient sum are not included.
CheckedInt gradient_elements(const PlanInput& input, const PlanGroup& group);
/// Returns the largest number of elements that stage 3 holds gathered at the same time. If `ahead`
/// is true, the next block is gathered while a block is in use.
CheckedInt gathered_elements(const PlanGroup& group, bool ahead);

/// Returns the groups of the input's parameters. Throws for an invalid stage, dtype, batch, size of
/// buckets or row-sparse table, for an invalid number of ranks, state tensors or running
/// statistics, and if CUDA graphs are to be used on the CPU.
std::vector<PlanGroup> plan_groups(const PlanInput& input);

/// Returns the registration index of the first trainable parameter, where backward ends. Returns
/// the number of parameters if all are frozen.
int64_t first_trainable(const PlanInput& input);

}  // namespace tessera::optim
