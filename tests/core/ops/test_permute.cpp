// Compares permute's results element by element for every order of dimensions. Also tests
// gradients.
#include <algorithm>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

TEST_CASE("permute puts every element in its place", "[permute]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Shape shape{2, 3, 5, 4};
  const Tensor x = random_tensor_of(dtype, shape, 1);
  const Values in = values_of(x);
  std::vector<int> dims = {0, 1, 2, 3};
  do {
    const Tensor y = ops::permute(x, dims);
    Values expected(in.size());
    for (int64_t i = 0; i < x.elements(); ++i) {
      std::array<int64_t, 4> index{};
      int64_t rest = i, place = 0;
      for (int d = 3; d >= 0; --d) {
        index[static_cast<size_t>(d)] = rest % shape[d];
        rest /= shape[d];
      }
      for (const int dim : dims) place = place * shape[dim] + index[static_cast<size_t>(dim)];
      expected[static_cast<size_t>(place)] = in[static_cast<size_t>(i)];
    }
    for (int d = 0; d < 4; ++d) REQUIRE(y.size(d) == shape[dims[static_cast<size_t>(d)]]);
    CHECK(values_of(y) == expected);
  } while (std::next_permutation(dims.begin(), dims.end()));
}

TEST_CASE("permute: gradients, and shapes without elements or dimensions", "[permute]") {
  const auto operation = [](const auto& in) { return ops::permute(in[0], {2, 0, -2}); };
  CHECK(check_gradient(operation, {random_tensor({2, 3, 4}, 1)}));
  CHECK(ops::permute(random_tensor({0, 3}, 1), {1, 0}).shape() == Shape{3, 0});
  CHECK(values_of(ops::permute(Tensor::full({}, 2), {})) == Values{2});
}

TEST_CASE("permute refuses invalid arguments", "[permute]") {
  const Tensor x = random_tensor({2, 3}, 1);
  REQUIRE_THROWS_WITH(ops::permute(x, {0}), "permute: 1 dimensions are given for shape [2, 3]");
  REQUIRE_THROWS_WITH(ops::permute(x, {0, 2}), "permute: there is no dimension 2 in shape [2, 3]");
  REQUIRE_THROWS_WITH(ops::permute(x, {1, -1}), "permute: dimension -1 is given twice");
  REQUIRE_THROWS_WITH(ops::permute(random_indices({2, 3}, 1, 9), {1, 0}),
                      "permute: dtype i32 is not supported, expected f32, bf16 or f16");
}

}  // namespace
}  // namespace tessera::test
