#include "core/ops/copy.h"
#include "tests/support/catch.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("copy copies every element and no other", "[copy]") {
  const int64_t size = GENERATE(0, 1, 17, 256, 40001);
  const Tensor x = random_tensor({size}, 1), room = Tensor::full({size + 2}, 5);
  kernels::copy(test_context(), room.flat(1, size + 1), x);
  REQUIRE(same_bits(room.flat(1, size + 1), x));
  REQUIRE(room.values<float>().front() == 5);
  REQUIRE(room.values<float>().back() == 5);
}

TEST_CASE("copy takes any dtype", "[copy]") {
  const Tensor x = Tensor::from<int64_t>({3}, {1, -2, int64_t{1} << 40});
  const Tensor y = Tensor::zeros({3}, DType::i64);
  kernels::copy(test_context(), y, x);
  REQUIRE(same_bits(y, x));
}

TEST_CASE("copy refuses invalid arguments", "[copy]") {
  REQUIRE_THROWS_WITH(kernels::copy(test_context(), Tensor::empty({4}), Tensor::empty({2, 3})),
                      "copy: the source is f32 [2, 3], expected f32 [4]");
}
