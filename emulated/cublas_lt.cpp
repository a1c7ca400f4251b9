// See emulated/include/cublasLt.h.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "emulated/cublas_lt.h"

struct cublasLtContext {
  int device;
};

namespace {

using namespace emulated::cublas_lt;

thread_local std::string last_reason = "no call has failed";

struct Refusal {
  cublasStatus_t status;
  std::string reason;
};

template <class... Args>
void demand(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (condition) return;
  throw Refusal{CUBLAS_STATUS_INVALID_VALUE, fmt::format(format, std::forward<Args>(args)...)};
}

/// Runs the body of a call: its refusal becomes the call's status.
template <class Body>
cublasStatus_t guarded(Body&& body) {
  try {
    body();
    return CUBLAS_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    last_reason = refusal.reason;
    return refusal.status;
  }
}

// What opaque memory holds here. Memory that was never initialised has another mark.

struct Preference {
  static constexpr uint64_t expected_mark = 0x70726566;
  uint64_t mark = expected_mark;
  uint64_t workspace_bytes = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Algorithm {
  static constexpr uint64_t expected_mark = 0x616C676F;
  uint64_t mark = expected_mark;
  uint64_t problem = 0;  // a hash of what it was proposed for
  uint64_t workspace_bytes = 0;
  uint32_t alignment[4] = {};
};

template <class T, class Opaque>
T read(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
  demand(opaque != nullptr, "a descriptor is null");
  T value;
  std::memcpy(static_cast<void*>(&value), opaque, sizeof value);
  demand(value.mark == T::expected_mark, "a descriptor was not initialised");
  return value;
}

template <class T, class Opaque>
void write(Opaque* opaque, const T& value) {
  static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
  std::memcpy(opaque, &value, sizeof value);
}

template <class T, class Opaque>
void initialize(Opaque* opaque, size_t size, const T& value) {
  demand(opaque != nullptr && size >= sizeof(Opaque), "a descriptor of {} bytes is too small",
         size);
  write(opaque, value);
}

template <class T>
void take(T& to, const void* value, size_t bytes) {
  demand(value != nullptr, "an attribute's value is null");
  demand(bytes == sizeof(T), "an attribute of {} bytes was given {}", sizeof(T), bytes);
  std::memcpy(&to, value, sizeof(T));
}

constexpr int64_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

void check_layout(const char* name, const Layout& x, int64_t rows, int64_t columns,
                  int32_t batch) {
  demand(x.rows == rows && x.columns == columns, "{} is {} x {}, expected {} x {}", name, x.rows,
         x.columns, rows, columns);
  demand(x.stride >= x.rows, "{} has {} rows and a leading dimension of {}", name, x.rows,
         x.stride);
  demand(x.batch == batch, "{} has {} matrices, expected {}", name, x.batch, batch);
}

void check_epilogue(const Problem& problem) {
  const Operation& operation = problem.operation;
  switch (static_cast<cublasLtEpilogue_t>(operation.epilogue)) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: break;
    default: demand(false, "epilogue {} is not emulated", operation.epilogue);
  }
  if (operation.adds_bias()) {
    demand(operation.bias != nullptr, "the epilogue adds a bias, whose pointer is null");
  }
  if (!operation.applies_gelu()) return;
  demand(operation.aux != nullptr, "the epilogue writes a matrix, whose pointer is null");
  demand(reinterpret_cast<uintptr_t>(operation.aux) % 16 == 0,
         "the epilogue's matrix is not aligned to 16 bytes");
  demand(operation.aux_stride % 8 == 0 && operation.aux_stride >= problem.m,
         "the epilogue's matrix has leading dimension {} for {} rows, expected multiples of 8",
         operation.aux_stride, problem.m);
  demand(problem.d.batch == 1, "the epilogue's matrix has no batch stride");
}

Problem problem_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  Problem problem{.operation = read<Operation>(desc),
                  .a = read<Layout>(a),
                  .b = read<Layout>(b),
                  .c = read<Layout>(c),
                  .d = read<Layout>(d),
                  .m = 0,
                  .n = 0,
                  .k = 0};
  const bool transpose_a = problem.operation.transpose_a == CUBLAS_OP_T;
  const bool transpose_b = problem.operation.transpose_b == CUBLAS_OP_T;
  const int64_t m = problem.m = problem.d.rows;
  const int64_t n = problem.n = problem.d.columns;
  const int64_t k = problem.k = transpose_a ? problem.a.rows : problem.a.columns;
  const int32_t batch = problem.d.batch;
  demand(m > 0 && n > 0 && k > 0 && batch > 0, "{} products of {} x {} x {}", batch, m, n, k);
  demand(std::max({m, n, k}) <= std::numeric_limits<int32_t>::max(), "sizes beyond 32 bits");
  check_layout("A", problem.a, transpose_a ? k : m, transpose_a ? m : k, batch);
  check_layout("B", problem.b, transpose_b ? n : k, transpose_b ? k : n, batch);
  check_layout("C", problem.c, m, n, batch);
  check_layout("D", problem.d, m, n, batch);
  demand(batch == 1 || problem.d.batch_stride >= (n - 1) * problem.d.stride + m,
         "matrices of D overlap: they are {} elements apart", problem.d.batch_stride);
  demand(problem.a.type == problem.b.type, "A and B have different types");
  demand(problem.c.type == problem.d.type, "C and D have different types");
  demand(problem.d.type == CUDA_R_32F || problem.d.type == problem.a.type,
         "a result of type {} of operands of type {}", static_cast<int>(problem.d.type),
         static_cast<int>(problem.a.type));
  check_epilogue(problem);
  return problem;
}

/// FNV-1a over what an algorithm may depend on: not over addresses.
uint64_t hash_of(const Problem& problem) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3;
  };
  for (const Layout& x : {problem.a, problem.b, problem.c, problem.d}) {
    for (const int64_t value : {int64_t{x.type}, int64_t{x.batch}, x.rows, x.columns, x.stride,
                                x.batch_stride}) {
      add(value);
    }
  }
  add(problem.operation.transpose_a);
  add(problem.operation.transpose_b);
  add(problem.operation.epilogue);
  add(problem.operation.aux_stride);
  return hash;
}

Algorithm propose(const Problem& problem, const Preference& preference) {
  for (const uint32_t alignment : preference.alignment) {
    demand(alignment > 0 && alignment <= 256 && (alignment & (alignment - 1)) == 0,
           "an alignment of {} bytes is not a power of two up to 256", alignment);
  }
  Algorithm algorithm{.problem = hash_of(problem),
                      .workspace_bytes = 4096 + 16 * static_cast<uint64_t>(problem.m % 7)};
  if (algorithm.workspace_bytes > preference.workspace_bytes) {
    throw Refusal{CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm for so little workspace"};
  }
  std::copy_n(preference.alignment, 4, algorithm.alignment);
  return algorithm;
}

int64_t bytes_of(const Layout& x) {
  return ((x.batch - 1) * x.batch_stride + (x.columns - 1) * x.stride + x.rows) *
         element_bytes(x.type);
}

bool overlap(const void* x, const Layout& x_layout, const void* y, const Layout& y_layout) {
  const auto x_begin = reinterpret_cast<uintptr_t>(x), y_begin = reinterpret_cast<uintptr_t>(y);
  return x_begin < y_begin + static_cast<uintptr_t>(bytes_of(y_layout)) &&
         y_begin < x_begin + static_cast<uintptr_t>(bytes_of(x_layout));
}

void check_reachable(const char* name, const void* data) {
  cudaPointerAttributes attributes{};
  demand(data != nullptr && cudaPointerGetAttributes(&attributes, data) == cudaSuccess &&
             attributes.type != cudaMemoryTypeUnregistered,
         "{} is no memory that the device can reach", name);
}

void check_addresses(const Problem& problem, const Algorithm& algorithm, const Addresses& at) {
  const void* const addresses[4] = {at.a, at.b, at.c, at.d};
  constexpr const char* names[4] = {"A", "B", "C", "D"};
  for (int i = 0; i < 4; ++i) {
    check_reachable(names[i], addresses[i]);
    demand(reinterpret_cast<uintptr_t>(addresses[i]) % algorithm.alignment[i] == 0,
           "{} is not aligned to the {} bytes that the algorithm was proposed for", names[i],
           algorithm.alignment[i]);
  }
  demand(!overlap(at.d, problem.d, at.a, problem.a) && !overlap(at.d, problem.d, at.b, problem.b),
         "D overlaps an operand");
  demand(at.c != at.d || problem.c == problem.d, "C is D with another layout");
  if (problem.operation.adds_bias()) check_reachable("the bias", problem.operation.bias);
  if (problem.operation.applies_gelu()) {
    check_reachable("the epilogue's matrix", problem.operation.aux);
  }
}

void use_workspace(const Algorithm& algorithm, void* workspace, size_t bytes) {
  demand(bytes >= algorithm.workspace_bytes, "a workspace of {} bytes, the algorithm needs {}",
         bytes, algorithm.workspace_bytes);
  check_reachable("the workspace", workspace);
  demand(reinterpret_cast<uintptr_t>(workspace) % 16 == 0,
         "the workspace is not aligned to 16 bytes");
  std::memset(workspace, 0xA5, algorithm.workspace_bytes);
}

void check_handle(cublasLtHandle_t handle) {
  int device = -1;
  if (handle == nullptr || cudaGetDevice(&device) != cudaSuccess) {
    throw Refusal{CUBLAS_STATUS_NOT_INITIALIZED, "there is no handle, or no device"};
  }
  demand(handle->device == device, "the handle is of device {}, the current one is {}",
         handle->device, device);
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return guarded([&] {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) {
      throw Refusal{CUBLAS_STATUS_NOT_INITIALIZED, "there is no device"};
    }
    demand(handle != nullptr, "nowhere to put the handle");
    *handle = new cublasLtContext{device};
  });
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "a status that is not emulated";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : last_reason.c_str();
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
  return guarded([&] {
    initialize(layout, size,
               Layout{.type = type,
                      .rows = static_cast<int64_t>(rows),
                      .columns = static_cast<int64_t>(cols),
                      .stride = ld});
  });
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  return guarded([&] {
    auto changed = read<Layout>(layout);
    switch (attribute) {
      case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: take(changed.batch, value, bytes); break;
      case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        take(changed.batch_stride, value, bytes);
        break;
    }
    write(layout, changed);
  });
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t size,
                                               cublasComputeType_t compute_type,
                                               cudaDataType_t scale_type) {
  return guarded([&] {
    demand(compute_type == CUBLAS_COMPUTE_32F && scale_type == CUDA_R_32F,
           "only f32 sums and factors are emulated");
    initialize(desc, size, Operation{});
  });
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return guarded([&] {
    auto changed = read<Operation>(desc);
    switch (attribute) {
      case CUBLASLT_MATMUL_DESC_TRANSA: take(changed.transpose_a, value, bytes); break;
      case CUBLASLT_MATMUL_DESC_TRANSB: take(changed.transpose_b, value, bytes); break;
      case CUBLASLT_MATMUL_DESC_EPILOGUE: take(changed.epilogue, value, bytes); break;
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER: take(changed.bias, value, bytes); break;
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: take(changed.aux, value, bytes); break;
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: take(changed.aux_stride, value, bytes); break;
    }
    write(desc, changed);
  });
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t size) {
  return guarded([&] { initialize(preference, size, Preference{}); });
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return guarded([&] {
    auto changed = read<Preference>(preference);
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        take(changed.workspace_bytes, value, bytes);
        break;
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        take(changed.reductions, value, bytes);
        break;
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        take(changed.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
             bytes);
        break;
    }
    write(preference, changed);
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a_layout,
    cublasLtMatrixLayout_t b_layout, cublasLtMatrixLayout_t c_layout,
    cublasLtMatrixLayout_t d_layout, cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t results[], int* returned) {
  return guarded([&] {
    check_handle(handle);
    demand(requested > 0 && results != nullptr && returned != nullptr,
           "{} algorithms were asked for", requested);
    *returned = 0;
    const Problem problem = problem_of(desc, a_layout, b_layout, c_layout, d_layout);
    const Algorithm algorithm = propose(problem, read<Preference>(preference));
    results[0] = {};
    write(&results[0].algo, algorithm);
    results[0].workspaceSize = algorithm.workspace_bytes;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *returned = 1;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t) {
  return guarded([&] {
    check_handle(handle);
    const Problem problem = problem_of(desc, a_layout, b_layout, c_layout, d_layout);
    const auto chosen = read<Algorithm>(algorithm);
    demand(chosen.problem == hash_of(problem), "the algorithm was proposed for another product");
    const Addresses addresses{a, b, c, d};
    check_addresses(problem, chosen, addresses);
    use_workspace(chosen, workspace, workspace_bytes);
    demand(alpha != nullptr && beta != nullptr, "a factor is null");
    compute(problem, addresses, *static_cast<const float*>(alpha),
            *static_cast<const float*>(beta));
  });
}
