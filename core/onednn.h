// Matrix products by oneDNN, whose operands it takes as they are. core/gemm.h decides what comes
// here.
#pragma once

#include <cstdint>

#include "core/gemm.h"

namespace tessera::cpu::onednn {

/// Whether the CPU has instructions that oneDNN multiplies this dtype with, rather than emulating
/// them.
bool has_instructions_for(DType dtype);

/// One call of the library, for sizes above zero, with `args.threads` threads.
void multiply(const GemmArgs& args);

/// The scratchpad of that call.
int64_t scratchpad_bytes(const GemmArgs& args);

}  // namespace tessera::cpu::onednn
