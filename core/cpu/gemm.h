// What matrix products have on the CPU alone (core/product.h has what both devices have): how many
// threads compute one, and memory that it works in.
//
// A product's bits depend on its sizes, strides and threads, never on its addresses. bf16 operands
// go to oneDNN as they are where the CPU multiplies bf16; elsewhere, and for f16, they are widened
// to f32 first.
#pragma once

#include <cstdint>

#include "core/product.h"

namespace tessera::cpu {

struct GemmOptions {
  int threads = 0;            // 0: thread_count(); inside a parallel region always 1
  Device device = {};         // whose workspace is used
  void* workspace = nullptr;  // gemm_workspace_bytes() on a cache line; nullptr: allocated
};

/// As multiply, which is this with the context's device.
void gemm(const ProductArgs& args, const GemmOptions& options = {});

/// The same through f32 copies of the operands: how gemm multiplies what has no fast product.
void widened_gemm(const ProductArgs& args, const GemmOptions& options = {});

/// Whether the CPU multiplies this dtype as it is. The answer never changes within a process.
bool has_fast_gemm(DType dtype);

/// What gemm(args, options) holds at most of the workspace category, when called from here: the
/// scratchpad of the library and widened operands. Addresses do not matter, but whether there is a
/// bias does.
int64_t gemm_workspace_bytes(const ProductArgs& args, const GemmOptions& options = {});

}  // namespace tessera::cpu
