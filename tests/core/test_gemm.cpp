#include "core/cpu/gemm.h"

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/ops/copy.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Sizes {
  int64_t m, n, k;
};

/// The operands of a product, each transposed or not.
struct Operands {
  Operands(DType dtype, DType c_dtype, Sizes s, bool a_is_transposed, bool b_is_transposed)
      : sizes(s),
        transpose_a(a_is_transposed),
        transpose_b(b_is_transposed),
        a(random_tensor_of(dtype, {s.m, s.k}, 1)),
        b(random_tensor_of(dtype, {s.k, s.n}, 2)),
        c(random_tensor_of(c_dtype, {s.m, s.n}, 3)),
        bias(random_tensor_of(dtype, {s.n}, 4)) {}

  Sizes sizes;
  bool transpose_a, transpose_b;
  Tensor a, b, c, bias;

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
};

using Multiply = void (*)(const ProductArgs&, const cpu::GemmOptions&);

TEST_CASE("gemm equals float64 for every way its operands are stored", "[gemm][cpu]") {
  const auto sizes =
      GENERATE(Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{64, 1, 33}, Sizes{1, 65, 16},
               Sizes{130, 70, 129}, Sizes{17, 31, 1}, Sizes{5, 64, 3000}, Sizes{2, 3, 9000});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const bool rounds = GENERATE(false, true);
  const bool transpose_a = GENERATE(false, true);
  const bool transpose_b = GENERATE(false, true);
  const bool accumulate = GENERATE(false, true);
  const bool with_bias = GENERATE(false, true);
  for (const Multiply multiply : {cpu::gemm, cpu::widened_gemm}) {
    const DType c_dtype = rounds ? dtype : DType::f32;
    const Operands operands(dtype, c_dtype, sizes, transpose_a, transpose_b);
    const Values expected = operands.expected(with_bias, accumulate);
    multiply(operands.args(with_bias, accumulate), {});
    CHECK(relative_error(operands.c, expected) < tolerance(c_dtype));
  }
}

TEST_CASE("gemm rounds once: c = round(c + (product + bias))", "[gemm][cpu]") {
  const auto sizes =
      GENERATE(Sizes{3, 5, 7}, Sizes{64, 48, 96}, Sizes{130, 70, 129}, Sizes{7, 33, 3000});
  const DType dtype = GENERATE(from_range(half_dtypes()));
  const bool transpose_a = GENERATE(false, true);
  const bool transpose_b = GENERATE(false, true);
  const bool accumulate = GENERATE(false, true);
  const bool with_bias = GENERATE(false, true);
  for (const Multiply multiply : {cpu::gemm, cpu::widened_gemm}) {
    const Operands wide(dtype, DType::f32, sizes, transpose_a, transpose_b);
    const Operands narrow(dtype, dtype, sizes, transpose_a, transpose_b);
    const Values before = values_of(narrow.c);
    multiply(wide.args(with_bias, false), {});
    multiply(narrow.args(with_bias, accumulate), {});
    const Tensor sum = Tensor::empty(wide.c.shape());
    for (int64_t i = 0; i < sum.elements(); ++i) {
      const float start = accumulate ? static_cast<float>(before[static_cast<size_t>(i)]) : 0.0f;
      sum.data<float>()[i] = start + wide.c.data<float>()[i];
    }
    CHECK(same_bits(narrow.c, rounded_to(dtype, sum)));
  }
}

TEST_CASE("gemm reads heads out of a packed tensor and broadcasts a shared operand",
          "[gemm][cpu]") {
  // qkv is (T, 3, H, D). Multiplies each head's q by the same head's k or, if shared, by head 0's
  // k.
  const int64_t tokens = 9, heads = 3, size = 5, row = 3 * heads * size;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const bool shared = GENERATE(false, true);
  const Tensor qkv = random_tensor_of(dtype, {tokens, row}, 1);
  const Values values = values_of(qkv);
  const auto at = [&](int64_t token, int64_t part, int64_t head, int64_t i) {
    return values[static_cast<size_t>(token * row + (part * heads + head) * size + i)];
  };
  Values expected;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < tokens; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < size; ++d) sum += at(i, 0, h, d) * at(j, 1, shared ? 0 : h, d);
        expected.push_back(sum);
      }
    }
  }
  const auto* packed = static_cast<const std::byte*>(qkv.raw());
  for (const Multiply multiply : {cpu::gemm, cpu::widened_gemm}) {
    const Tensor scores = Tensor::full({heads, tokens, tokens}, -7.0f);
    multiply({.batch = heads,
              .m = tokens,
              .n = tokens,
              .k = size,
              .a = {packed, row, 1, size},
              .b = {packed + heads * size * dtype_size(dtype), 1, row, shared ? 0 : size},
              .c = {scores.raw(), tokens, tokens * tokens},
              .dtype = dtype},
             {});
    CHECK(relative_error(scores, expected) < 1e-6);
  }
}

TEST_CASE("gemm of size zero does nothing, or gives zero or the bias", "[gemm][cpu]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const DType c_dtype = GENERATE_COPY(DType::f32, dtype);
  const Tensor c = rounded_to(c_dtype, Tensor::full({2, 3}, 5.0f));
  const Tensor bias = rounded_to(dtype, Tensor::from<float>({3}, {1, 2, 3}));
  const auto multiply = [&](ProductArgs args) {
    args.c = {c.raw(), 3};
    args.dtype = dtype;
    args.c_dtype = c_dtype;
    cpu::gemm(args);
    CHECK(cpu::gemm_workspace_bytes(args) == 0);
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

TEST_CASE("gemm gives the same bits wherever its operands lie", "[gemm][cpu]") {
  const ThreadCountRestorer restore;
  set_thread_count(GENERATE(1, 2));
  const auto [m, n, k] = GENERATE(Sizes{100, 96, 130}, Sizes{64, 384, 65}, Sizes{7, 33, 1000});
  const bool transpose_a = GENERATE(false, true);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor a = random_tensor_of(dtype, {m * k}, 1);
  const Tensor b = random_tensor_of(dtype, {k * n}, 2);
  const auto moved = [](const Tensor& x, int64_t offset) {
    const Tensor room = Tensor::empty({x.elements() + offset}, x.dtype());
    const Tensor result = room.flat(offset, offset + x.elements());
    kernels::copy(current_context({}), result, x);
    return result;
  };
  Tensor first;
  for (int64_t offset = 0; offset <= 16; ++offset) {
    const Tensor moved_a = moved(a, offset), moved_b = moved(b, offset);
    const Tensor c = moved(Tensor::zeros({m * n}, dtype), offset);
    cpu::gemm({.m = m,
               .n = n,
               .k = k,
               .a = {moved_a.raw(), transpose_a ? 1 : k, transpose_a ? m : 1},
               .b = {moved_b.raw(), n},
               .c = {c.raw(), n},
               .dtype = dtype,
               .c_dtype = dtype});
    if (offset == 0) first = c;
    CHECK(same_bits(c, first));
  }
}

TEST_CASE("gemm inside a parallel region has the bits of one thread", "[gemm][cpu]") {
  const int64_t size = 65;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor a = random_tensor_of(dtype, {size, size}, 1);
  const Tensor b = random_tensor_of(dtype, {size, size}, 2);
  const Tensor expected = Tensor::empty({size, size}, dtype);
  const auto multiply = [&](const Tensor& c) {
    cpu::gemm({.m = size,
               .n = size,
               .k = size,
               .a = {a.raw(), size},
               .b = {b.raw(), size},
               .c = {c.raw(), size},
               .dtype = dtype,
               .c_dtype = dtype},
              {.threads = 1});
  };
  multiply(expected);
  std::vector<Tensor> results;
  for (int i = 0; i < 24; ++i) results.push_back(Tensor::empty({size, size}, dtype));
#pragma omp parallel for num_threads(3)
  for (int i = 0; i < 24; ++i) multiply(results[static_cast<size_t>(i)]);
  for (const Tensor& result : results) CHECK(same_bits(result, expected));
}

TEST_CASE("gemm's workspace has the announced size, and may be the caller's", "[gemm][cpu]") {
  const ThreadCountRestorer restore;
  set_thread_count(GENERATE(1, 2));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const DType c_dtype = GENERATE_COPY(DType::f32, dtype);
  const auto [m, n, k] =
      GENERATE(Sizes{1, 1, 1}, Sizes{33, 70, 129}, Sizes{256, 384, 64}, Sizes{3, 5, 9000});
  const int64_t batch = GENERATE(1, 3);
  const bool transposed = GENERATE(false, true);
  const bool shared = transposed, extra = transposed;
  const Tensor a = random_tensor_of(dtype, {batch, m, k}, 1);
  const Tensor b = random_tensor_of(dtype, {batch, k, n}, 2);
  const Tensor bias = random_tensor_of(dtype, {n}, 3);
  const Tensor c = Tensor::zeros({batch, m, n}, c_dtype);
  ProductArgs args{.batch = batch,
                   .m = m,
                   .n = n,
                   .k = k,
                   .a = {nullptr, transposed ? 1 : k, transposed ? m : 1, m * k},
                   .b = {nullptr, transposed ? 1 : n, transposed ? k : 1, shared ? 0 : k * n},
                   .c = {nullptr, n, m * n},
                   .bias = extra ? bias.raw() : nullptr,
                   .accumulate = extra,
                   .dtype = dtype,
                   .c_dtype = c_dtype};
  const int64_t before = memory_ledger().current(Category::workspace);
  memory_ledger().reset_peaks();
  const auto held = [&] { return memory_ledger().peak(Category::workspace) - before; };
  const int64_t bytes = cpu::gemm_workspace_bytes(args);
  CHECK(held() == 0);
  args.a.data = a.raw();
  args.b.data = b.raw();
  args.c.data = c.raw();
  const Tensor room = Tensor::empty({bytes}, DType::u8);
  cpu::gemm(args, {.workspace = room.raw()});
  CHECK(held() == 0);
  cpu::gemm(args);
  CHECK(held() == bytes);
  if (!cpu::has_fast_gemm(dtype)) CHECK(bytes >= (m + n) * k * 4);
}

TEST_CASE("gemm's workspace is counted on its device", "[gemm][cpu]") {
  const Device second{DeviceType::cpu, 1};
  const Operands operands(DType::f16, DType::f16, {8, 8, 8}, false, false);
  const ProductArgs args = operands.args(false, false);
  memory_ledger().reset_peaks();
  memory_ledger(second).reset_peaks();
  const int64_t host = memory_ledger().current(Category::workspace);
  cpu::gemm(args, {.device = second});
  CHECK(memory_ledger(second).peak(Category::workspace) == cpu::gemm_workspace_bytes(args));
  CHECK(memory_ledger().peak(Category::workspace) == host);
}

TEST_CASE("f16 products overflow only where c is f16", "[gemm][cpu]") {
  const Tensor x = rounded_to(DType::f16, Tensor::full({1}, 256.0f));
  const Tensor narrow = Tensor::zeros({1}, DType::f16), wide = Tensor::zeros({1});
  ProductArgs args{.m = 1,
                   .n = 1,
                   .k = 1,
                   .a = {x.raw(), 1},
                   .b = {x.raw(), 1},
                   .c = {narrow.raw(), 1},
                   .dtype = DType::f16,
                   .c_dtype = DType::f16};
  cpu::gemm(args);
  args.c = {wide.raw(), 1};
  args.c_dtype = DType::f32;
  cpu::gemm(args);
  CHECK(values_of(narrow) == Values{HUGE_VAL});
  CHECK(values_of(wide) == Values{65536});
}

TEST_CASE("which products are fast depends on the CPU", "[gemm][cpu]") {
  CHECK(cpu::has_fast_gemm(DType::f32));
  CHECK_FALSE(cpu::has_fast_gemm(DType::f16));
  CHECK_FALSE(cpu::has_fast_gemm(DType::i32));
#ifdef __x86_64__
  // These environment variables may forbid oneDNN to use some of the CPU's instructions.
  if (std::getenv("ONEDNN_MAX_CPU_ISA") || std::getenv("DNNL_MAX_CPU_ISA")) return;
  CHECK(cpu::has_fast_gemm(DType::bf16) == (__builtin_cpu_supports("avx512bf16") != 0));
#endif
}

TEST_CASE("gemm refuses invalid arguments, and names the failed call of oneDNN", "[gemm][cpu]") {
  const Tensor x = Tensor::full({4, 4}, 1.0f);
  ProductArgs bad{.m = 4, .n = 4, .k = 4, .a = {x.raw(), -4}, .b = {x.raw(), 4}, .c = {x.raw(), 4}};
  CHECK_THROWS_WITH(cpu::gemm(bad), Catch::Matchers::ContainsSubstring("oneDNN: dnnl::"));
  bad.c_dtype = DType::bf16;
  CHECK_THROWS_WITH(cpu::gemm(bad),
                    "gemm: operands in f32 and a result in bf16, expected a result in f32 or in "
                    "the operands' dtype");
  bad.dtype = DType::i32;
  CHECK_THROWS_WITH(cpu::gemm(bad), "gemm: dtype i32 is not a floating-point type");
}

}  // namespace
}  // namespace tessera::test
