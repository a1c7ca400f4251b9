// That oneDNN keeps to the memory that it is given, where a version of it did not.
#include "core/onednn_conv.h"

#include <algorithm>
#include <vector>

#include "core/context.h"
#include "tests/support/catch.h"

namespace tessera::test {
namespace {

TEST_CASE("a strided 1x1 convolution of few channels stays within its workspace", "[cpu]") {
  constexpr std::byte canary{0x5a};
  constexpr int64_t room = 1 << 16;
  for (const int64_t channels : {1, 3, 7, 8, 12, 15, 16}) {
    for (const int64_t side : {8, 17, 56}) {
      const Conv2dSizes sizes =
          conv2d_sizes({1, side, side, channels}, {8, channels, 1, 1}, {.stride = 2});
      const cpu::onednn::ConvArgs args{Conv2dPass::weight_gradient, sizes, DType::f32, false};
      const int64_t bytes = cpu::onednn::conv_workspace_bytes(args);
      const Tensor memory = Tensor::empty({bytes + room}, DType::u8, Device{});
      auto* const workspace = static_cast<std::byte*>(memory.raw());
      std::fill_n(workspace, bytes + room, canary);
      const Tensor x = Tensor::zeros({sizes.x_elements()}, DType::f32, Device{});
      const Tensor y = Tensor::zeros({sizes.y_elements()}, DType::f32, Device{});
      const Tensor weight = Tensor::zeros({sizes.weight_elements()}, DType::f32, Device{});
      cpu::onednn::convolve(args, {x.raw(), weight.raw(), y.raw(), nullptr, workspace});
      CAPTURE(channels, side, bytes);
      CHECK(std::count(workspace + bytes, workspace + bytes + room, canary) == room);
    }
  }
}

}  // namespace
}  // namespace tessera::test
