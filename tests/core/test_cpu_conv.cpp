// Tests the two algorithms for convolutions on the CPU: Winograd's, and oneDNN's direct sums. Their
// results must agree. Neither may write beyond its workspace, as one version of oneDNN did.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/context.h"
#include "core/cpu/onednn_conv.h"
#include "core/cpu/winograd.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

namespace onednn = cpu::onednn;
namespace winograd = cpu::winograd;

struct Algorithm {
  int64_t (*workspace_bytes)(const onednn::ConvArgs&);
  void (*convolve)(const onednn::ConvArgs&, const onednn::ConvMemory&);
};
constexpr Algorithm direct{onednn::conv_workspace_bytes, onednn::convolve};
constexpr Algorithm by_winograd{winograd::workspace_bytes, winograd::convolve};

/// Computes a pass with random inputs and, in the forward, a bias. Checks that memory behind the
/// workspace is unchanged. Returns the result.
std::vector<float> compute(const Algorithm& algorithm, Conv2dPass pass, const Conv2dSizes& sizes) {
  constexpr std::byte canary{0x5a};
  constexpr int64_t room = 1 << 16;
  const bool has_bias = pass == Conv2dPass::forward;
  const onednn::ConvArgs args{pass, sizes, DType::f32, has_bias};
  const int64_t bytes = algorithm.workspace_bytes(args);
  const Tensor memory = Tensor::empty({bytes + room}, DType::u8, Device{});
  auto* const workspace = static_cast<std::byte*>(memory.raw());
  std::fill_n(workspace, bytes + room, canary);
  const Tensor x = random_tensor({sizes.x_elements()}, 1);
  const Tensor y = random_tensor({sizes.y_elements()}, 2);
  const Tensor weight = random_tensor({sizes.weight_elements()}, 3);
  const Tensor bias = random_tensor({sizes.out_channels}, 4);
  algorithm.convolve(args, {x.raw(), weight.raw(), y.raw(), has_bias ? bias.raw() : nullptr,
                            workspace});
  CAPTURE(sizes.images, sizes.channels, sizes.out_channels, sizes.height, sizes.width, bytes);
  CHECK(std::count(workspace + bytes, workspace + bytes + room, canary) == room);
  const auto values =
      (pass == Conv2dPass::forward ? y : pass == Conv2dPass::input_gradient ? x : weight)
          .values<float>();
  return {values.begin(), values.end()};
}

TEST_CASE("a strided 1x1 convolution of few channels stays within its workspace", "[cpu]") {
  for (const int64_t channels : {1, 3, 7, 8, 12, 15, 16}) {
    for (const int64_t side : {8, 17, 56}) {
      compute(direct, Conv2dPass::weight_gradient,
              conv2d_sizes({1, side, side, channels}, {8, channels, 1, 1}, {.stride = 2}));
    }
  }
}

TEST_CASE("Winograd's algorithm is used where it applies and is faster", "[cpu]") {
  const auto suits = [](const Shape& x, int64_t out_channels, const Conv2dOptions& options,
                        Conv2dPass pass, DType dtype = DType::f32) {
    const Shape weight{out_channels, x[3] / options.groups, 3, 3};
    return winograd::suits({pass, conv2d_sizes(x, weight, options), dtype, false});
  };
  const Shape x{8, 16, 16, 64};
  for (const auto pass : {Conv2dPass::forward, Conv2dPass::input_gradient,
                          Conv2dPass::weight_gradient}) {
    CHECK(suits(x, 64, {.padding = 1}, pass));
    CHECK_FALSE(suits(x, 64, {.padding = 1}, pass, DType::bf16));
    CHECK_FALSE(suits(x, 64, {}, pass));
    CHECK_FALSE(suits(x, 64, {.padding = {1, 2}}, pass));
    CHECK_FALSE(suits(x, 64, {.stride = 2, .padding = 1}, pass));
    CHECK_FALSE(suits(x, 64, {.padding = 1, .dilation = 2}, pass));
    CHECK_FALSE(suits(x, 64, {.padding = 1, .groups = 2}, pass));
    CHECK_FALSE(suits(x, 72, {.padding = 1}, pass));   // 72 is no multiple of 16
    // The algorithm needs at least half as many pixels as channels. 32 pixels are too few for 80.
    CHECK(suits({1, 4, 8, 64}, 64, {.padding = 1}, pass));
    CHECK_FALSE(suits({1, 4, 8, 64}, 80, {.padding = 1}, pass));
  }
  CHECK_FALSE(winograd::suits({Conv2dPass::forward,
                               conv2d_sizes(x, {64, 64, 5, 5}, {.padding = 1}), DType::f32,
                               false}));
}

TEST_CASE("Winograd's algorithm agrees with direct sums", "[cpu]") {
  const ThreadCountRestorer restore;
  set_thread_count(GENERATE(1, 3, 40));
  const auto pass = GENERATE(Conv2dPass::forward, Conv2dPass::input_gradient,
                             Conv2dPass::weight_gradient);
  // The shapes give whole and partial tiles, images smaller than a tile, and more tiles than are
  // transformed and multiplied in one round. In rounds of more than 512 tiles (the last shape), a
  // product that adds to its result needs more scratch memory than a product that overwrites it.
  for (const Shape& x : {Shape{9, 5, 9, 16}, Shape{9, 14, 14, 64}, Shape{9, 33, 30, 80},
                         Shape{200, 1, 2, 64}, Shape{140, 4, 3, 48}, Shape{23, 32, 32, 16}}) {
    for (const int64_t out_channels : {16, 96}) {
      const Conv2dSizes sizes = conv2d_sizes(x, {out_channels, x[3], 3, 3}, {.padding = 1});
      REQUIRE(winograd::suits({pass, sizes, DType::f32, false}));
      const std::vector<float> expected = compute(direct, pass, sizes);
      const std::vector<float> actual = compute(by_winograd, pass, sizes);
      float largest = 0;
      double difference = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        difference = larger_difference(difference, std::abs(expected[i] - actual[i]));
      }
      CAPTURE(x, out_channels);
      // In the weight gradient, a direct sum over 9 x 33 x 30 pixels is itself off by up to 1e-5.
      CHECK(difference <= 1.5e-5f * largest);
    }
  }
}

}  // namespace
}  // namespace tessera::test
