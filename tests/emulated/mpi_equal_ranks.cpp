// Tests that a difference between the ranks' GPUs or libraries is named, and that all ranks use
// rank 0's algorithms for convolutions, even if their cuDNN libraries propose algorithms in
// different orders.
#include "core/convolution_choices.h"
#include "core/ops/conv2d.h"
#include "dist/device_choice.h"
#include "dist/machine.h"
#include "dist/shared_choices.h"
#include "emulated/control.h"
#include "tests/support/catch.h"
#include "tests/support/tensors.h"
#include "tests/support/training.h"

namespace tessera::test {
namespace {

TEST_CASE("the first difference between two ranks' machines is named, with both ranks") {
  const dist::Machine machine{.gpu = "NVIDIA H200, compute capability 9.0",
                              .multiprocessors = 132,
                              .cublas_lt = 130100,
                              .cudnn = 91300,
                              .nccl = 22809};
  CHECK(dist::Machine::of_text(machine.text()) == machine);
  CHECK(dist::first_difference({machine}).empty());
  CHECK(dist::first_difference({machine, machine, machine}).empty());
  const auto difference = [&](const auto& change) {
    dist::Machine other = machine;
    change(other);
    CHECK(dist::Machine::of_text(other.text()) == other);
    return dist::first_difference({machine, machine, other});
  };
  CHECK(difference([](auto& m) { m.gpu = "NVIDIA H100, compute capability 9.0"; }) ==
        "rank 2 has NVIDIA H100, compute capability 9.0, rank 0 has NVIDIA H200, compute "
        "capability 9.0");
  CHECK(difference([](auto& m) { m.multiprocessors = 114; }) ==
        "rank 2 has 114 multiprocessors, rank 0 has 132 multiprocessors");
  CHECK(difference([](auto& m) { m.cublas_lt = 130200; }) ==
        "rank 2 has cuBLASLt 130200, rank 0 has cuBLASLt 130100");
  CHECK(difference([](auto& m) { m.cudnn = 0; }) == "rank 2 has no cuDNN, rank 0 has cuDNN 91300");
  CHECK(difference([](auto& m) { m.nccl = 22700; }) ==
        "rank 2 has NCCL 22700, rank 0 has NCCL 22809");
}

/// Returns the algorithm chosen for a pass over `images` images. Each run of a test case must use a
/// different number of images, because the process keeps every choice until it ends.
cuda::ConvolutionChoice choice_for(int64_t images, Conv2dPass pass) {
  const Conv2dSizes sizes = conv2d_sizes({images, 6, 6, 4}, {8, 4, 3, 3}, {});
  const Context context = test_context();
  (void)kernels::conv2d_forward_workspace(context, sizes, DType::bf16, false);
  (void)kernels::conv2d_backward_workspace(context, sizes, DType::bf16, {});
  for (const auto& choice : cuda::convolution_choices(default_device().index)) {
    if (choice.sizes == sizes && choice.pass == pass) return choice;
  }
  FAIL("no algorithm was chosen");
  return {};
}

TEST_CASE("all ranks use rank 0's choice of a convolution's algorithm") {
  const dist::World world = job_world();
  emulated::reverse_convolution_proposals(world.rank > 0);
  const auto pass = GENERATE(Conv2dPass::forward, Conv2dPass::input_gradient,
                             Conv2dPass::weight_gradient);
  const int64_t images = 30 + static_cast<int64_t>(pass);
  const auto own = choice_for(images, pass);
  CHECK((own.algorithm == 1) == (world.rank == 0));  // only rank 0 chooses algorithm 1 by itself
  dist::share_convolution_choices(world);
  const auto shared = choice_for(images, pass);
  CHECK(shared.algorithm == 1);
  emulated::reverse_convolution_proposals(false);
}

TEST_CASE("an algorithm that a rank's cuDNN lacks for a convolution is refused") {
  auto choice = choice_for(3, Conv2dPass::forward);
  choice.algorithm = 7;
  CHECK_THROWS_WITH(cuda::use_convolution_choices(default_device().index, {choice}),
                    Catch::Matchers::ContainsSubstring(
                        "cuDNN: algorithm 7 for the forward of a convolution in bf16 of images "
                        "[3, 6, 6, 4] with filters [8, 4, 3, 3]"));
  CHECK(choice_for(3, Conv2dPass::forward).algorithm != 7);
}

}  // namespace
}  // namespace tessera::test
