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

/// The most primitives of products that a thread keeps, those that it used last, and the most of
/// convolutions. One takes up to 100 KiB. A step of GPT-2 over 1,024 tokens has 65 products, one
/// of ResNet-50 68 convolutions. oneDNN itself keeps 1,024 in a process.
inline constexpr int64_t most_primitives = 512;
/// How many primitives of products the calling thread keeps.
int64_t kept_products();

}  // namespace tessera::cpu::onednn
