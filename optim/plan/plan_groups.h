// The model as a plan sees it. Parameters of one dtype that are all trainable or all frozen form a
// group, with buckets of its own that stage 3 gathers in blocks. Derived only from the input and
// ShardLayout.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/shard_layout.h"
#include "optim/plan/checked_int.h"
#include "optim/plan/plan_input.h"

namespace tessera::optim {

/// Buckets that stage 3 gathers together: those of a named block, or a single bucket.
struct PlanBlock {
  int first_bucket = 0;
  int end_bucket = 0;
  int64_t elements = 0;        // with padding
  int64_t shard_elements = 0;
  bool tied = false;           // has a tied parameter: stays from its first use until backward ends
  bool read_by_backward = true;
  int64_t gathers = 0;         // per micro-step
};

struct PlanGroup {
  DType dtype = DType::f32;
  DType sum_dtype = DType::f32;
  bool trainable = true;
  std::vector<int64_t> registered;  // registration index of each parameter of the layout
  dist::ShardLayout layout;
  std::vector<PlanBlock> blocks;    // stage 3: in order of buckets, so the model's last block first

  /// The lowest registration index in a bucket; backward reaches that parameter last.
  int64_t first_registered(const dist::Bucket& bucket) const {
    return registered[static_cast<size_t>(bucket.parameters.back())];
  }
  /// The highest registration index in a bucket; backward reaches that parameter first.
  int64_t last_registered(const dist::Bucket& bucket) const {
    return registered[static_cast<size_t>(bucket.parameters.front())];
  }
};

/// Elements of the largest bucket.
int64_t largest_bucket(const PlanGroup& group);
/// Elements of the gradient buffers of stages 2 and 3: a ring for two neighbouring buckets, and a
/// slot for each tied parameter.
CheckedInt ring_elements(const PlanGroup& group);
/// The most elements that stage 3 has gathered at once; with `ahead` the next block is included.
CheckedInt gathered_elements(const PlanGroup& group, bool ahead);

/// The groups of the input's parameters. Throws for an invalid stage, dtype or number.
std::vector<PlanGroup> plan_groups(const PlanInput& input);

/// Registration index of the first trainable parameter, where backward ends; the number of
/// parameters if all are frozen.
int64_t first_trainable(const PlanInput& input);

}  // namespace tessera::optim
