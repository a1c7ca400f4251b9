#include "core/image_ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Image {
  int64_t images, height, width, channels;
};

TEST_CASE("flatten and its gradient have torch's order of elements", "[flatten]") {
  const auto [n, h, w, c] = GENERATE(Image{1, 1, 1, 1}, Image{2, 3, 5, 7}, Image{3, 1, 1, 17},
                                     Image{2, 5, 3, 1}, Image{1, 1, 4, 16}, Image{0, 2, 2, 3});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = as_parameter(random_tensor_of(dtype, {n, h, w, c}, 1));
  const Tensor dy = random_tensor_of(dtype, {n, c * h * w}, 2);
  const Tensor y = ops::flatten(x);
  REQUIRE(y.shape() == Shape{n, c * h * w});
  backward_from(y, dy);
  const Values in = values_of(x), out = values_of(y), grad = values_of(dy);
  const Values dx = values_of(x.leaf()->gradient);
  bool same = true;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t image = i / (h * w * c), pixel = i / c % (h * w), channel = i % c;
    const auto to = static_cast<size_t>((image * c + channel) * h * w + pixel);
    const auto from = static_cast<size_t>(i);
    same = same && out[to] == in[from] && dx[from] == grad[to];
  }
  REQUIRE(same);
}

TEST_CASE("flatten of one-pixel images copies nothing", "[flatten]") {
  const Tensor x = random_tensor({3, 1, 1, 5}, 1);
  CHECK(ops::flatten(x).raw() == x.raw());
}

TEST_CASE("flatten refuses invalid arguments", "[flatten]") {
  CHECK_THROWS_WITH(ops::flatten(random_tensor({2, 3, 4}, 1)),
                    "flatten: x has shape [2, 3, 4], expected (N, H, W, C)");
}

}  // namespace
}  // namespace tessera::test
