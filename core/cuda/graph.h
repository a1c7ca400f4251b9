// The state of a running capture (cuda::Graph in core/cuda.h), for the other files of core/cuda/
// and for dropout's kernels.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/random.h"

namespace tessera::cuda {

struct Capture {
  // Counts the memory that the captured function (the body) has allocated and not freed.
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();
  // Allocations that were made before the capture and freed by the body: the address and the
  // stream.
  std::vector<std::pair<void*, void*>> freed;
  DropoutState dropout = dropout_state();
  std::shared_ptr<Storage> draws;  // a DropoutDraws on the device
  int64_t samples = 0;             // the largest number of rows of a dropout's input; 0: no dropout
};

/// Returns the calling thread's running capture, or nullptr if there is none.
Capture* running_capture();

/// Throws an Error that contains `name` if `stream` is not part of the running capture.
void check_captured(void* stream, const char* name);

/// In a capture, returns the device memory from which dropout kernels read their DropoutDraws. Each
/// launch of the graph writes new draws to this memory. Outside of a capture, returns nullptr.
/// `samples` is the number of rows of dropout's input. Throws if `state` is not the dropout state
/// with which the capture began.
const DropoutDraws* captured_dropout(const DropoutState& state, int64_t samples);

/// Writes `draws` to `to` in the stream's order. Defined in core/ops/dropout.cu.
void store_draws(const Context& context, DropoutDraws* to, const DropoutDraws& draws);

}  // namespace tessera::cuda
