// Tests which of the algorithms proposed by cuDNN a convolution uses.
#include <map>

#include "core/convolution_choices.h"
#include "core/ops/conv2d.h"
#include "tests/support/catch.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

Context device_context() { return current_context({DeviceType::cuda, 0}); }

/// Returns the chosen algorithm of each pass. The emulated cuDNN first proposes algorithms that are
/// not deterministic or that round f32; these must not be chosen.
std::map<Conv2dPass, cuda::ConvolutionChoice> choices(const Conv2dSizes& sizes, DType dtype) {
  (void)kernels::conv2d_forward_workspace(device_context(), sizes, dtype, false);
  (void)kernels::conv2d_backward_workspace(device_context(), sizes, dtype, {});
  std::map<Conv2dPass, cuda::ConvolutionChoice> result;
  for (const auto& choice : cuda::convolution_choices(0)) {
    if (choice.sizes == sizes && choice.dtype == dtype) result[choice.pass] = choice;
  }
  return result;
}

TEST_CASE("a convolution takes the first deterministic algorithm, without rounding operands") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  const auto found = choices(conv2d_sizes({2, 8, 8, 4}, {8, 4, 3, 3}, {}), dtype);
  REQUIRE(found.size() == 3);
  for (const auto& [pass, choice] : found) {
    CHECK(choice.algorithm == 1);
    CHECK(choice.math == (dtype == DType::f32 ? 3 : 1));  // FMA, or tensor cores
  }
}

TEST_CASE("where this one is unsupported, another is taken: 3 channels, groups, dilation") {
  const Conv2dSizes unusual[] = {
      conv2d_sizes({2, 8, 8, 3}, {8, 3, 3, 3}, {}),
      conv2d_sizes({2, 8, 8, 4}, {8, 2, 3, 3}, {.groups = 2}),
      conv2d_sizes({2, 8, 8, 4}, {8, 4, 3, 3}, {.dilation = 2}),
  };
  for (const Conv2dSizes& sizes : unusual) {
    const auto found = choices(sizes, DType::bf16);
    REQUIRE(found.size() == 3);
    CHECK(found.at(Conv2dPass::forward).algorithm == 0);
    CHECK(found.at(Conv2dPass::input_gradient).algorithm == 5);
    CHECK(found.at(Conv2dPass::weight_gradient).algorithm == 5);
  }
}

TEST_CASE("a convolution without such an algorithm is refused, listing those proposed") {
  const Conv2dSizes sizes = conv2d_sizes({2, 40, 8, 4}, {8, 4, 33, 1}, {});
  CHECK_THROWS_WITH(
      kernels::conv2d_forward_workspace(device_context(), sizes, DType::f32, false),
      ContainsSubstring("cuDNN: no deterministic algorithm for the forward of a convolution in f32 "
                        "of images [2, 40, 8, 4] with filters [8, 4, 33, 1], stride 1 x 1") &&
          ContainsSubstring("1 CUDNN_STATUS_NOT_SUPPORTED, 0 CUDNN_STATUS_NOT_SUPPORTED"));
  CHECK_THROWS_WITH(
      kernels::conv2d_backward_workspace(device_context(), sizes, DType::bf16, {}),
      ContainsSubstring("no deterministic algorithm for the gradient of the input") &&
          ContainsSubstring("0 is not deterministic, 1 CUDNN_STATUS_NOT_SUPPORTED"));
}

}  // namespace
}  // namespace tessera::test
