// What a running capture (cuda::Graph in core/cuda.h) is to the rest of CUDA's side.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/random.h"

namespace tessera::cuda {

struct Capture {
  std::shared_ptr<MemoryLedger> memory = std::make_shared<MemoryLedger>();  // its own
  std::vector<std::pair<void*, void*>> freed;  // what is not, and its stream
  DropoutState dropout = dropout_state();
  std::shared_ptr<Storage> draws;  // a DropoutDraws
  int64_t samples = 0;             // most that dropout had; 0 where there was no dropout
};

/// The calling thread's; nullptr outside of one.
Capture* running_capture();

/// Throws, with `name`, where the running capture is not one of `stream`.
void check_captured(void* stream, const char* name);

/// In a capture where a kernel finds the state that it draws by, because that is another one in
/// each launch of the graph; otherwise nullptr. Throws where `state` is not that of the capture.
const DropoutDraws* captured_dropout(const DropoutState& state, int64_t samples);

/// Writes it there, in the stream's order; in core/ops/dropout.cu.
void store_draws(const Context& context, DropoutDraws* to, const DropoutDraws& draws);

}  // namespace tessera::cuda
