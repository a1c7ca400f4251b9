// Compares conv2d's results and gradients with float64. Bits must be equal in every call and at any
// address. The workspace must have exactly the size that conv2d_forward_workspace and
// conv2d_backward_workspace return (on CUDA: for tensors at multiples of 16 bytes).
#include "core/ops/conv2d.h"

#include "core/check_gradient.h"
#include "core/cuda.h"
#include "core/image_ops.h"
#include "core/ops.h"
#include "core/ops/copy.h"
#include "core/ops/fill.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Case {
  Shape x;       // (N, H, W, C)
  Shape weight;  // (O, C / groups, kh, kw)
  Conv2dOptions options = {};

  Conv2dSizes sizes() const { return conv2d_sizes(x, weight, options); }
  Shape y() const {
    const Conv2dSizes s = sizes();
    return {s.images, s.out_height, s.out_width, s.out_channels};
  }
};

std::vector<Case> make_cases() {
  std::vector<Case> all{
      {{1, 1, 1, 1}, {1, 1, 1, 1}},
      {{2, 5, 7, 3}, {4, 3, 3, 3}, {.padding = 1}},
      {{1, 9, 6, 3}, {16, 3, 3, 3}, {.padding = 1}},               // first layer for CIFAR images
      {{3, 8, 8, 16}, {16, 16, 3, 3}, {.padding = 1}},
      {{2, 7, 9, 16}, {32, 16, 3, 3}, {.stride = 2, .padding = 1}},
      {{2, 8, 8, 16}, {32, 16, 1, 1}, {.stride = 2}},
      {{3, 5, 4, 33}, {17, 33, 1, 1}},
      {{1, 15, 13, 3}, {8, 3, 7, 7}, {.stride = 2, .padding = 3}},  // first layer for ImageNet
      {{2, 9, 11, 5}, {7, 5, 3, 2}, {.stride = {2, 3}, .padding = {0, 2}, .dilation = {2, 1}}},
      {{1, 12, 10, 4}, {6, 4, 3, 3}, {.padding = 2, .dilation = {2, 3}}},
      {{2, 6, 5, 6}, {10, 3, 3, 3}, {.padding = 1, .groups = 2}},
      {{2, 7, 7, 32}, {64, 8, 3, 3}, {.stride = 2, .padding = 1, .groups = 4}},
      {{2, 9, 8, 16}, {16, 1, 3, 3}, {.padding = 1, .groups = 16}},           // depthwise
      {{1, 6, 9, 5}, {10, 1, 3, 5}, {.stride = {1, 2}, .padding = 2, .groups = 5}},
      {{2, 2, 3, 4}, {3, 4, 5, 7}, {.padding = {2, 3}}},             // a kernel larger than x
      {{1, 3, 3, 2}, {2, 2, 2, 2}, {.stride = 3, .padding = 4}},     // some windows are all padding
      {{1, 6, 6, 3}, {5, 3, 2, 2}, {.stride = 4}},                   // pixels that no window reads
  };
  if (!on_cpu()) return all;
  const Case of_the_cpu[] = {
      // In f32, these cases use Winograd's algorithm, with whole and partial tiles.
      {{1, 9, 18, 32}, {32, 32, 3, 3}, {.padding = 1}},
      {{1, 10, 13, 32}, {32, 32, 3, 3}, {.padding = 1}},
      {{2, 9, 15, 64}, {64, 64, 3, 3}, {.padding = 1}},
      {{3, 8, 12, 48}, {64, 48, 3, 3}, {.padding = 1}},
      {{129, 1, 1, 32}, {32, 32, 3, 3}, {.padding = 1}},
      {{40, 2, 2, 32}, {32, 32, 3, 3}, {.padding = 1}},
      // Winograd's algorithm needs padding 1, stride 1, dilation 1 and one group. Each of these
      // cases violates one of these conditions.
      {{3, 9, 10, 32}, {32, 32, 3, 3}},
      {{3, 9, 10, 32}, {32, 32, 3, 3}, {.padding = {1, 2}}},
      {{9, 9, 10, 32}, {32, 32, 3, 3}, {.stride = 2, .padding = 1}},
      {{4, 9, 10, 32}, {32, 32, 3, 3}, {.padding = 1, .dilation = 2}},
      {{3, 9, 10, 64}, {32, 32, 3, 3}, {.padding = 1, .groups = 2}},
  };
  all.insert(all.end(), std::begin(of_the_cpu), std::end(of_the_cpu));
  return all;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = make_cases();
  return all;
}

std::vector<size_t> case_numbers() {
  std::vector<size_t> numbers(cases().size());
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  return numbers;
}

struct Inputs {
  explicit Inputs(const Case& c, DType dtype = DType::f32)
      : x(random_tensor_of(dtype, c.x, 1, -1, 2)),
        weight(random_tensor_of(dtype, c.weight, 2)),
        bias(random_tensor_of(dtype, {c.weight[0]}, 3)),
        dy(random_tensor_of(dtype, c.y(), 4)) {}

  Tensor x, weight, bias, dy;
};

struct Reference {
  Values y, dx, dweight, dbias;
};

/// Computes y and the gradients by the definition, in float64.
Reference reference(const Case& c, const Inputs& in) {
  const Conv2dSizes s = c.sizes();
  const auto& [stride, padding, dilation, groups] = c.options;
  const Values x = values_of(in.x), weight = values_of(in.weight), bias = values_of(in.bias),
               dy = values_of(in.dy);
  Reference r{Values(dy.size()), Values(x.size()), Values(weight.size()), Values(bias.size())};
  const int64_t channels = s.group_channels();
  for (size_t at = 0; at < dy.size(); ++at) {
    const auto element = static_cast<int64_t>(at);
    const int64_t o = element % s.out_channels, column = element / s.out_channels % s.out_width;
    const int64_t row = element / s.out_channels / s.out_width % s.out_height;
    const int64_t image = element / s.out_channels / s.out_width / s.out_height;
    const int64_t first = o / (s.out_channels / groups) * channels;
    r.y[at] = bias[static_cast<size_t>(o)];
    r.dbias[static_cast<size_t>(o)] += dy[at];
    for (int64_t u = 0; u < s.kernel_height; ++u) {
      for (int64_t v = 0; v < s.kernel_width; ++v) {
        const int64_t i = row * stride.height + u * dilation.height - padding.height;
        const int64_t j = column * stride.width + v * dilation.width - padding.width;
        if (i < 0 || i >= s.height || j < 0 || j >= s.width) continue;
        for (int64_t k = 0; k < channels; ++k) {
          const auto pixel = static_cast<size_t>(
              ((image * s.height + i) * s.width + j) * s.channels + first + k);
          const auto w = static_cast<size_t>(
              ((o * channels + k) * s.kernel_height + u) * s.kernel_width + v);
          r.y[at] += x[pixel] * weight[w];
          r.dx[pixel] += dy[at] * weight[w];
          r.dweight[w] += dy[at] * x[pixel];
        }
      }
    }
  }
  return r;
}

struct Outputs {
  Tensor y, dx, dweight, dbias;

  bool operator==(const Outputs& other) const {
    return same_bits(y, other.y) && same_bits(dx, other.dx) && same_bits(dweight, other.dweight) &&
           same_bits(dbias, other.dbias);
  }
};

void compute(const Case& c, const Inputs& in, const Outputs& out) {
  const Context context = test_context();
  kernels::conv2d_forward(context, out.y, in.x, in.weight, in.bias, c.options);
  kernels::conv2d_backward(context, out.dx, out.dweight, out.dbias, in.dy, in.x, in.weight,
                           c.options);
}

/// Runs conv2d and its gradients. Each result begins `offset` elements after an aligned address.
Outputs run(const Case& c, const Inputs& in, int64_t offset = 0) {
  const auto like = [&](const Tensor& x) {
    const Tensor room = Tensor::full({x.elements() + offset}, NAN);
    return rounded_to(x.dtype(), room).flat(offset, offset + x.elements()).view(x.shape());
  };
  const Outputs out{like(in.dy), like(in.x), like(in.weight), like(in.bias)};
  compute(c, in, out);
  return out;
}

TEST_CASE("conv2d and its gradients equal float64", "[conv2d]") {
  const Case& c = cases()[GENERATE(from_range(case_numbers()))];
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Inputs in(c, dtype);
  const Reference expected = reference(c, in);
  const ThreadCountRestorer restore;
  if (on_cpu()) set_thread_count(GENERATE(1, 3, 8));  // each count divides the work differently
  const Outputs actual = run(c, in);
  INFO("x " << fmt::to_string(c.x) << ", weight " << fmt::to_string(c.weight));
  // Some kernels of cuDNN round the convolution before they add the bias.
  CHECK(relative_error(actual.y, expected.y) < tolerance(dtype, on_real_gpu() ? 2 : 1, 2e-6));
  CHECK(relative_error(actual.dx, expected.dx) < tolerance(dtype, 1, 2e-6));
  CHECK(relative_error(actual.dweight, expected.dweight) < tolerance(dtype, 1, 2e-6));
  CHECK(relative_error(actual.dbias, expected.dbias) < tolerance(dtype, 1, 2e-6));
}

TEST_CASE("conv2d passes the check of its gradients", "[conv2d]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  const auto check = [&](const Shape& x, const Shape& weight, const Conv2dOptions& convolution) {
    return check_gradient(
        [&](const auto& in) { return ops::conv2d(in[0], in[1], in[2], convolution); },
        {random_tensor(x, 1), random_tensor(weight, 2), random_tensor({weight[0]}, 3)}, options);
  };
  CHECK(check({2, 4, 5, 3}, {4, 3, 3, 3}, {.padding = 1}));
  CHECK(check({1, 5, 6, 4}, {6, 2, 3, 2}, {.stride = 2, .padding = {1, 0}, .groups = 2}));
}

TEST_CASE("conv2d has the same bits in every call, wherever its tensors lie", "[conv2d]") {
  const Case& c = cases()[GENERATE(from_range(case_numbers()))];
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const ThreadCountRestorer restore;
  set_thread_count(GENERATE(1, 2, 3));
  const Inputs in(c, dtype);
  const Outputs expected = run(c, in);
  CHECK(run(c, in) == expected);
  const int64_t offset = GENERATE(1, 8);  // cuDNN can access 8, but not 1
  Inputs moved = in;
  for (Tensor* tensor : {&moved.x, &moved.weight, &moved.bias, &moved.dy}) {
    const Tensor room = Tensor::empty({tensor->elements() + offset}, dtype);
    const Tensor there = room.flat(offset, offset + tensor->elements()).view(tensor->shape());
    kernels::copy(test_context(), there, *tensor);
    *tensor = there;
  }
  CHECK(run(c, moved, offset) == expected);
}

TEST_CASE("conv2d takes the workspace that it has announced, and frees it", "[conv2d]") {
  const Case& c = cases()[GENERATE(from_range(case_numbers()))];
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const bool has_bias = GENERATE(false, true), dx_wanted = GENERATE(false, true),
             dweight_wanted = GENERATE(false, true);
  const Inputs in(c, dtype);
  const Context context = test_context();
  const Tensor none, dx = Tensor::empty(c.x, dtype), dweight = Tensor::empty(c.weight, dtype),
                     dbias = Tensor::empty({c.weight[0]}, dtype), y = Tensor::empty(c.y(), dtype);
  const auto peak = [](const auto& body) {
    MemoryLedger& ledger = memory_ledger();
    const int64_t before = ledger.current(Category::workspace);
    ledger.reset_peaks();
    body();
    CHECK(ledger.current(Category::workspace) == before);
    return ledger.peak(Category::workspace) - before;
  };
  const auto forward = [&] {
    kernels::conv2d_forward(context, y, in.x, in.weight, has_bias ? in.bias : none, c.options);
  };
  const auto backward = [&] {
    kernels::conv2d_backward(context, dx_wanted ? dx : none, dweight_wanted ? dweight : none,
                             has_bias ? dbias : none, in.dy, dweight_wanted ? in.x : none,
                             dx_wanted ? in.weight : none, c.options);
  };
  const Conv2dGradients wanted{.x = dx_wanted, .weight = dweight_wanted, .bias = has_bias};
  const int64_t forward_bytes =
      kernels::conv2d_forward_workspace(context, c.sizes(), dtype, has_bias);
  const int64_t backward_bytes =
      kernels::conv2d_backward_workspace(context, c.sizes(), dtype, wanted);
  CHECK(peak(forward) == forward_bytes);
  CHECK(peak(backward) == backward_bytes);
}

TEST_CASE("conv2d computes only the gradients wanted, and announces the parameters it reads",
          "[conv2d]") {
  const bool x_trains = GENERATE(false, true), weight_trains = GENERATE(false, true);
  GatheredParameter x(random_tensor({2, 4, 4, 3}, 1)), weight(random_tensor({5, 3, 3, 3}, 2)),
      bias(random_tensor({5}, 3));
  x.tensor.leaf()->trainable = x_trains;
  weight.tensor.leaf()->trainable = weight_trains;
  const Tensor y = ops::conv2d(x.tensor, weight.tensor, bias.tensor, {.padding = 1});
  CHECK(x.uses == 1);
  CHECK(weight.uses == 1);
  CHECK(bias.uses == 1);
  backward_from(y, random_tensor(y.shape(), 4));
  CHECK(x.uses == (weight_trains ? 2 : 1));
  CHECK(weight.uses == (x_trains ? 2 : 1));
  CHECK(bias.uses == 1);
  CHECK(x.gradient().defined() == x_trains);
  CHECK(weight.gradient().defined() == weight_trains);
  CHECK(bias.gradient().defined());
}

TEST_CASE("conv2d without images has zero weight gradients", "[conv2d]") {
  const Tensor x = as_parameter(Tensor::empty({0, 4, 4, 3}));
  const Tensor weight = as_parameter(random_tensor({2, 3, 3, 3}, 1));
  const Tensor bias = as_parameter(random_tensor({2}, 2));
  const Tensor y = ops::conv2d(x, weight, bias);
  CHECK(y.shape() == Shape{0, 2, 2, 2});
  backward_from(y, Tensor::empty(y.shape()));
  CHECK(values_of(weight.leaf()->gradient) == Values(54, 0.0));
  CHECK(values_of(bias.leaf()->gradient) == Values(2, 0.0));
}

TEST_CASE("conv2d in a CUDA graph has the bits of a direct call", "[conv2d]") {
  if (on_cpu()) return;
  const Case& c = cases()[GENERATE(1, 5, 11, 12)];
  const Inputs in(c, GENERATE(from_range(float_dtypes())));
  const Outputs expected = run(c, in);
  const Outputs actual = run(c, in);
  const auto clear = [&] {
    for (const Tensor* tensor : {&actual.y, &actual.dx, &actual.dweight, &actual.dbias}) {
      kernels::fill(test_context(), *tensor, NAN);
    }
  };
  cuda::Graph graph(0, [&] { compute(c, in, actual); });
  for (int launch = 0; launch < 2; ++launch) {
    clear();
    graph.launch();
    CHECK(actual == expected);
  }
}

TEST_CASE("conv2d of a slice of a batch has the bits of a copy of the slice", "[conv2d]") {
  const Tensor batch = random_tensor({4, 5, 3, 3}, 1);
  const Tensor slice = ops::slice(batch, 1, 3);  // begins 180 bytes after the batch
  const Tensor copied = Tensor::empty(slice.shape());
  kernels::copy(test_context(), copied, slice);
  const auto run_on = [](const Tensor& x) {
    const Tensor weight = as_parameter(random_tensor({2, 3, 3, 3}, 2));
    const Tensor y = ops::conv2d(x, weight, {}, {.padding = 1});
    backward_from(y, random_tensor(y.shape(), 3));
    return std::pair(y, weight.leaf()->gradient);
  };
  const auto [y, dweight] = run_on(slice);
  const auto [expected_y, expected_dweight] = run_on(copied);
  CHECK(same_bits(y, expected_y));
  CHECK(same_bits(dweight, expected_dweight));
}

TEST_CASE("conv2d on CUDA takes workspace for a copy of a slice, and frees it", "[conv2d]") {
  if (on_cpu()) return;
  const Tensor x = random_tensor({49}, 1).flat(1, 49).view({1, 4, 4, 3});
  const Tensor weight = random_tensor({2, 3, 3, 3}, 2);
  const int64_t expected = kernels::conv2d_forward_workspace(
      test_context(), conv2d_sizes(x.shape(), weight.shape(), {}), DType::f32, false);
  MemoryLedger& ledger = memory_ledger();
  const int64_t before = ledger.current(Category::workspace);
  ledger.reset_peaks();
  (void)ops::conv2d(x, weight, {});
  CHECK(ledger.peak(Category::workspace) - before == expected + x.bytes());
  CHECK(ledger.current(Category::workspace) == before);
}

TEST_CASE("conv2d refuses shapes that do not fit, and names them", "[conv2d]") {
  using Catch::Matchers::ContainsSubstring;
  const Tensor x = random_tensor({2, 5, 4, 6}, 1), weight = random_tensor({8, 6, 3, 3}, 2);
  const auto refuses = [&](const Tensor& input, const Tensor& filter, const Tensor& bias,
                           const Conv2dOptions& options, const char* message) {
    CHECK_THROWS_WITH(ops::conv2d(input, filter, bias, options), ContainsSubstring(message));
  };
  refuses(random_tensor({5, 4, 6}, 1), weight, {}, {},
          "conv2d: x has shape [5, 4, 6], expected [N, H, W, C] with at least 1 x 1 pixels");
  refuses(x, random_tensor({8, 6, 3}, 1), {}, {},
          "conv2d: weight has shape [8, 6, 3], expected [O, C / groups, kh, kw]");
  refuses(x, random_tensor({8, 3, 3, 3}, 1), {}, {},
          "conv2d: weight has shape [8, 3, 3, 3], expected [O, 6, kh, kw] for 1 groups");
  refuses(x, weight, {}, {.groups = 4}, "conv2d: 4 groups, expected a divisor of the 6 channels");
  refuses(x, weight, {}, {.groups = 0}, "conv2d: 0 groups, expected at least 1");
  refuses(x, weight, {}, {.stride = {1, 0}}, "conv2d: stride is 1 x 0, expected 1 to 2147483647");
  refuses(x, weight, {}, {.padding = -1}, "conv2d: padding is -1 x -1, expected 0 to 2147483647");
  refuses(x, weight, {}, {.dilation = {1, int64_t{1} << 62}},
          "conv2d: dilation is 1 x 4611686018427387904, expected 1 to 2147483647");
  refuses(x, weight, {}, {.dilation = 2},
          "conv2d: the kernel's width covers 5 pixels, expected at most the 4 of x");
  refuses(x, weight, random_tensor({6}, 3), {}, "conv2d: bias has shape [6], expected [8]");
  refuses(x, random_tensor_of(DType::bf16, {8, 6, 3, 3}, 2), {}, {},
          "conv2d: weight has dtype bf16, expected f32");
  refuses(x, weight, random_tensor_of(DType::f16, {8}, 3), {},
          "conv2d: bias has dtype f16, expected f32");
}

}  // namespace
}  // namespace tessera::test
