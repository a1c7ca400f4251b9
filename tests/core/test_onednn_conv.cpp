// Tests which algorithm a convolution uses, and that oneDNN stays within its workspace. One version
// of oneDNN wrote beyond the workspace.
#include "core/cpu/onednn_conv.h"

#include <algorithm>

#include <dnnl.hpp>

#include "core/context.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

void check_workspace(Conv2dPass pass, const Conv2dSizes& sizes) {
  constexpr std::byte canary{0x5a};
  constexpr int64_t room = 1 << 16;
  const cpu::onednn::ConvArgs args{pass, sizes, DType::f32, false};
  const int64_t bytes = cpu::onednn::conv_workspace_bytes(args);
  const Tensor memory = Tensor::empty({bytes + room}, DType::u8, Device{});
  auto* const workspace = static_cast<std::byte*>(memory.raw());
  std::fill_n(workspace, bytes + room, canary);
  const Tensor x = random_tensor({sizes.x_elements()}, 1);
  const Tensor y = random_tensor({sizes.y_elements()}, 2);
  const Tensor weight = random_tensor({sizes.weight_elements()}, 3);
  cpu::onednn::convolve(args, {x.raw(), weight.raw(), y.raw(), nullptr, workspace});
  CAPTURE(sizes.images, sizes.channels, sizes.out_channels, sizes.height, sizes.width, bytes);
  CHECK(std::count(workspace + bytes, workspace + bytes + room, canary) == room);
}

TEST_CASE("a strided 1x1 convolution of few channels stays within its workspace", "[cpu]") {
  for (const int64_t channels : {1, 3, 7, 8, 12, 15, 16}) {
    for (const int64_t side : {8, 17, 56}) {
      check_workspace(Conv2dPass::weight_gradient,
                      conv2d_sizes({1, side, side, channels}, {8, channels, 1, 1}, {.stride = 2}));
    }
  }
}

// Only version 2 of oneDNN has Winograd's algorithm, and only on CPUs with AVX-512.
TEST_CASE("Winograd's algorithm is used where it pays, and has room for images", "[cpu]") {
  // ONEDNN_MAX_CPU_ISA may forbid oneDNN to use AVX-512, so the test asks oneDNN, not the CPU.
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto avx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  if (DNNL_VERSION_MAJOR != 2 || (isa & avx512) != avx512) {
    TESSERA_SKIP("version 2 of oneDNN has it, on AVX-512");
  }
  const auto bytes = [](Conv2dPass pass, const Conv2dSizes& sizes) {
    return cpu::onednn::conv_workspace_bytes({pass, sizes, DType::f32, false});
  };
  for (const auto pass : {Conv2dPass::forward, Conv2dPass::input_gradient}) {
    const Conv2dSizes fitting = conv2d_sizes({8, 16, 16, 32}, {32, 32, 3, 3}, {.padding = 1});
    const int64_t images = 4 * (fitting.x_elements() + fitting.y_elements());
    CHECK(bytes(pass, fitting) > images);
    CHECK(bytes(pass, conv2d_sizes({8, 16, 16, 32}, {32, 32, 3, 3}, {})) < images);
    CHECK(bytes(pass, conv2d_sizes({8, 16, 16, 32}, {16, 32, 3, 3}, {.padding = 1})) < images);
  }
  const Conv2dSizes fitting = conv2d_sizes({8, 16, 16, 64}, {64, 64, 3, 3}, {.padding = 1});
  CHECK(bytes(Conv2dPass::weight_gradient, fitting) >
        4 * (fitting.x_elements() + fitting.y_elements()));
}

TEST_CASE("Winograd's algorithm stays within its workspace", "[cpu]") {
  const ThreadCountRestorer restore;
  set_thread_count(GENERATE(1, 3, 8));
  const auto pass = GENERATE(Conv2dPass::forward, Conv2dPass::input_gradient,
                             Conv2dPass::weight_gradient);
  for (const int64_t channels : {64, 80}) {
    for (const int64_t out_channels : {64, 96}) {
      for (const Shape& image : {Shape{5, 9}, Shape{14, 14}, Shape{33, 30}}) {
        check_workspace(pass, conv2d_sizes({9, image[0], image[1], channels},
                                           {out_channels, channels, 3, 3}, {.padding = 1}));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
