// Matrix products on the CPU, with options that CUDA does not have: the number of threads and the
// memory to work in. core/product.h has the interface of both devices.
//
// On one machine, a product's bits depend on its sizes, strides, dtypes and threads, never on its
// addresses. bf16 operands are passed to oneDNN unchanged if the CPU has bf16 instructions.
// Otherwise they are converted to f32 first. f16 operands are always converted to f32 first.
#pragma once

#include <cstdint>

#include "core/product.h"

namespace tessera::cpu {

struct GemmOptions {
  int threads = 0;            // 0: thread_count(); inside a parallel region always 1
  Device device = {};         // where gemm allocates its workspace
  void* workspace = nullptr;  // gemm_workspace_bytes(), 64-byte aligned; nullptr: gemm allocates
};

/// Like cpu::multiply, with options. cpu::multiply calls gemm with the context's device.
void gemm(const ProductArgs& args, const GemmOptions& options = {});

/// Computes the product through f32 copies of the operands, as gemm does for dtypes without a fast
/// product.
void widened_gemm(const ProductArgs& args, const GemmOptions& options = {});

/// True if the CPU multiplies this dtype without conversion. The answer never changes within a
/// process.
bool has_fast_gemm(DType dtype);

/// Returns the bytes of workspace that gemm(args, options) needs: oneDNN's scratchpad and, for a
/// dtype without a fast product, f32 copies of the matrices. Inside a parallel region the result is
/// for one thread, because gemm uses one thread there. The addresses in `args` are not used and may
/// be null, but a null bias means that there is no bias.
int64_t gemm_workspace_bytes(const ProductArgs& args, const GemmOptions& options = {});

}  // namespace tessera::cpu
