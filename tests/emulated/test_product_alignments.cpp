// Tests that the emulated cuBLASLt proposes another algorithm if operands have other alignments.
// These algorithms must add in different orders. No algorithm may accept operands that are less
// aligned than the algorithm needs.
#include <cublasLt.h>

#include <array>
#include <map>
#include <vector>

#include "core/product.h"
#include "core/product_tuning.h"
#include "core/tensor.h"
#include "tests/support/catch.h"

using Catch::Matchers::ContainsSubstring;

namespace tessera::test {
namespace {

constexpr int size = 24;
constexpr int elements = size * size;

struct Managed {
  explicit Managed(size_t bytes) { REQUIRE(cudaMallocManaged(&data, bytes) == cudaSuccess); }
  ~Managed() { (void)cudaFree(data); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  float* data = nullptr;
};

/// D = A B for square matrices of f32, with descriptors that all calls of cuBLASLt share.
class Product {
 public:
  Product() {
    REQUIRE(cublasLtCreate(&handle_) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
            CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatrixLayoutInit(&layout_, CUDA_R_32F, size, size, size) ==
            CUBLAS_STATUS_SUCCESS);
  }
  ~Product() { CHECK(cublasLtDestroy(handle_) == CUBLAS_STATUS_SUCCESS); }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  /// Returns the first proposal for these alignments of A, B, C and D.
  cublasLtMatmulAlgo_t propose(std::array<uint32_t, 4> alignments) {
    cublasLtMatmulPreferenceOpaque_t preference;
    REQUIRE(cublasLtMatmulPreferenceInit(&preference) == CUBLAS_STATUS_SUCCESS);
    const auto set = [&](int attribute, auto value) {
      REQUIRE(cublasLtMatmulPreferenceSetAttribute(
                  &preference, static_cast<cublasLtMatmulPreferenceAttributes_t>(attribute),
                  &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    for (int i = 0; i < 4; ++i) {
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i, alignments[size_t(i)]);
    }
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    REQUIRE(cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &layout_, &layout_, &layout_,
                                           &layout_, &preference, 1, &result,
                                           &count) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(count == 1);
    return result.algo;
  }

  cublasStatus_t multiply(const float* a, const float* b, float* d,
                          const cublasLtMatmulAlgo_t& algorithm) {
    const float alpha = 1, beta = 0;
    return cublasLtMatmul(handle_, &operation_, &alpha, a, &layout_, b, &layout_, &beta, d,
                          &layout_, d, &layout_, &algorithm, workspace_.data, workspace_bytes,
                          nullptr);
  }

 private:
  static constexpr uint64_t workspace_bytes = 1 << 16;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t layout_;
  Managed workspace_{workspace_bytes};
};

/// Fills x with values whose products and sums need rounding.
void fill(float* x, int seed) {
  for (int i = 0; i < elements; ++i) x[i] = 1.0f / static_cast<float>(3 + (i * 7 + seed) % 101);
}

}  // namespace

TEST_CASE("emulated cuBLASLt: operands' alignments change the proposal and its bits") {
  Product product;
  std::map<std::vector<float>, std::array<uint32_t, 4>> results;
  const std::array<uint32_t, 4> cases[] = {{256, 256, 256, 256}, {16, 256, 256, 256},
                                           {256, 16, 256, 256},  {256, 256, 16, 16},
                                           {4, 256, 256, 256},   {4, 4, 4, 4}};
  for (const auto& alignments : cases) {
    const Managed a(4 * elements + 256), b(4 * elements + 256), d(4 * elements + 256);
    float* const a_begin = a.data + alignments[0] % 256 / 4;
    float* const b_begin = b.data + alignments[1] % 256 / 4;
    float* const d_begin = d.data + alignments[3] % 256 / 4;
    fill(a_begin, 1);
    fill(b_begin, 2);
    const cublasLtMatmulAlgo_t algorithm = product.propose(alignments);
    std::vector<float> bits[2];
    for (auto& result : bits) {
      REQUIRE(product.multiply(a_begin, b_begin, d_begin, algorithm) == CUBLAS_STATUS_SUCCESS);
      result.assign(d_begin, d_begin + elements);
    }
    CHECK(bits[0] == bits[1]);
    results.emplace(bits[0], alignments);
  }
  CHECK(results.size() == std::size(cases));
  for (const auto& [values, alignments] : results) {
    CHECK(values[5] == Catch::Approx(results.begin()->first[5]));
  }
}

TEST_CASE("emulated cuBLASLt: an operand less aligned than an algorithm needs is refused") {
  Product product;
  const Managed a(4 * elements + 256), b(4 * elements), d(4 * elements);
  fill(a.data, 1);
  fill(b.data, 2);
  const cublasLtMatmulAlgo_t algorithm = product.propose({16, 256, 256, 256});
  uint32_t needed = 0;
  size_t written = 0;
  REQUIRE(cublasLtMatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES,
                                            &needed, sizeof needed,
                                            &written) == CUBLAS_STATUS_SUCCESS);
  CHECK(needed == 16);
  CHECK(product.multiply(a.data + 4, b.data, d.data, algorithm) == CUBLAS_STATUS_SUCCESS);
  CHECK(product.multiply(a.data + 1, b.data, d.data, algorithm) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK_THAT(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED),
             ContainsSubstring("A is not aligned to the 16 bytes"));
}

TEST_CASE("emulated cuBLASLt: a tuned algorithm for better aligned operands is refused") {
  const Device device{DeviceType::cuda, 0};
  const Tensor memory = Tensor::empty({4 * elements}, DType::f32, device);
  const auto shape_from = [&](int64_t offset) {
    const auto begin = [&](int64_t i) { return memory.flat(i, i + elements).raw(); };
    cuda::multiply(current_context(device), {.m = size,
                                             .n = size,
                                             .k = size,
                                             .a = {begin(offset), size},
                                             .b = {begin(offset + elements), size},
                                             .c = {begin(3 * elements), size}});
    for (const cuda::ProductShape& shape : cuda::computed_products(0)) {
      const bool is_this = shape.m == size && shape.n == size && shape.k == size &&
                           (shape.a.alignment == 4) == (offset == 1);
      if (is_this) return shape;
    }
    FAIL("the product has no algorithm");
    return cuda::ProductShape{};
  };
  const cuda::TunedProduct aligned =
      cuda::measure_product(current_context(device), shape_from(0)).fastest;
  CHECK_NOTHROW(cuda::use_tuned_products(0, {aligned}));
  CHECK_THROWS_WITH(cuda::use_tuned_products(0, {{shape_from(1), aligned.algorithm}}),
                    ContainsSubstring("aligned to 256 bytes, but its alignment is 4"));
}

}  // namespace tessera::test
