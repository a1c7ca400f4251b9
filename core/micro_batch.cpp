#include "core/micro_batch.h"

#include <algorithm>

#include "core/error.h"

namespace tessera {

void Batch::validate() const {
  if (micro < 1) fail_input("micro-batch is {}, expected at least 1", micro);
  if (global < 1) fail_input("global batch is {}, expected at least 1", global);
  if (global % micro != 0) {
    fail_input("global batch {} is not a multiple of the micro-batch {}", global, micro);
  }
}

int64_t Batch::micro_steps(int64_t ranks) const { return (micro_batches() + ranks - 1) / ranks; }

int64_t Batch::contributors(int64_t ranks, int64_t micro_step) const {
  return std::min(ranks, micro_batches() - micro_step * ranks);
}

}  // namespace tessera
