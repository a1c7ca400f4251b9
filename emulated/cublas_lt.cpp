// The calls of the emulated cuBLASLt, which check their arguments: see emulated/include/cublasLt.h.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "emulated/capture.h"
#include "emulated/cublas_lt.h"
#include "emulated/cublas_lt_opaque.h"
#include "emulated/launch_record.h"

struct cublasLtContext {
  int device;
};

namespace emulated::cublas_lt {
thread_local std::string last_reason = "no call has failed";
}

namespace {

using namespace emulated::cublas_lt;

constexpr int64_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

void check_layout(const char* name, const Layout& x, int64_t rows, int64_t columns,
                  int32_t batch) {
  demand(x.rows == rows && x.columns == columns, "{} is {} x {}, expected {} x {}", name, x.rows,
         x.columns, rows, columns);
  demand(x.stride >= x.rows, "{} has {} rows, but a leading dimension of {}", name, x.rows,
         x.stride);
  demand(x.batch == batch, "{} has {} matrices, expected {}", name, x.batch, batch);
}

void check_epilogue(const Problem& problem) {
  const Operation& operation = problem.operation;
  switch (static_cast<cublasLtEpilogue_t>(operation.epilogue)) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS: break;
    default: demand(false, "epilogue {} is not emulated", operation.epilogue);
  }
  if (operation.adds_bias()) {
    demand(operation.bias != nullptr, "the epilogue adds a bias, whose pointer is null");
  }
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
  demand(m > 0 && n > 0 && k > 0 && batch > 0,
         "{} products of {} x {} x {}, expected at least 1 of each", batch, m, n, k);
  demand(std::max({m, n, k}) <= std::numeric_limits<int32_t>::max(),
         "a size of a product exceeds 2^31 - 1");
  check_layout("A", problem.a, transpose_a ? k : m, transpose_a ? m : k, batch);
  check_layout("B", problem.b, transpose_b ? n : k, transpose_b ? k : n, batch);
  check_layout("C", problem.c, m, n, batch);
  check_layout("D", problem.d, m, n, batch);
  demand(batch == 1 || problem.d.batch_stride >= (n - 1) * problem.d.stride + m,
         "matrices of D overlap: they are {} elements apart", problem.d.batch_stride);
  demand(problem.a.type == problem.b.type, "A and B have different types");
  demand(problem.c.type == problem.d.type, "C and D have different types");
  demand(problem.d.type == CUDA_R_32F || problem.d.type == problem.a.type,
         "the result has type {} and the operands {}, expected f32 or the operands' type",
         static_cast<int>(problem.d.type), static_cast<int>(problem.a.type));
  check_epilogue(problem);
  return problem;
}

/// Returns a hash of the properties that an algorithm may depend on, without addresses. The hash is
/// computed as FNV-1a, but from 64-bit numbers instead of bytes.
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
  return hash;
}

/// Returns the Order::rotation of an algorithm: a different number for each combination of
/// alignments, 0 if all four alignments are 256 bytes.
uint32_t rotation_for(const Preference& preference) {
  uint32_t rotation = 0;
  for (const uint32_t alignment : preference.alignment) {
    rotation = rotation * 9 + static_cast<uint32_t>(8 - std::countr_zero(alignment));
  }
  return rotation;
}

/// Proposes algorithms, the best first. The first algorithm does not split k. The others split k,
/// so they add in a different order. The order of addition also depends on the alignments, because
/// a GPU may have a different kernel for each combination of alignments.
std::vector<Algorithm> propose(const Problem& problem, const Preference& preference) {
  for (const uint32_t alignment : preference.alignment) {
    demand(alignment > 0 && alignment <= 256 && (alignment & (alignment - 1)) == 0,
           "an alignment of {} bytes is not a power of two up to 256", alignment);
  }
  constexpr struct {
    int32_t splits;
    uint32_t reduction;
  } ways[] = {{1, CUBLASLT_REDUCTION_SCHEME_NONE},
              {2, CUBLASLT_REDUCTION_SCHEME_INPLACE},
              {2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
              {3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}};
  std::vector<Algorithm> algorithms;
  for (const auto& [splits, reduction] : ways) {
    Algorithm algorithm{.problem = hash_of(problem),
                        .workspace_bytes = 4096 * static_cast<uint64_t>(splits) +
                                           16 * static_cast<uint64_t>(problem.m % 7),
                        .order = {splits, rotation_for(preference)},
                        .reduction = reduction};
    std::copy_n(preference.alignment, 4, algorithm.alignment);
    const bool is_allowed = reduction == CUBLASLT_REDUCTION_SCHEME_NONE ||
                            (reduction & preference.reductions) != 0;
    if (is_allowed && algorithm.workspace_bytes <= preference.workspace_bytes) {
      algorithms.push_back(algorithm);
    }
  }
  if (algorithms.empty()) {
    throw Refusal{CUBLAS_STATUS_NOT_SUPPORTED,
                  "every algorithm needs more workspace than is allowed"};
  }
  return algorithms;
}

Algorithm algorithm_for(const Problem& problem, const cublasLtMatmulAlgo_t* algorithm) {
  const auto result = read<Algorithm>(algorithm);
  demand(result.problem == hash_of(problem), "the algorithm was proposed for another product");
  return result;
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
         "{} is not memory that the device can reach", name);
}

void check_addresses(const Problem& problem, const Algorithm& algorithm, const Addresses& at) {
  const void* const addresses[4] = {at.a, at.b, at.c, at.d};
  constexpr const char* names[4] = {"A", "B", "C", "D"};
  for (int i = 0; i < 4; ++i) {
    check_reachable(names[i], addresses[i]);
    if (reinterpret_cast<uintptr_t>(addresses[i]) % algorithm.alignment[i] == 0) continue;
    throw Refusal{CUBLAS_STATUS_NOT_SUPPORTED,
                  fmt::format("{} is not aligned to the {} bytes that the algorithm needs",
                              names[i], algorithm.alignment[i])};
  }
  demand(!overlap(at.d, problem.d, at.a, problem.a) && !overlap(at.d, problem.d, at.b, problem.b),
         "D overlaps an operand");
  demand(at.c != at.d || problem.c == problem.d,
         "C and D are the same memory, but have different layouts");
  if (problem.operation.adds_bias()) check_reachable("the bias", problem.operation.bias);
}

void check_workspace(const Algorithm& algorithm, const void* workspace, size_t bytes) {
  demand(bytes >= algorithm.workspace_bytes, "a workspace of {} bytes, but the algorithm needs {}",
         bytes, algorithm.workspace_bytes);
  check_reachable("the workspace", workspace);
  demand(reinterpret_cast<uintptr_t>(workspace) % 16 == 0,
         "the workspace is not aligned to 16 bytes");
}

void check_handle(cublasLtHandle_t handle) {
  int device = -1;
  if (handle == nullptr || cudaGetDevice(&device) != cudaSuccess) {
    throw Refusal{CUBLAS_STATUS_NOT_INITIALIZED, "there is no handle, or no device"};
  }
  demand(handle->device == device, "the handle belongs to device {}, but the current device is {}",
         handle->device, device);
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return guarded([&] {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) {
      throw Refusal{CUBLAS_STATUS_NOT_INITIALIZED, "there is no device"};
    }
    demand(handle != nullptr, "the address for the handle is null");
    *handle = new cublasLtContext{device};
  });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return guarded([&] {
    demand(handle != nullptr, "there is no handle");
    delete handle;
  });
}

size_t cublasLtGetVersion() { return 130000; }

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

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a_layout,
    cublasLtMatrixLayout_t b_layout, cublasLtMatrixLayout_t c_layout,
    cublasLtMatrixLayout_t d_layout, cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t results[], int* returned) {
  return guarded([&] {
    check_handle(handle);
    demand(requested > 0 && results != nullptr && returned != nullptr,
           "{} algorithms were asked for, expected at least 1, and addresses that are not null",
           requested);
    *returned = 0;
    const Problem problem = problem_of(desc, a_layout, b_layout, c_layout, d_layout);
    for (const Algorithm& algorithm : propose(problem, read<Preference>(preference))) {
      if (*returned == requested) break;
      cublasLtMatmulHeuristicResult_t& result = results[(*returned)++];
      result = {};
      write(&result.algo, algorithm);
      result.workspaceSize = algorithm.workspace_bytes;
      result.state = CUBLAS_STATUS_SUCCESS;
    }
  });
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a_layout,
                                       cublasLtMatrixLayout_t b_layout,
                                       cublasLtMatrixLayout_t c_layout,
                                       cublasLtMatrixLayout_t d_layout,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  return guarded([&] {
    check_handle(handle);
    demand(result != nullptr, "the address for the result is null");
    const Problem problem = problem_of(desc, a_layout, b_layout, c_layout, d_layout);
    result->workspaceSize = algorithm_for(problem, algorithm).workspace_bytes;
    result->state = CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  return guarded([&] {
    demand(attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, "attribute {} is not emulated",
           static_cast<int>(attribute));
    const uint32_t reduction = read<Algorithm>(algorithm).reduction;
    demand(value != nullptr && bytes == sizeof reduction,
           "an attribute of {} bytes was given {} bytes, or no address", sizeof reduction, bytes);
    std::memcpy(value, &reduction, sizeof reduction);
    if (written != nullptr) *written = sizeof reduction;
  });
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute,
                                                 void* value, size_t bytes, size_t* written) {
  return guarded([&] {
    const int index = attribute - CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES;
    demand(0 <= index && index < 4, "capability {} is not emulated", static_cast<int>(attribute));
    const uint32_t alignment = read<Algorithm>(algorithm).alignment[index];
    demand(value != nullptr && bytes == sizeof alignment,
           "a capability of {} bytes was given {} bytes, or no address", sizeof alignment, bytes);
    std::memcpy(value, &alignment, sizeof alignment);
    if (written != nullptr) *written = sizeof alignment;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  return guarded([&] {
    check_handle(handle);
    const Problem problem = problem_of(desc, a_layout, b_layout, c_layout, d_layout);
    const Algorithm chosen = algorithm_for(problem, algorithm);
    const Addresses addresses{a, b, c, d};
    check_addresses(problem, chosen, addresses);
    check_workspace(chosen, workspace, workspace_bytes);
    demand(alpha != nullptr && beta != nullptr, "alpha or beta is null");
    emulated::record_call(
        fmt::format("cublasLtMatmul {} {} {}", problem.m, problem.n, problem.k).c_str());
    const float factors[] = {*static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
    const cudaError_t error = emulated::enqueue(stream, [=] {
      if (chosen.workspace_bytes > 0) std::memset(workspace, 0xA5, chosen.workspace_bytes);
      compute(problem, addresses, chosen.order, factors[0], factors[1]);
      return cudaSuccess;
    });
    demand(error == cudaSuccess, "{}", cudaGetErrorString(error));
  });
}
