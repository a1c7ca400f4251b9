#include "core/cuda/blas_lt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/cuda.h"
#include "core/cuda/check.h"

// Throws for anything but success, with the text of the call.
#define TESSERA_CUBLAS(call) check_cublas((call), #call)

namespace tessera::cuda {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("{}: {} ({})", call, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

// What an algorithm may ask for: NVIDIA's advice for Hopper. Most ask for less or nothing, and only
// that is allocated.
constexpr uint64_t workspace_limit = uint64_t{32} << 20;

// Where k is split, the parts are f32 sums in the workspace that a second step adds in one order.
// INPLACE and OUTPUT_TYPE would round each part to c's dtype, and INPLACE adds them while blocks
// finish, in an order that is not documented.
constexpr uint32_t allowed_reductions =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

constexpr int64_t pre_stride_unit = 8;  // elements, as the library documents
constexpr uint32_t pre_alignment = 16;

cudaDataType library_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: fail("cublasLt: dtype {} is not a floating-point type", dtype_name(dtype));
  }
}

/// The largest power of two up to 256, the library's own measure, that divides an address.
uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256u;
  return static_cast<uint32_t>(address & (~address + 1));
}

// The library's matrices are column-major: line after line of `rows` elements, `stride` apart. A
// row-major matrix read so is its transpose. Therefore the library is asked for c^T = b^T a^T: its
// first operand is b, its second a, its m and n are our n and m, and `bias`, which it adds to
// each column, is added to each of our rows. An operand with column_stride 1 already is the
// transpose that is wanted; one with row_stride 1 must be transposed.
struct Operand {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  int64_t batch_stride = 0;
  bool transpose = false;
  const void* data = nullptr;
};

Operand operand(const ConstMatrix& x, int64_t rows, int64_t columns) {
  // The stride of a single line does not matter to us; to the library it must span the line.
  if (x.column_stride == 1 && (x.row_stride >= columns || rows == 1)) {
    return {columns, rows, std::max(x.row_stride, columns), x.batch_stride, false, x.data};
  }
  TESSERA_CHECK(x.row_stride == 1 && (x.column_stride >= rows || columns == 1),
                "cublasLt: a matrix of {} x {} has strides {} and {}, expected one of 1 and one "
                "that spans a line",
                rows, columns, x.row_stride, x.column_stride);
  return {rows, columns, std::max(x.column_stride, rows), x.batch_stride, true, x.data};
}

/// A product in the library's terms.
struct Product {
  Operand first, second, result;
  int64_t batch = 1;
  DType dtype = DType::f32;
  DType c_dtype = DType::f32;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* pre = nullptr;
};

Product product_of(const LtArgs& args) {
  TESSERA_CHECK(args.c_dtype == DType::f32 || args.c_dtype == args.dtype,
                "cublasLt: operands in {} and a result in {}, expected f32 or their dtype",
                dtype_name(args.dtype), dtype_name(args.c_dtype));
  TESSERA_CHECK(!args.bias || args.c_dtype == args.dtype,
                "cublasLt: a bias in {} and a result in {}, expected one dtype",
                dtype_name(args.dtype), dtype_name(args.c_dtype));
  TESSERA_CHECK(!args.pre || (!args.accumulate && args.batch == 1),
                "cublasLt: an activation of a sum, or of {} matrices, expected of one product",
                args.batch);
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  TESSERA_CHECK(std::max({args.batch, args.m, args.n, args.k}) <= most,
                "cublasLt: {} products of {} x {} x {} exceed 32-bit sizes", args.batch, args.m,
                args.n, args.k);
  const int epilogue = args.pre == nullptr
                           ? (args.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT)
                           : (args.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                        : CUBLASLT_EPILOGUE_GELU_AUX);
  const ConstMatrix c{args.c.data, args.c.row_stride, 1, args.c.batch_stride};
  return {.first = operand(args.b, args.k, args.n),
          .second = operand(args.a, args.m, args.k),
          .result = operand(c, args.m, args.n),
          .batch = args.batch,
          .dtype = args.dtype,
          .c_dtype = args.c_dtype,
          .epilogue = static_cast<cublasLtEpilogue_t>(epilogue),
          .bias = args.bias,
          .pre = args.pre};
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

/// The library's descriptors of a product: plain values, so that each call has its own.
struct Descriptors {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t first, second, result;
};

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

Descriptors describe(const Product& product) {
  Descriptors result;
  auto& operation = result.operation;
  TESSERA_CUBLAS(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto transform = [](const Operand& x) -> int32_t {
    return x.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transform(product.first));
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transform(product.second));
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(product.epilogue));
  if (product.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  if (product.pre) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.pre);
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.result.stride);
  }
  result.first = layout_of(product.first, product.dtype, product.batch);
  result.second = layout_of(product.second, product.dtype, product.batch);
  result.result = layout_of(product.result, product.c_dtype, product.batch);
  return result;
}

struct Algorithm {
  bool found = false;
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;
};

/// What the library is asked for an algorithm with.
using Key = std::array<int64_t, 22>;

Key key_of(const Product& product) {
  const auto& [first, second, result, batch, dtype, c_dtype, epilogue, bias, pre] = product;
  return {first.rows,
          first.columns,
          first.stride,
          first.batch_stride,
          first.transpose,
          alignment_of(first.data),
          second.rows,
          second.columns,
          second.stride,
          second.batch_stride,
          second.transpose,
          alignment_of(second.data),
          result.rows,
          result.columns,
          result.stride,
          result.batch_stride,
          alignment_of(result.data),
          batch,
          static_cast<int64_t>(dtype) << 8 | static_cast<int64_t>(c_dtype),
          epilogue,
          bias ? alignment_of(bias) : 0,
          pre ? alignment_of(pre) : 0};
}

/// The library's handle for one device, and the algorithms that it proposed. Any thread may ask.
class Library {
 public:
  Library() { TESSERA_CUBLAS(cublasLtCreate(&handle_)); }

  cublasLtHandle_t handle() const { return handle_; }

  Algorithm algorithm_for(const Product& product, Descriptors& descriptors) {
    const Key key = key_of(product);
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = algorithms_.try_emplace(key);
    if (is_new) {
      try {
        entry->second = propose(product, descriptors);
      } catch (...) {
        algorithms_.erase(entry);
        throw;
      }
    }
    return entry->second;
  }

 private:
  Algorithm propose(const Product& product, Descriptors& descriptors) const {
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
    cublasLtMatmulHeuristicResult_t proposal = {};
    int proposals = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, &operation, &first, &second, &result, &result,
                                       &preference, 1, &proposal, &proposals);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
    if (proposals == 0 || proposal.state != CUBLAS_STATUS_SUCCESS) return {};
    return {true, proposal.algo, static_cast<int64_t>(proposal.workspaceSize)};
  }

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Algorithm> algorithms_;
};

// Never destroyed: a handle must not outlive the driver, which may be gone after main.
Library& library_of(int device) {
  static std::mutex mutex;
  static auto* const libraries = new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Library>& library = (*libraries)[device];
  if (!library) library = std::make_unique<Library>();
  return *library;
}

/// A product over k = 0 as one over k = 1 of zeros, so that the library applies what follows it.
bool add_no_terms(const Context& context, LtArgs args) {
  if (args.accumulate && !args.bias) return true;
  const Tensor zeros = context.workspace({std::max(args.m, args.n)}, args.dtype);
  TESSERA_CUDA(cudaMemsetAsync(zeros.raw(), 0, static_cast<size_t>(zeros.bytes()),
                               static_cast<cudaStream_t>(context.stream)));
  args.k = 1;
  args.a = {zeros.raw(), 1};
  args.b = {zeros.raw(), args.n};
  return try_multiply(context, args);
}

}  // namespace

bool try_multiply(const Context& context, const LtArgs& args) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return true;
  if (args.k == 0) return add_no_terms(context, args);
  const Product product = product_of(args);
  if (product.pre && (product.result.stride % pre_stride_unit != 0 ||
                      alignment_of(product.pre) < pre_alignment)) {
    return false;
  }
  Library& library = library_of(context.device.index);
  Descriptors descriptors = describe(product);
  const Algorithm chosen = library.algorithm_for(product, descriptors);
  if (!chosen.found) return false;

  Tensor workspace;  // goes back to the pool in the stream's order, after the product
  if (chosen.workspace_bytes > 0) {
    workspace = context.workspace({chosen.workspace_bytes}, DType::u8);
  }
  const float alpha = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  auto& [operation, first, second, result] = descriptors;
  TESSERA_CUBLAS(cublasLtMatmul(
      library.handle(), &operation, &alpha, product.first.data, &first, product.second.data,
      &second, &beta, args.c.data, &result, args.c.data, &result, &chosen.algorithm,
      workspace.defined() ? workspace.raw() : nullptr,
      static_cast<size_t>(chosen.workspace_bytes), static_cast<cudaStream_t>(context.stream)));
  // As every launch does where tests share memory with the device.
  if (memory_is_shared_with_host()) synchronize(context.device.index);
  return true;
}

void multiply(const Context& context, const LtArgs& args) {
  TESSERA_CHECK(try_multiply(context, args),
                "cublasLt: no algorithm for {} products of {} x {} x {} from {} to {}", args.batch,
                args.m, args.n, args.k, dtype_name(args.dtype), dtype_name(args.c_dtype));
}

}  // namespace tessera::cuda
