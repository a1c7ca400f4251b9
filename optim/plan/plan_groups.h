// A model as its plan sees it: parameters of one dtype and trainability lie together, in buckets of
// their own, and at stage 3 are gathered in blocks. Derived from the inputs and ShardLayout alone.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/shard_layout.h"
#include "optim/plan/checked_int.h"
#include "optim/plan/plan_input.h"

namespace tessera::optim {

/// Buckets that stage 3 gathers as one: those of a block that the model names, or a single one.
struct PlanBlock {
  int first_bucket = 0;
  int end_bucket = 0;
  int64_t elements = 0;        // with padding
  int64_t shard_elements = 0;
  bool tied = false;           // holds a tied parameter: stays from first use to backward's end
  bool read_by_backward = true;
  int64_t gathers = 0;         // in a micro-step
};

struct PlanGroup {
  DType dtype = DType::f32;
  DType sum_dtype = DType::f32;
  bool trainable = true;
  std::vector<int64_t> registered;  // of each of the layout's parameters: its place in the model
  dist::ShardLayout layout;
  std::vector<PlanBlock> blocks;    // in order of buckets, the model's last first; at stage 3

  /// The lowest place in the model of a bucket's parameters; backward comes to it last.
  int64_t first_registered(const dist::Bucket& bucket) const {
    return registered[static_cast<size_t>(bucket.parameters.back())];
  }
  /// The same, highest.
  int64_t last_registered(const dist::Bucket& bucket) const {
    return registered[static_cast<size_t>(bucket.parameters.front())];
  }
};

/// Elements of the largest bucket.
int64_t largest_bucket(const PlanGroup& group);
/// Of what stages 2 and 3 keep of full gradients: a ring for two neighbours, and the slots of tied
/// parameters.
CheckedInt ring_elements(const PlanGroup& group);
/// Elements that stage 3 gathers at once, at most; `ahead`: blocks are gathered before they are
/// read.
CheckedInt gathered_elements(const PlanGroup& group, bool ahead);

/// Throws for a stage, dtype or number that cannot be.
std::vector<PlanGroup> plan_groups(const PlanInput& input);

/// The place in the model of the first trainable parameter, where backward ends; that behind the
/// last one where there is none.
int64_t first_trainable(const PlanInput& input);

}  // namespace tessera::optim
