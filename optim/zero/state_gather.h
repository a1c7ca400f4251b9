// Whole tensors from what ranks hold of them, a bucket at a time.
#pragma once

#include <string>
#include <vector>

#include "dist/communicator.h"
#include "optim/zero/bucket_flow.h"
#include "optim/zero/step_report.h"

namespace tessera::optim {

/// A bucket's values in f32, [bucket elements], on every rank, of which this rank has `own` at
/// `range`: the same length on every rank, or the whole bucket. Collective.
Tensor gather_bucket(const Partition& partition, int bucket, const Tensor& own,
                     const dist::Range& range, dist::Communicator& communicator);

/// Adds the state that this rank holds to `result`, by parameter and by `names`.
void own_state(const BucketFlow& flow, const std::vector<std::string>& names, StateByName& result);

/// The same for whole parameters, added on rank `root` alone; a bucket at a time. Collective.
void gather_state(const BucketFlow& flow, const std::vector<std::string>& names,
                  dist::Communicator& communicator, int root, StateByName& result);

}  // namespace tessera::optim
