// Wrappers that load cuBLASLt at the first call. Linking the 500 MB library would cost every
// process 90 ms and 200 MB of memory at its start, even without a GPU. A build with emulated CUDA
// has its own implementation of cuBLASLt in place of this file.
#include <cublasLt.h>

#include "core/cuda/delayed/library.h"

namespace {

tessera::cuda::DelayedLibrary& cublas_lt() {
  static tessera::cuda::DelayedLibrary library(
      "cublasLt", fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR));
  return library;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() TESSERA_DELAYED(cublas_lt, cublasLtGetVersion, ())

const char* cublasLtGetStatusName(cublasStatus_t status)
TESSERA_DELAYED(cublas_lt, cublasLtGetStatusName, (status))

const char* cublasLtGetStatusString(cublasStatus_t status)
TESSERA_DELAYED(cublas_lt, cublasLtGetStatusString, (status))

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle)
TESSERA_DELAYED(cublas_lt, cublasLtCreate, (handle))

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t stride)
TESSERA_DELAYED(cublas_lt, cublasLtMatrixLayoutInit_internal,
                (layout, size, type, rows, columns, stride))

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes)
TESSERA_DELAYED(cublas_lt, cublasLtMatrixLayoutSetAttribute, (layout, attribute, value, bytes))

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale)
TESSERA_DELAYED(cublas_lt, cublasLtMatmulDescInit_internal, (desc, size, compute, scale))

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes)
TESSERA_DELAYED(cublas_lt, cublasLtMatmulDescSetAttribute, (desc, attribute, value, bytes))

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t size)
TESSERA_DELAYED(cublas_lt, cublasLtMatmulPreferenceInit_internal, (preference, size))

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes)
TESSERA_DELAYED(cublas_lt, cublasLtMatmulPreferenceSetAttribute,
                (preference, attribute, value, bytes))

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int most, cublasLtMatmulHeuristicResult_t results[],
    int* count)
TESSERA_DELAYED(cublas_lt, cublasLtMatmulAlgoGetHeuristic,
                (handle, desc, a, b, c, d, preference, most, results, count))

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result)
TESSERA_DELAYED(cublas_lt, cublasLtMatmulAlgoCheck, (handle, desc, a, b, c, d, algorithm, result))

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written)
TESSERA_DELAYED(cublas_lt, cublasLtMatmulAlgoConfigGetAttribute,
                (algorithm, attribute, value, bytes, written))

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute,
                                                 void* value, size_t bytes, size_t* written)
TESSERA_DELAYED(cublas_lt, cublasLtMatmulAlgoCapGetAttribute,
                (algorithm, attribute, value, bytes, written))

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                              cudaStream_t stream)
TESSERA_DELAYED(cublas_lt, cublasLtMatmul,
                (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout,
                                 d, d_layout, algorithm, workspace, bytes, stream))

}  // extern "C"
