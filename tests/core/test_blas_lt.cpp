// Tests products by cuBLASLt, which need a GPU.
#ifdef TESSERA_WITH_CUDA
#include "core/product.h"

#include <thread>
#include <vector>

#include "core/ops/copy.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

Context context() { return test_context(); }

struct Sizes {
  int64_t m, n, k;
};

/// The operands of a product, each transposed or not. They begin `offset` elements after an aligned
/// address.
struct Operands {
  Operands(DType dtype, DType c_dtype, Sizes s, bool a_is_transposed, bool b_is_transposed,
           int64_t offset = 0)
      : sizes(s),
        transpose_a(a_is_transposed),
        transpose_b(b_is_transposed),
        a(moved(random_tensor_of(dtype, {s.m * s.k}, 1), offset)),
        b(moved(random_tensor_of(dtype, {s.k * s.n}, 2), offset)),
        c(moved(random_tensor_of(c_dtype, {s.m * s.n}, 3), offset)),
        bias(moved(random_tensor_of(dtype, {s.n}, 4), offset)) {}

  static Tensor moved(const Tensor& x, int64_t offset) {
    const Tensor room = Tensor::empty({x.elements() + offset}, x.dtype());
    const Tensor result = room.flat(offset, offset + x.elements());
    kernels::copy(context(), result, x);
    return result;
  }

  ProductArgs args(bool with_bias, bool accumulate) const {
    const auto [m, n, k] = sizes;
    return {.m = m,
            .n = n,
            .k = k,
            .a = {a.raw(), transpose_a ? 1 : k, transpose_a ? m : 1},
            .b = {b.raw(), transpose_b ? 1 : n, transpose_b ? k : 1},
            .c = {c.raw(), n},
            .bias = with_bias ? bias.raw() : nullptr,
            .accumulate = accumulate,
            .dtype = a.dtype(),
            .c_dtype = c.dtype()};
  }

  Values expected(bool with_bias, bool accumulate) const {
    const auto [m, n, k] = sizes;
    Values result = product(values_of(a), values_of(b), m, n, k, transpose_a, transpose_b);
    const Values before = values_of(c), added = values_of(bias);
    for (size_t i = 0; i < result.size(); ++i) {
      if (with_bias) result[i] += added[i % static_cast<size_t>(n)];
      if (accumulate) result[i] += before[i];
    }
    return result;
  }

  Sizes sizes;
  bool transpose_a, transpose_b;
  Tensor a, b, c, bias;
};

TEST_CASE("a product on CUDA equals float64 however its operands are stored", "[blas_lt]") {
  if (on_cpu()) return;
  const auto sizes = GENERATE(Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{64, 1, 33}, Sizes{1, 65, 16},
                              Sizes{130, 72, 129}, Sizes{17, 31, 1}, Sizes{5, 600, 64},
                              Sizes{2, 3, 9000});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const bool rounds = GENERATE(false, true);
  const bool transpose_a = GENERATE(false, true);
  const bool transpose_b = GENERATE(false, true);
  const bool accumulate = GENERATE(false, true);
  const int64_t offset = GENERATE(0, 1, 8);
  const DType c_dtype = rounds ? dtype : DType::f32;
  const bool with_bias = c_dtype == dtype && !transpose_a;
  const Operands operands(dtype, c_dtype, sizes, transpose_a, transpose_b, offset);
  const Values expected = operands.expected(with_bias, accumulate);
  cuda::multiply(context(), operands.args(with_bias, accumulate));
  // On an H200, a sum of 9,000 products of 16-bit values has a relative error of up to 1.06e-5.
  // Kernels for odd sizes round the product before they add the bias or the former c.
  const int roundings = on_real_gpu() && with_bias + accumulate > 0 ? 2 : 1;
  const double f32_error = on_real_gpu() && dtype != DType::f32 && sizes.k > 1000 ? 2e-5 : 1e-5;
  CAPTURE(sizes.m, sizes.n, sizes.k, transpose_a, transpose_b, accumulate, with_bias, offset);
  CHECK(relative_error(operands.c, expected) < tolerance(c_dtype, roundings, f32_error));
}

TEST_CASE("a product on CUDA reads heads of a packed tensor, and writes into wider rows",
          "[blas_lt]") {
  if (on_cpu()) return;
  // qkv is (T, 3, H, D). Multiplies each head's q by the same head's k or, if shared, by head 0's
  // k.
  const int64_t tokens = 9, heads = 3, size = 5, row = 3 * heads * size, wide = tokens + 4;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const bool shared = GENERATE(false, true);
  const Tensor qkv = random_tensor_of(dtype, {tokens, row}, 1);
  const Values values = values_of(qkv);
  const auto at = [&](int64_t token, int64_t part, int64_t head, int64_t i) {
    return values[static_cast<size_t>(token * row + (part * heads + head) * size + i)];
  };
  const Tensor scores = Tensor::full({heads, tokens, wide}, -7.0f);
  Values expected = values_of(scores);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < tokens; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < size; ++d) sum += at(i, 0, h, d) * at(j, 1, shared ? 0 : h, d);
        expected[static_cast<size_t>((h * tokens + i) * wide + j)] = sum;
      }
    }
  }
  const auto* packed = static_cast<const std::byte*>(qkv.raw());
  cuda::multiply(context(),
                 {.batch = heads,
                  .m = tokens,
                  .n = tokens,
                  .k = size,
                  .a = {packed, row, 1, size},
                  .b = {packed + heads * size * dtype_size(dtype), 1, row, shared ? 0 : size},
                  .c = {scores.raw(), wide, tokens * wide},
                  .dtype = dtype});
  CHECK(relative_error(scores, expected) < 1e-6);
}

TEST_CASE("a product on CUDA of size zero does nothing, or gives zero or the bias", "[blas_lt]") {
  if (on_cpu()) return;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor c = rounded_to(dtype, Tensor::full({2, 3}, 5.0f));
  const Tensor bias = rounded_to(dtype, Tensor::from<float>({3}, {1, 2, 3}));
  const auto multiply = [&](ProductArgs args) {
    args.c = {c.raw(), 3};
    args.dtype = dtype;
    args.c_dtype = dtype;
    cuda::multiply(context(), args);
  };
  multiply({.m = 0, .n = 3, .k = 4});
  multiply({.batch = 0, .m = 2, .n = 3, .k = 4});
  multiply({.m = 2, .n = 3, .k = 0, .accumulate = true});
  CHECK(values_of(c) == Values(6, 5.0));
  multiply({.m = 2, .n = 3, .k = 0, .bias = bias.raw(), .accumulate = true});
  CHECK(values_of(c) == Values{6, 7, 8, 6, 7, 8});
  multiply({.m = 2, .n = 3, .k = 0, .bias = bias.raw()});
  CHECK(values_of(c) == Values{1, 2, 3, 1, 2, 3});
  multiply({.m = 2, .n = 3, .k = 0});
  CHECK(values_of(c) == Values(6, 0.0));
}

TEST_CASE("a product's workspace on CUDA is counted, at most 32 MiB, and freed", "[blas_lt]") {
  if (on_cpu()) return;
  const Operands operands(DType::bf16, DType::f32, {64, 64, 4096}, true, false);
  MemoryLedger& ledger = memory_ledger(default_device());
  const int64_t before = ledger.current(Category::workspace);
  ledger.reset_peaks();
  const ProductArgs args = operands.args(false, false);
  cuda::multiply(context(), args);
  CHECK(ledger.current(Category::workspace) == before);
  const int64_t taken = ledger.peak(Category::workspace) - before;
  CHECK(taken == cuda::product_workspace_bytes(context(), args));
  CHECK(taken <= int64_t{32} << 20);
  // Every algorithm of the emulated cuBLASLt needs a workspace. On a GPU the first one may not.
  if (!on_real_gpu()) CHECK(taken > 0);
}

TEST_CASE("a product on CUDA gives the same bits in every call and thread", "[blas_lt]") {
  if (on_cpu()) return;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Operands operands(dtype, dtype, {65, 48, 3000}, true, false);
  cuda::multiply(context(), operands.args(true, false));
  std::vector<Tensor> results;
  for (int i = 0; i < 3; ++i) results.push_back(Tensor::zeros(operands.c.shape(), dtype));
  std::vector<std::thread> threads;
  for (const Tensor& result : results) {
    threads.emplace_back([&operands, result] {
      ProductArgs args = operands.args(true, false);
      args.c.data = result.raw();
      cuda::multiply(context(), args);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& result : results) CHECK(same_bits(result, operands.c));
}

TEST_CASE("a product on CUDA refuses invalid arguments", "[blas_lt]") {
  if (on_cpu()) return;
  using Catch::Matchers::ContainsSubstring;
  const Operands operands(DType::bf16, DType::f32, {4, 8, 4}, false, false);
  const ProductArgs fine = operands.args(false, false);
  const auto refused = [](const ProductArgs& args, const char* why) {
    CHECK_THROWS_WITH(cuda::multiply(context(), args), ContainsSubstring(why));
  };
  ProductArgs bad = fine;
  bad.a.row_stride = 3;
  refused(bad, "a matrix of 4 x 4 has row stride 3 and column stride 1");
  bad = fine;
  bad.bias = operands.bias.raw();
  refused(bad, "a bias in bf16 and a result in f32, expected the same dtype");
  bad = fine;
  bad.c_dtype = DType::f16;
  refused(bad, "operands in bf16 and a result in f16");
  bad = fine;
  bad.dtype = bad.c_dtype = DType::i32;
  refused(bad, "dtype i32 is not a floating-point type");
  bad = fine;
  bad.m = int64_t{1} << 31;
  refused(bad, "exceed 32-bit sizes");
}

TEST_CASE("cuBLASLt is not started for a device that the thread does not use") {
  if (on_cpu()) return;
  const Operands x(DType::f32, DType::f32, {4, 4, 4}, false, false);
  const Context other{{DeviceType::cuda, 99}};
  CHECK_THROWS_WITH(
      cuda::product_workspace_bytes(other, x.args(false, false)),
      fmt::format("cublasLt: the first product on device 99 is on a thread that uses device {}; "
                  "call cuda::use_device(99) first",
                  default_device().index));
}

TEST_CASE("a product's workspace on CUDA is known before it runs") {
  if (on_cpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Sizes& sizes : {Sizes{64, 48, 32}, Sizes{5, 7, 9}, Sizes{130, 3, 64}}) {
      for (const int64_t offset : {0, 1, 8}) {
        CAPTURE(dtype_name(dtype), sizes.m, sizes.n, sizes.k, offset);
        const Operands x(dtype, dtype, sizes, false, true, offset);
        ProductArgs args = x.args(true, false);
        MemoryLedger& ledger = memory_ledger();
        ledger.reset_peaks();
        const int64_t before = ledger.current(Category::workspace);
        cuda::multiply(context(), args);
        const int64_t taken = ledger.peak(Category::workspace) - before;
        CHECK(cuda::product_workspace_bytes(context(), args) == taken);
        // Only the alignment of the addresses matters here, so they need not point to memory.
        const int64_t address = 1024 + offset * dtype_size(dtype);
        args.c.data = reinterpret_cast<void*>(static_cast<intptr_t>(address));
        args.a.data = args.b.data = args.bias = args.c.data;
        CHECK(cuda::product_workspace_bytes(context(), args) == taken);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
#endif
