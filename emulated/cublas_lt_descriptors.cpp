// The emulated cuBLASLt's descriptors: see emulated/include/cublasLt.h.
#include "emulated/cublas_lt.h"
#include "emulated/cublas_lt_opaque.h"

namespace {

using namespace emulated::cublas_lt;

template <class T, class Opaque>
void initialize(Opaque* opaque, size_t size, const T& value) {
  demand(opaque != nullptr && size >= sizeof(Opaque),
         "a descriptor of {} bytes is null or too small", size);
  write(opaque, value);
}

template <class T>
void take(T& to, const void* value, size_t bytes) {
  demand(value != nullptr, "an attribute's value is null");
  demand(bytes == sizeof(T), "an attribute of {} bytes was given {} bytes", sizeof(T), bytes);
  std::memcpy(&to, value, sizeof(T));
}

}  // namespace

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
