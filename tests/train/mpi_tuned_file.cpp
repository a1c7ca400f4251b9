// Tests that a table of algorithms that cuBLASLt refuses is used on no rank.
#include <algorithm>

#include "core/cuda.h"
#include "core/product_tuning.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"
#include "train/tuned_file.h"

namespace tessera::test {
namespace {

using Catch::Matchers::StartsWith;

TEST_CASE("a GPU's table with an algorithm that cuBLASLt refuses changes nothing") {
  dist::World world = job_world();
  const Device device = world.communicator->device();
  if (device.is_cpu()) TESSERA_SKIP("the CPU's products have no such algorithms");
  const int64_t size = 72;
  const cuda::ProductShape shape{.m = size,
                                 .n = size,
                                 .k = size,
                                 .a = {.stride = size},
                                 .b = {.stride = size},
                                 .c = {.stride = size}};
  const std::string text =
      train::tuned_text({cuda::device_name(device.index), cuda::product_library_version()},
                        {{.fastest = {.shape = shape, .algorithm = {}}}});
  const std::string before = train::tuned_table();
  const std::string expected = "the table: the algorithm for the product of 72 x 72 x 72: ";
  CHECK_THAT(train::try_tuned_text("the table", text, world), StartsWith(expected));
  CHECK_THAT(message_of<InputError>([&] { train::use_tuned_text("the table", text, world); }),
             StartsWith(expected));
  CHECK(train::tuned_table() == before);
  CHECK(std::ranges::count(cuda::computed_products(device.index), shape) == 0);
}

}  // namespace
}  // namespace tessera::test
