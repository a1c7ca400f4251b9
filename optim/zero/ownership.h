// Describes which rank owns which elements of which parameter, for reports and pictures of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace tessera::optim {

/// A parameter in a bucket's memory: elements [offset, offset + elements).
struct OwnedParameter {
  std::string name;
  int64_t offset = 0;
  int64_t elements = 0;
};

/// Rank r owns the elements [r * shard, (r + 1) * shard) of the bucket. Elements that belong to no
/// parameter are padding.
struct OwnedBucket {
  int64_t elements = 0;  // ranks * shard
  int64_t shard = 0;
  std::vector<OwnedParameter> parameters;  // in order of their offsets
};

/// Parameters of one dtype that are all trainable or all frozen. For each element, the owner keeps
/// `sum_bytes` for the sum of its gradients, and `state_bytes` for its master weight and the update
/// rule's state. Frozen parameters have neither, so sum_bytes and state_bytes are 0. If
/// `gradients_in_sums` is true, the first micro-step of a step writes gradients directly into their
/// sums, so that steps with one micro-step need no other memory for gradients.
struct OwnedGroup {
  DType dtype = DType::f32;
  bool trainable = true;
  int64_t sum_bytes = 0;
  int64_t state_bytes = 0;
  bool gradients_in_sums = false;
  std::vector<OwnedBucket> buckets;
};

/// A row-sparse table. Rank r owns the rows [r * rows_per_rank, (r + 1) * rows_per_rank), as far as
/// the table has these rows.
struct OwnedTable {
  std::string name;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t rows_per_rank = 0;
  int64_t row_state_bytes = 0;  // per row, for master weights and the update rule's state
};

struct Ownership {
  std::vector<OwnedGroup> groups;
  std::vector<OwnedTable> tables;
};

}  // namespace tessera::optim
