#include "core/ops/cross_entropy.h"
#include "core/ops/linear_cross_entropy.h"

#include "core/check_gradient.h"
#include "core/cpu/gemm.h"
#include "core/ops/copy.h"
#include "core/ops/matmul.h"
#include "core/ops/scale.h"
#include "tests/support/catch.h"
#include "tests/support/cross_entropy_reference.h"
#include "tests/support/precision.h"

namespace tessera::test {
namespace {

struct Case {
  int64_t rows, channels, vocabulary;
};

DType logits_dtype(DType dtype) { return ops::logits_dtype(dtype, test_context().device); }
bool gradient_in_forward(DType dtype) {
  return ops::gradient_in_forward(dtype, test_context().device);
}

void check_against_reference(DType dtype, float loss_scale, int64_t rows, int64_t channels,
                             int64_t vocabulary, int64_t chunk_rows = 0) {
  const Tensor x = as_parameter(random_tensor_of(dtype, {1, rows, channels}, 1, -2, 2));
  const Tensor weight = as_parameter(random_tensor_of(dtype, {vocabulary, channels}, 2, -1, 1));
  const Tensor targets = random_indices({1, rows}, 3, vocabulary);
  const Tensor loss = ops::linear_cross_entropy(x, weight, targets, chunk_rows);
  REQUIRE(loss.shape() == Shape{});
  REQUIRE(loss.dtype() == DType::f32);
  backward(loss, loss_scale);
  const Values logits =
      product(values_of(x), values_of(weight), rows, vocabulary, channels, false, true);
  const CrossEntropyReference expected(logits, targets, loss_scale);
  // Rounding to bf16 changes a logit by up to 1/256 of its magnitude. `logit_error` is the largest
  // such change. The loss of a row may be off by about as much. The gradient of a logit contains
  // exp(logit), so `logit_error` is about the gradient's relative error.
  const bool rounded = logits_dtype(dtype) == DType::bf16;
  double largest = 0;
  for (const double logit : logits) largest = std::max(largest, std::fabs(logit));
  const double logit_error = rounded ? largest / 256 : 0;
  CHECK(std::fabs(loss.item() - expected.loss) <= 1e-5 * expected.loss + 1e-6 + logit_error);
  // The gradient of the logits is rounded. The gradients of x and of the weight are products with
  // it, and are rounded too. With bf16 logits, x's gradient is rounded a third time, when the
  // backward multiplies it by the gradient of the loss.
  const double bound = tolerance(dtype, rounded ? 3 : 2, 5e-5) + logit_error;
  CHECK(relative_error(x.leaf()->gradient, product(expected.dlogits, values_of(weight), rows,
                                                   channels, vocabulary)) < bound);
  CHECK(relative_error(weight.leaf()->gradient, product(expected.dlogits, values_of(x), vocabulary,
                                                        channels, rows, true)) < bound);
}

TEST_CASE("linear_cross_entropy and its gradients equal float64") {
  const auto [rows, channels, vocabulary] =
      GENERATE(Case{1, 1, 1}, Case{1, 5, 3}, Case{33, 17, 65}, Case{64, 8, 1000});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  check_against_reference(dtype, 2.0f, rows, channels, vocabulary);
}

TEST_CASE("linear_cross_entropy with a loss scale keeps gradients that f16 would round away") {
  // Each probability is about 1e-5. For a token that is not the target, the gradient of the logit
  // is the probability divided by the 100 rows: about 1e-7. f16 needs a loss scale to represent
  // this value precisely.
  const int64_t rows = 100, channels = 3, vocabulary = 80000;
  const Tensor x = as_parameter(random_tensor_of(DType::f16, {rows, channels}, 1));
  const Tensor weight = as_parameter(random_tensor_of(DType::f16, {vocabulary, channels}, 2));
  const Tensor targets = Tensor::zeros({rows}, DType::i32);
  const auto gradient = [&](float loss_scale) {
    backward(ops::linear_cross_entropy(x, weight, targets), loss_scale);
    Values values = values_of(weight.leaf()->gradient);
    for (double& value : values) value /= loss_scale;
    return values;
  };
  const CrossEntropyReference expected(
      product(values_of(x), values_of(weight), rows, vocabulary, channels, false, true), targets,
      1.0);
  const Values exact = product(expected.dlogits, values_of(x), vocabulary, channels, rows, true);
  const auto error = [&](const Values& values) {
    double largest = 0, difference = 0;
    // Skips row 0 of the weight's gradient. All targets are token 0, so this row has far larger
    // gradients than the others.
    for (size_t i = static_cast<size_t>(channels); i < values.size(); ++i) {
      largest = std::max(largest, std::fabs(exact[i]));
      difference = larger_difference(difference, std::fabs(values[i] - exact[i]));
    }
    return difference / largest;
  };
  CHECK(error(gradient(1.0f)) > 0.05);
  CHECK(error(gradient(65536.0f)) < tolerance(DType::f16, 2));
}

TEST_CASE("linear_cross_entropy is as precise for large logits as for small ones") {
  const DType dtype = GENERATE(DType::f32, DType::f16);  // bf16 logits on CUDA would be rounded
  const int64_t chunk_rows = GENERATE(0, 3);
  CAPTURE(dtype_name(dtype), chunk_rows);
  const int64_t rows = 8, vocabulary = 70;
  // The logits are integers, and the product of the second channels adds the same power of two to
  // each of them. All sums are exact, so neither the loss nor the weight's gradient may change.
  const auto with_second_channel = [&](int64_t count, float value) {
    const Tensor result = integer_logits(DType::f32, {count, 2}, 0);
    for (int64_t i = 1; i < 2 * count; i += 2) result.data<float>()[i] = value;
    return rounded_to(dtype, result);
  };
  const Tensor x = with_second_channel(rows, 1);
  const Tensor targets = random_indices({rows}, 2, vocabulary);
  const auto run = [&](float shift) {
    const Tensor weight = as_parameter(with_second_channel(vocabulary, shift));
    const Tensor loss = ops::linear_cross_entropy(x, weight, targets, chunk_rows);
    backward(loss, 64.0f);
    return std::pair(loss.detach(), weight.leaf()->gradient);
  };
  const auto [loss, gradient] = run(0);
  const auto [large_loss, large_gradient] = run(32768);
  CHECK(same_bits(large_loss, loss));
  CHECK(same_bits(large_gradient, gradient));
}

TEST_CASE("linear_cross_entropy passes the check of its gradients") {
  const Tensor targets = random_indices({2, 4}, 3, 7);
  CHECK(check_gradient(
      [&](const auto& in) { return ops::linear_cross_entropy(in[0], in[1], targets); },
      {random_tensor({2, 4, 5}, 1), random_tensor({7, 5}, 2)}));
}

TEST_CASE("linear_cross_entropy in several chunks equals float64") {
  const int64_t vocabulary = GENERATE(1088, 4001);  // rows of logits without and with padding
  const DType dtype = GENERATE(from_range(float_dtypes()));
  check_against_reference(dtype, dtype == DType::f16 ? 4096.0f : 2.0f, 85, 2, vocabulary, 41);
}

TEST_CASE("linear_cross_entropy sums a 16-bit weight gradient over chunks in f32, rounded once") {
  const DType dtype = GENERATE(from_range(half_dtypes()));
  const int64_t vocabulary = 4001, channels = 2, chunk = 20, rows = 2 * chunk + 1;
  const Tensor x = random_tensor_of(dtype, {rows, channels}, 1);
  const Tensor weight = as_parameter(random_tensor_of(dtype, {vocabulary, channels}, 2));
  const Tensor targets = Tensor::zeros({rows}, DType::i32);
  backward(ops::linear_cross_entropy(x, weight, targets, chunk), 1024.0f);

  const Context context = test_context();
  const float share = 1.0f / static_cast<float>(rows);
  const int64_t columns = ops::logits_columns(vocabulary, dtype, context.device);
  const Tensor padded = rounded_to(dtype, Tensor::zeros({columns, channels}));
  kernels::copy(context, padded.rows(0, vocabulary), weight);
  const Tensor sum = Tensor::zeros({gradient_in_forward(dtype) ? columns : vocabulary, channels});
  const Tensor dloss = Tensor::full({}, 1024.0f);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t end = std::min(begin + chunk, rows), count = end - begin;
    const Tensor part = x.rows(begin, end);
    const Shape shape{count, ops::logits_stride(vocabulary)};
    const Tensor logits = Tensor::empty(shape, logits_dtype(dtype));
    const Tensor losses = Tensor::empty({count}), normalizers = Tensor::empty({count, 2});
    const Tensor dlogits =
        gradient_in_forward(dtype) ? logits : rounded_to(dtype, Tensor::zeros(shape));
    const Tensor part_targets = targets.rows(begin, end);
    kernels::matmul(context, logits, part, padded, MatmulArgs{.transpose_b = true});
    if (gradient_in_forward(dtype)) {
      kernels::cross_entropy_in_place(context, losses, logits, part_targets, vocabulary, share);
    } else {
      kernels::cross_entropy_forward(context, losses, normalizers, logits, part_targets,
                                     vocabulary);
      kernels::cross_entropy_backward(context, dlogits, dloss, logits, normalizers, part_targets,
                                      vocabulary, share);
    }
    kernels::matmul(context, sum, dlogits, part,
                    MatmulArgs{.transpose_a = true, .accumulate = true});
  }
  if (gradient_in_forward(dtype)) kernels::scale_by(context, sum, sum, dloss);
  CHECK(same_bits(weight.leaf()->gradient, rounded_to(dtype, sum.rows(0, vocabulary))));
}

TEST_CASE("linear_cross_entropy pads rows of logits, and sizes chunks for the device") {
  const Device gpu{DeviceType::cuda, 0};
  for (const int64_t vocabulary : {1, 64, 65, 50257, 151936}) {
    const int64_t stride = ops::logits_stride(vocabulary);
    CHECK(stride % 64 == 0);
    CHECK(stride >= vocabulary);
    CHECK(stride < vocabulary + 64);
  }
  CHECK(ops::logits_stride(50257) == 50304);
  CHECK(ops::logits_columns(50257, DType::bf16, gpu) == 50304);
  CHECK(ops::logits_columns(50257, DType::f32, gpu) == 50257);
  CHECK(ops::logits_columns(50257, DType::bf16, Device{}) == 50257);
  for (const DType dtype : float_dtypes()) {
    CHECK(ops::logits_chunk_rows(256, dtype, Device{}) == 65536);
    CHECK(ops::logits_chunk_rows(50257, dtype, Device{}) == 333);
    CHECK(ops::logits_chunk_rows(20'000'000, dtype, Device{}) == 1);
    // On a GPU, the logits of bf16 operands are bf16, and all other logits are f32. So a chunk of a
    // given number of bytes has twice as many rows of bf16 logits.
    const int64_t per_row = dtype == DType::bf16 ? 2 : 1;
    CHECK(ops::logits_chunk_rows(256, dtype, gpu) == 65536 * per_row);
    CHECK(ops::logits_chunk_rows(50257, dtype, gpu) == 8192 * per_row);
    const int64_t rows_of_2_gib = (int64_t{1} << 29) * per_row / 151936;
    CHECK(ops::logits_chunk_rows(151936, dtype, gpu) == rows_of_2_gib);
    CHECK(ops::logits_chunk_rows(int64_t{1} << 40, dtype, gpu) == 1);
  }
}

int64_t peak_of(const Tensor& x, const Tensor& weight, const Tensor& targets, int64_t chunk,
                bool with_backward) {
  memory_ledger().reset_peaks();
  const int64_t before = memory_ledger().current_total();
  const Tensor loss = ops::linear_cross_entropy(x, weight, targets, chunk);
  if (with_backward) backward(loss);
  return memory_ledger().peak_total() - before;
}

TEST_CASE("linear_cross_entropy never holds more than one chunk of logits") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  if (!cpu::has_fast_gemm(dtype)) TESSERA_SKIP("bf16 products of this CPU widen the weight");
  const int64_t vocabulary = 50000, channels = 4, chunk = 101, rows = 3 * chunk;
  const int64_t elements = chunk * ops::logits_stride(vocabulary);
  const int64_t logits = elements * dtype_size(logits_dtype(dtype));
  const Tensor x = as_parameter(random_tensor_of(dtype, {rows, channels}, 1));
  const Tensor weight = as_parameter(random_tensor_of(dtype, {vocabulary, channels}, 2));
  const Tensor targets = random_indices({rows}, 3, vocabulary);
  const int64_t gradients = (rows + vocabulary) * channels * dtype_size(dtype);
  // `extra` is for large buffers besides the logits and the gradients of x and the weight. In f32
  // it is 0, because the gradient of the logits overwrites the logits. In bf16, the weight's
  // gradient is summed in an f32 buffer. If the backward computes the bf16 gradients, the gradient
  // of the logits has its own buffer.
  const int64_t extra = dtype == DType::f32           ? 0
                        : gradient_in_forward(dtype) ? vocabulary * channels * 4
                                                     : elements * 2 + vocabulary * channels * 4;
  // `small` is for the loss and normalizer of each row, and for packed operands of products.
  const int64_t small = int64_t{4} << 20;
  CHECK(peak_of(x, weight, targets, chunk, true) <= logits + gradients + extra + small);
  const NoGrad no_grad;
  CHECK(peak_of(x, weight, targets, chunk, false) <= logits + small);
}

TEST_CASE("linear_cross_entropy's backward announces the parameters it reads") {
  const bool x_trains = GENERATE(false, true);
  const bool weight_trains = GENERATE(true, false);
  const bool one_chunk = GENERATE(true, false);
  if (!x_trains && !weight_trains) return;
  const int64_t vocabulary = 50;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  GatheredParameter x(random_tensor_of(dtype, {7, 2}, 1));
  GatheredParameter weight(random_tensor_of(dtype, {vocabulary, 2}, 2));
  x.tensor.leaf()->trainable = x_trains;
  weight.tensor.leaf()->trainable = weight_trains;
  const Tensor loss =
      ops::linear_cross_entropy(x.tensor, weight.tensor, random_indices({7}, 3, vocabulary),
                                one_chunk ? 0 : 3);
  CHECK(x.uses == 1);
  CHECK(weight.uses == 1);
  backward(loss);
  // If the forward has computed the gradients, backward reads neither x nor the weight. Otherwise,
  // with several chunks, backward computes the logits again, so it reads both x and the weight.
  // With one chunk, backward reads x only for the weight's gradient, and the weight only for x's
  // gradient.
  const bool in_forward = gradient_in_forward(dtype);
  CHECK(x.uses == (!in_forward && (weight_trains || !one_chunk) ? 2 : 1));
  CHECK(weight.uses == (!in_forward && (x_trains || !one_chunk) ? 2 : 1));
  CHECK(x.gradient().defined() == x_trains);
  CHECK(weight.gradient().defined() == weight_trains);
}

TEST_CASE("linear_cross_entropy keeps its logits only if a backward can follow") {
  const Tensor x = random_tensor({100, 8}, 1);
  const Tensor weight = as_parameter(random_tensor({1000, 8}, 2));
  const Tensor targets = random_indices({100}, 3, 1000);
  const auto kept = [&] {
    const int64_t before = memory_ledger().current_total();
    const Tensor loss = ops::linear_cross_entropy(x, weight, targets);
    return memory_ledger().current_total() - before;
  };
  CHECK(kept() >= 100 * 1000 * 4);
  const NoGrad no_grad;
  CHECK(kept() < 1000);
}

TEST_CASE("linear_cross_entropy adds to the gradient of a tied weight") {
  const Tensor x = random_tensor({6, 8}, 1);
  const Tensor targets = random_indices({6}, 3, 10);
  const auto gradient = [&](bool with_loss, bool with_use) {
    const Tensor weight = as_parameter(random_tensor({10, 8}, 2));
    const Tensor use = ops::sum(ops::mul(weight, random_tensor({10, 8}, 4)));
    const Tensor loss = ops::linear_cross_entropy(x, weight, targets);
    backward(with_loss && with_use ? ops::add(loss, use) : with_loss ? loss : use);
    return values_of(weight.leaf()->gradient);
  };
  const Values both = gradient(true, true), loss = gradient(true, false),
               use = gradient(false, true);
  for (size_t i = 0; i < both.size(); ++i) CHECK(both[i] == Catch::Approx(loss[i] + use[i]));
}

TEST_CASE("linear_cross_entropy refuses invalid arguments") {
  using Catch::Matchers::ContainsSubstring;
  const Tensor x = random_tensor({6, 8}, 1);
  const Tensor weight = random_tensor({256, 8}, 2);
  std::vector<int32_t> values{0, 1, 2, 3, 4, 300};
  CHECK_THROWS_WITH(
      ops::linear_cross_entropy(x, weight, Tensor::from<int32_t>({6}, values)),
      ContainsSubstring("linear_cross_entropy: target 300 at position 5 is outside the vocabulary "
                        "of 256"));
  CHECK_THROWS_WITH(
      ops::linear_cross_entropy(x, random_tensor({256, 9}, 2), random_indices({6}, 3, 256)),
      ContainsSubstring("linear_cross_entropy: x has shape [6, 8], expected [..., 9]"));
  CHECK_THROWS_WITH(ops::linear_cross_entropy(x, weight, random_indices({5}, 3, 256)),
                    ContainsSubstring("targets have shape [5], expected [6]"));
  CHECK_THROWS_WITH(ops::linear_cross_entropy(x, random_tensor({8}, 1), random_indices({6}, 3, 8)),
                    ContainsSubstring("weight has shape [8], expected [V, C]"));
  CHECK_THROWS_WITH(ops::linear_cross_entropy(x, Tensor::empty({0, 8}), random_indices({6}, 3, 8)),
                    ContainsSubstring("weight has shape [0, 8], expected [V, C] with V > 0"));
  CHECK_THROWS_WITH(ops::linear_cross_entropy(x, weight, random_indices({6}, 3, 256), -1),
                    ContainsSubstring("linear_cross_entropy: chunks of -1 rows"));
}

}  // namespace
}  // namespace tessera::test
