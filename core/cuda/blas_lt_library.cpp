#include "core/cuda/blas_lt_library.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/cuda/check.h"
#include "core/cuda/per_device.h"

namespace tessera::cuda {
namespace {

// The most bytes of workspace that an algorithm may need, as NVIDIA advises for Hopper. Most
// algorithms need less or none. Only the bytes that an algorithm needs are allocated.
constexpr uint64_t workspace_limit = uint64_t{32} << 20;

// The allowed ways to add partial sums, for algorithms that split k. COMPUTE_TYPE keeps the partial
// sums in f32 in the workspace, and adds them in a fixed order in a second step. INPLACE and
// OUTPUT_TYPE would round each partial sum to c's dtype. INPLACE would also add the partial sums in
// an order that is not documented.
constexpr uint32_t allowed_reductions =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

cudaDataType library_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: fail("cublasLt: dtype {} is not a floating-point type", dtype_name(dtype));
  }
}

/// Returns the largest power of two that divides the address, but at most 256, the alignment that
/// cuBLASLt assumes by default. Returns 256 for nullptr.
uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256u;
  return static_cast<uint32_t>(address & (~address + 1));
}

/// Returns a dummy address with this alignment, or nullptr for 0. The address must not be read.
void* aligned(int64_t alignment) { return reinterpret_cast<void*>(alignment); }

Operand operand(const ConstMatrix& x, int64_t rows, int64_t columns) {
  // A matrix of one row has no use for row_stride, but cuBLASLt requires a stride of at least the
  // row's length. Likewise, a matrix of one column has no use for column_stride.
  if (x.column_stride == 1 && (x.row_stride >= columns || rows == 1)) {
    return {columns, rows, std::max(x.row_stride, columns), x.batch_stride, false, x.data};
  }
  TESSERA_CHECK(x.row_stride == 1 && (x.column_stride >= rows || columns == 1),
                "cublasLt: a matrix of {} x {} has row stride {} and column stride {}, expected "
                "one stride of 1 and the other at least the length of a row or column",
                rows, columns, x.row_stride, x.column_stride);
  return {rows, columns, std::max(x.column_stride, rows), x.batch_stride, true, x.data};
}

template <class T>
void set(cublasLtMatrixLayoutOpaque_t& layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  TESSERA_CUBLAS(cublasLtMatrixLayoutSetAttribute(&layout, attribute, &value, sizeof value));
}
template <class T>
void set(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t attribute, T value) {
  TESSERA_CUBLAS(cublasLtMatmulDescSetAttribute(&desc, attribute, &value, sizeof value));
}
template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& preference,
         cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  TESSERA_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value));
}

cublasLtMatrixLayoutOpaque_t layout_of(const Operand& x, DType dtype, int64_t batch) {
  cublasLtMatrixLayoutOpaque_t layout;
  TESSERA_CUBLAS(cublasLtMatrixLayoutInit(&layout, library_type(dtype),
                                          static_cast<uint64_t>(x.rows),
                                          static_cast<uint64_t>(x.columns), x.stride));
  if (batch > 1) {
    set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, x.batch_stride);
  }
  return layout;
}

// The batch stride of a single matrix has no effect. It is set to 0, so that equal products have
// equal shapes.
ProductShape::Matrix shape_of(const Operand& x, int64_t batch) {
  return {x.stride, batch > 1 ? x.batch_stride : 0, x.transpose, alignment_of(x.data)};
}

ConstMatrix matrix_of(const ProductShape::Matrix& x) {
  return {aligned(x.alignment), x.transposed ? 1 : x.stride, x.transposed ? x.stride : 1,
          x.batch_stride};
}

/// Throws if the algorithm needs a, b or c to be aligned to more bytes than the shape states.
/// cuBLASLt itself checks the alignment only when it gets the addresses, in the middle of a run.
/// cuBLASLt's A is our b, its B is our a, and its C and D are both our c.
void check_alignments(const ProductShape& shape, const cublasLtMatmulAlgo_t& algorithm) {
  const struct {
    const char* name;
    int64_t alignment;
    cublasLtMatmulAlgoCapAttributes_t needed;
  } matrices[] = {{"b", shape.b.alignment, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES},
                  {"a", shape.a.alignment, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES},
                  {"c", shape.c.alignment, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES},
                  {"c", shape.c.alignment, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES}};
  for (const auto& [name, alignment, needed] : matrices) {
    uint32_t bytes = 0;
    size_t written = 0;
    TESSERA_CUBLAS(
        cublasLtMatmulAlgoCapGetAttribute(&algorithm, needed, &bytes, sizeof bytes, &written));
    TESSERA_CHECK(bytes <= alignment,
                  "cublasLt: the algorithm needs {} aligned to {} bytes, but its alignment is {}",
                  name, bytes, alignment);
  }
}

}  // namespace

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("{}: {} ({})", call, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

Product product_of(const ProductArgs& args) {
  TESSERA_CHECK(args.c_dtype == DType::f32 || args.c_dtype == args.dtype,
                "cublasLt: operands in {} and a result in {}, expected a result in f32 or in the "
                "operands' dtype",
                dtype_name(args.dtype), dtype_name(args.c_dtype));
  TESSERA_CHECK(!args.bias || args.c_dtype == args.dtype,
                "cublasLt: a bias in {} and a result in {}, expected the same dtype",
                dtype_name(args.dtype), dtype_name(args.c_dtype));
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  TESSERA_CHECK(std::max({args.batch, args.m, args.n, args.k}) <= most,
                "cublasLt: {} products of {} x {} x {} exceed 32-bit sizes", args.batch, args.m,
                args.n, args.k);
  const ConstMatrix c{args.c.data, args.c.row_stride, 1, args.c.batch_stride};
  return {.first = operand(args.b, args.k, args.n),
          .second = operand(args.a, args.m, args.k),
          .result = operand(c, args.m, args.n),
          .batch = args.batch,
          .dtype = args.dtype,
          .c_dtype = args.c_dtype,
          .bias = args.bias};
}

Product product_of(const ProductShape& shape) {
  return product_of(
      ProductArgs{.batch = shape.batch,
                  .m = shape.m,
                  .n = shape.n,
                  .k = shape.k,
                  .a = matrix_of(shape.a),
                  .b = matrix_of(shape.b),
                  .c = {aligned(shape.c.alignment), shape.c.stride, shape.c.batch_stride},
                  .bias = aligned(shape.bias_alignment),
                  .dtype = shape.dtype,
                  .c_dtype = shape.c_dtype});
}

ProductShape Product::shape() const {
  return {.batch = batch,
          .m = result.columns,
          .n = result.rows,
          .k = first.transpose ? first.rows : first.columns,
          .a = shape_of(second, batch),
          .b = shape_of(first, batch),
          .c = shape_of(result, batch),
          .dtype = dtype,
          .c_dtype = c_dtype,
          .bias_alignment = bias ? alignment_of(bias) : 0};
}

Descriptors describe(const Product& product) {
  Descriptors result;
  auto& operation = result.operation;
  TESSERA_CUBLAS(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto transform = [](const Operand& x) -> int32_t {
    return x.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transform(product.first));
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transform(product.second));
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(product.epilogue()));
  if (product.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  result.first = layout_of(product.first, product.dtype, product.batch);
  result.second = layout_of(product.second, product.dtype, product.batch);
  result.result = layout_of(product.result, product.c_dtype, product.batch);
  return result;
}

Library::Library() { TESSERA_CUBLAS(cublasLtCreate(&handle_)); }

Algorithm Library::algorithm_for(const Product& product, Descriptors& descriptors) {
  const ProductShape shape = product.shape();
  const std::lock_guard lock(mutex_);
  if (const auto known = algorithms_.find(shape); known != algorithms_.end()) return known->second;
  const std::vector<Algorithm> proposed = proposals(product, descriptors, 1);
  TESSERA_CHECK(!proposed.empty(),
                "cublasLt: no algorithm for {} products of {} x {} x {} from {} to {}", shape.batch,
                shape.m, shape.n, shape.k, dtype_name(shape.dtype), dtype_name(shape.c_dtype));
  return algorithms_[shape] = proposed[0];
}

std::vector<Algorithm> Library::proposals(const Product& product, Descriptors& descriptors,
                                          int most) const {
  cublasLtMatmulPreferenceOpaque_t preference;
  TESSERA_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  const uint32_t result_alignment = alignment_of(product.result.data);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_limit);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, allowed_reductions);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product.first.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product.second.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result_alignment);
  auto& [operation, first, second, result] = descriptors;
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &operation, &first, &second, &result, &result,
                                     &preference, most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  found.resize(static_cast<size_t>(count));
  std::vector<Algorithm> proposed;
  for (const auto& [algorithm, bytes, state, waves, reserved] : found) {
    if (state == CUBLAS_STATUS_SUCCESS) {
      proposed.push_back({algorithm, static_cast<int64_t>(bytes)});
    }
  }
  return proposed;
}

Algorithm Library::checked(const ProductShape& shape, const AlgorithmBytes& bytes) const {
  Descriptors descriptors = describe(product_of(shape));
  auto& [operation, first, second, result] = descriptors;
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof algorithm == sizeof bytes);
  std::memcpy(&algorithm, bytes.data(), sizeof algorithm);
  cublasLtMatmulHeuristicResult_t properties = {};
  TESSERA_CUBLAS(cublasLtMatmulAlgoCheck(handle_, &operation, &first, &second, &result, &result,
                                         &algorithm, &properties));
  uint32_t reduction = 0;
  size_t written = 0;
  TESSERA_CUBLAS(cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction, &written));
  TESSERA_CHECK((reduction & ~allowed_reductions) == 0,
                "cublasLt: the algorithm's reduction scheme is {}, whose additions may differ from "
                "run to run; expected {} or {}",
                reduction, static_cast<int>(CUBLASLT_REDUCTION_SCHEME_NONE),
                static_cast<int>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  TESSERA_CHECK(properties.workspaceSize <= workspace_limit,
                "cublasLt: the algorithm needs {} bytes of workspace, expected at most {}",
                properties.workspaceSize, workspace_limit);
  check_alignments(shape, algorithm);
  return {algorithm, static_cast<int64_t>(properties.workspaceSize)};
}

void Library::use(const std::map<ProductShape, Algorithm>& algorithms) {
  const std::lock_guard lock(mutex_);
  for (const auto& [shape, algorithm] : algorithms) algorithms_[shape] = algorithm;
}

std::vector<ProductShape> Library::shapes() {
  const std::lock_guard lock(mutex_);
  std::vector<ProductShape> result;
  for (const auto& [shape, algorithm] : algorithms_) result.push_back(shape);
  return result;
}

void Library::multiply(const Context& context, const Product& product, Descriptors& descriptors,
                       const Algorithm& algorithm, bool accumulate) const {
  Tensor workspace;  // freed in the stream's order, after the product
  if (algorithm.workspace_bytes > 0) {
    workspace = context.workspace({algorithm.workspace_bytes}, DType::u8);
  }
  const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  auto& [operation, first, second, result] = descriptors;
  void* const c = const_cast<void*>(product.result.data);  // ProductArgs::c is mutable
  TESSERA_CUBLAS(cublasLtMatmul(
      handle_, &operation, &alpha, product.first.data, &first, product.second.data, &second, &beta,
      c, &result, c, &result, &algorithm.algorithm,
      workspace.defined() ? workspace.raw() : nullptr,
      static_cast<size_t>(algorithm.workspace_bytes), static_cast<cudaStream_t>(context.stream)));
  finish_call(context, "cublasLtMatmul");
}

Library& library_of(int device) {
  return one_per_device<Library>(device, "cublasLt", "product");
}

}  // namespace tessera::cuda
