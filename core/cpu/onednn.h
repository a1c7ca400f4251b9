// Matrix products by oneDNN, without conversion of operands. cpu::gemm decides for which products
// it calls these functions.
#pragma once

#include <cstdint>

#include "core/cpu/gemm.h"

namespace tessera::cpu::onednn {

/// True for f32, and for bf16 if the CPU has instructions that multiply bf16. Without them, oneDNN
/// would emulate the product. False for f16.
bool has_instructions_for(DType dtype);

/// Computes the product with one call of oneDNN, on `options.threads` threads. `options.threads`
/// and all sizes must be above zero.
void multiply(const ProductArgs& args, const GemmOptions& options);

/// Bytes of scratchpad that multiply needs.
int64_t scratchpad_bytes(const ProductArgs& args, int threads);

/// Each thread keeps its most recently used primitives: at most most_primitives for products, and
/// at most most_primitives for convolutions. A primitive takes up to 100 KiB. The limit leaves room
/// for all primitives of a training step: a step of GPT-2 over 1,024 tokens has 65 products, and a
/// step of ResNet-50 has 68 convolutions.
inline constexpr int64_t most_primitives = 512;
/// The number of product primitives that the calling thread keeps.
int64_t kept_products();

}  // namespace tessera::cpu::onednn
