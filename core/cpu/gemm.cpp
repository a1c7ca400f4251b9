#include "core/cpu/gemm.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include <omp.h>

#include "core/context.h"
#include "core/cpu/onednn.h"
#include "core/error.h"
#include "core/memory.h"

namespace tessera::cpu {
namespace {

int threads_of(const GemmOptions& options) {
  if (omp_in_parallel()) return 1;
  return options.threads > 0 ? options.threads : thread_count();
}

void check_dtypes(const ProductArgs& args) {
  TESSERA_CHECK(is_float(args.dtype), "gemm: dtype {} is not a floating-point type",
                dtype_name(args.dtype));
  TESSERA_CHECK(
      args.c_dtype == DType::f32 || args.c_dtype == args.dtype,
      "gemm: operands in {} and a result in {}, expected a result in f32 or in the operands' dtype",
      dtype_name(args.dtype), dtype_name(args.c_dtype));
}

/// Computes a product with k = 0, whose sums have no terms: overwrites c with the bias (or with
/// zeros), or adds the bias to c.
void add_no_terms(const ProductArgs& args) {
  if (args.accumulate && !args.bias) return;
  visit_float(args.dtype, "gemm", [&]<class T>() {
    visit_float(args.c_dtype, "gemm", [&]<class C>() {
      const T* bias = static_cast<const T*>(args.bias);
      for (int64_t row = 0; row < args.batch * args.m; ++row) {
        C* to = static_cast<C*>(args.c.data) + row / args.m * args.c.batch_stride +
                row % args.m * args.c.row_stride;
        for (int64_t i = 0; i < args.n; ++i) {
          const float before = args.accumulate ? float(to[i]) : 0.0f;
          to[i] = rounded<C>(bias ? before + float(bias[i]) : before);
        }
      }
    });
  });
}

// The number of terms in one part of a sum. With an f32 result, a sum of more than 2 * part_terms
// terms is computed in parts, one call of oneDNN for each, because parts are faster. On one core
// with k = 50,257 (the gradient of a language model's last activations), a single call ran at 100
// GFLOP/s and parts ran at 114. The core's peak is 118.
constexpr int64_t part_terms = 4096;

/// Returns the part of the sum over k that takes columns [begin, begin + count) of a and rows
/// [begin, begin + count) of b. The first part adds the bias and overwrites c or adds to it, as
/// `args` say. Each later part adds to c.
ProductArgs part_of(ProductArgs args, int64_t begin, int64_t count) {
  const auto advance = [&](const void* data, int64_t stride) {
    // Addresses are null if the caller only wants the size of the workspace.
    return data ? static_cast<const std::byte*>(data) + begin * stride * dtype_size(args.dtype)
                : nullptr;
  };
  args.k = count;
  args.a.data = advance(args.a.data, args.a.column_stride);
  args.b.data = advance(args.b.data, args.b.row_stride);
  if (begin > 0) {
    args.bias = nullptr;
    args.accumulate = true;
  }
  return args;
}

template <class Body>
void for_each_part(const ProductArgs& args, Body&& body) {
  // Parts are added in c's dtype, so only a product with an f32 result may be split.
  if (args.k <= 2 * part_terms || args.c_dtype != DType::f32) return body(args);
  for (int64_t begin = 0; begin < args.k; begin += part_terms) {
    body(part_of(args, begin, std::min(part_terms, args.k - begin)));
  }
}

void native_gemm(const ProductArgs& args, const GemmOptions& options) {
  for_each_part(args, [&](const ProductArgs& part) { onednn::multiply(part, options); });
}

int64_t native_workspace_bytes(const ProductArgs& args, int threads) {
  int64_t bytes = 0;
  for_each_part(args, [&](const ProductArgs& part) {
    bytes = std::max(bytes, onednn::scratchpad_bytes(part, threads));
  });
  return bytes;
}

/// The product of f32 copies of the operands. One block of memory contains the copies, the
/// scratchpad and, unless c is f32, the f32 result. a, b, bias, c and scratchpad are byte offsets
/// in the block.
struct Widened {
  ProductArgs product;  // its addresses in the block are set after the block is allocated
  int64_t a = 0, b = 0, bias = 0, c = 0, scratchpad = 0;
  int64_t bytes = 0;
};

ConstMatrix packed(const ConstMatrix& x, int64_t rows, int64_t columns) {
  const int64_t batch_stride = x.batch_stride == 0 ? 0 : rows * columns;
  return x.column_stride == 1 ? ConstMatrix{nullptr, columns, 1, batch_stride}
                              : ConstMatrix{nullptr, 1, rows, batch_stride};
}

Widened widen(const ProductArgs& args, int threads) {
  Widened widened{.product = args};
  ProductArgs& product = widened.product;
  const auto place = [&](int64_t elements) {
    constexpr int64_t line = 64;
    const int64_t at = widened.bytes;
    widened.bytes += (elements * 4 + line - 1) / line * line;
    return at;
  };
  const auto matrices = [&](const ConstMatrix& x) { return x.batch_stride == 0 ? 1 : args.batch; };
  product.a = packed(args.a, args.m, args.k);
  product.b = packed(args.b, args.k, args.n);
  widened.a = place(matrices(args.a) * args.m * args.k);
  widened.b = place(matrices(args.b) * args.k * args.n);
  if (args.bias) widened.bias = place(args.n);
  if (args.c_dtype != DType::f32) {
    product.c = {nullptr, args.n, args.m * args.n};
    product.accumulate = false;
    widened.c = place(args.batch * args.m * args.n);
  }
  product.dtype = DType::f32;
  product.c_dtype = DType::f32;
  widened.scratchpad = widened.bytes;
  widened.bytes += native_workspace_bytes(product, threads);
  return widened;
}

/// Converts matrices to f32 and packs them without gaps. The lines of a matrix are its rows or its
/// columns, whichever are contiguous: `lines` lines of `length` elements.
template <class T>
void widen_lines(float* to, const T* from, int64_t matrices, int64_t lines, int64_t length,
                 int64_t batch_stride, int64_t line_stride) {
  parallel_ranges(matrices * lines, length, [=](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      const T* in = from + line / lines * batch_stride + line % lines * line_stride;
      float* out = to + line * length;
#pragma omp simd
      for (int64_t i = 0; i < length; ++i) out[i] = float(in[i]);
    }
  });
}

void widen_operand(float* to, const ConstMatrix& x, int64_t batch, int64_t rows, int64_t columns,
                   DType dtype) {
  const bool by_rows = x.column_stride == 1;
  visit_float(dtype, "gemm", [&]<class T>() {
    widen_lines(to, static_cast<const T*>(x.data), x.batch_stride == 0 ? 1 : batch,
                by_rows ? rows : columns, by_rows ? columns : rows, x.batch_stride,
                by_rows ? x.row_stride : x.column_stride);
  });
}

/// c = product, or c += product if args.accumulate. The result is rounded once.
void round_result(const ProductArgs& args, const float* product) {
  visit_float(args.c_dtype, "gemm", [&]<class T>() {
    T* c = static_cast<T*>(args.c.data);
    parallel_ranges(args.batch * args.m, args.n, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        T* to = c + row / args.m * args.c.batch_stride + row % args.m * args.c.row_stride;
        const float* from = product + row * args.n;
        if (args.accumulate) {
#pragma omp simd
          for (int64_t i = 0; i < args.n; ++i) to[i] = rounded<T>(float(to[i]) + from[i]);
        } else {
#pragma omp simd
          for (int64_t i = 0; i < args.n; ++i) to[i] = rounded<T>(from[i]);
        }
      }
    });
  });
}

void multiply_widened(const ProductArgs& args, GemmOptions options) {
  const ThreadCountScope scope(options.threads);
  Widened widened = widen(args, options.threads);
  std::shared_ptr<Storage> storage;
  if (!options.workspace) storage = allocate(widened.bytes, Category::workspace, options.device);
  std::byte* block = static_cast<std::byte*>(storage ? storage->data() : options.workspace);
  const auto floats = [&](int64_t offset) { return reinterpret_cast<float*>(block + offset); };
  widen_operand(floats(widened.a), args.a, args.batch, args.m, args.k, args.dtype);
  widen_operand(floats(widened.b), args.b, args.batch, args.k, args.n, args.dtype);
  ProductArgs& product = widened.product;
  product.a.data = floats(widened.a);
  product.b.data = floats(widened.b);
  options.workspace = floats(widened.scratchpad);
  if (args.bias) {
    widen_operand(floats(widened.bias), {args.bias}, 1, 1, args.n, args.dtype);
    product.bias = floats(widened.bias);
  }
  if (args.c_dtype == DType::f32) return native_gemm(product, options);
  product.c.data = floats(widened.c);
  native_gemm(product, options);
  round_result(args, floats(widened.c));
}

/// If one of the product's sizes is 0, computes the product without calling body. For any other
/// product, calls body with options.threads set.
template <class Body>
void with_terms(const ProductArgs& args, GemmOptions options, Body&& body) {
  check_dtypes(args);
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  if (args.k == 0) return add_no_terms(args);
  options.threads = threads_of(options);
  body(args, options);
}

}  // namespace

void gemm(const ProductArgs& args, const GemmOptions& options) {
  if (!has_fast_gemm(args.dtype)) return widened_gemm(args, options);
  with_terms(args, options, native_gemm);
}

void widened_gemm(const ProductArgs& args, const GemmOptions& options) {
  with_terms(args, options, multiply_widened);
}

void multiply(const Context& context, const ProductArgs& args) {
  gemm(args, {.device = context.device});
}

bool has_fast_gemm(DType dtype) {
  static const bool bf16 = onednn::has_instructions_for(DType::bf16);
  return dtype == DType::f32 || (dtype == DType::bf16 && bf16);
}

int64_t gemm_workspace_bytes(const ProductArgs& args, const GemmOptions& options) {
  check_dtypes(args);
  if (args.batch == 0 || args.m == 0 || args.n == 0 || args.k == 0) return 0;
  const int threads = threads_of(options);
  return has_fast_gemm(args.dtype) ? native_workspace_bytes(args, threads)
                                   : widen(args, threads).bytes;
}

int64_t product_workspace_bytes(const Context&, const ProductArgs& args) {
  return gemm_workspace_bytes(args);
}

}  // namespace tessera::cpu
