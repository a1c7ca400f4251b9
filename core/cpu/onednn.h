// Matrix products by oneDNN, whose operands it takes as they are. core/cpu/gemm.h decides what
// comes here.
#pragma once

#include <cstdint>

#include "core/cpu/gemm.h"

namespace tessera::cpu::onednn {

/// Whether the CPU has instructions that oneDNN multiplies this dtype with, rather than emulating
/// them.
bool has_instructions_for(DType dtype);

/// One call of the library, for sizes above zero, with `options.threads` threads.
void multiply(const ProductArgs& args, const GemmOptions& options);

/// The scratchpad of that call.
int64_t scratchpad_bytes(const ProductArgs& args, int threads);

}  // namespace tessera::cpu::onednn
