// Tests the measurement of cuBLASLt's algorithms for products. Products that use a table of
// measured algorithms, instead of the first choice of cuBLASLt's heuristic, must stay correct.
#ifdef TESSERA_WITH_CUDA
#include "core/product_tuning.h"

#include <algorithm>

#include "core/product.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

constexpr int64_t m = 12, n = 20, k = 28;

/// A batch of two products. a and b begin `offset` elements after an aligned address.
struct Operands {
  explicit Operands(int64_t offset)
      : a(random_tensor_of(DType::f32, {2 * m * k + offset}, 1).flat(offset, offset + 2 * m * k)),
        b(random_tensor_of(DType::f32, {2 * n * k + offset}, 2).flat(offset, offset + 2 * n * k)),
        c(Tensor::zeros({2 * m * n})) {}

  void multiply() const {
    cuda::multiply(test_context(), {.batch = 2,
                                    .m = m,
                                    .n = n,
                                    .k = k,
                                    .a = {a.raw(), k, 1, m * k},
                                    .b = {b.raw(), 1, k, n * k},
                                    .c = {c.raw(), n, m * n}});
  }

  Tensor a, b, c;
};

bool is_ours(const cuda::ProductShape& shape) {
  return shape.batch == 2 && shape.m == m && shape.n == n && shape.k == k;
}

}  // namespace

TEST_CASE("a build with CUDA finds cuBLASLt, also where there is no GPU") {
  CHECK(cuda::product_library_version() >= 120000);
}

TEST_CASE("products use the algorithms of a table, and stay correct") {
  if (on_cpu()) TESSERA_SKIP("the CPU's products have no such algorithms");
  const int device = default_device().index;
  const Operands aligned(0), others(1);
  aligned.multiply();
  others.multiply();
  std::vector<cuda::ProductShape> shapes = cuda::computed_products(device);
  std::erase_if(shapes, [](const cuda::ProductShape& shape) { return !is_ours(shape); });
  REQUIRE(shapes.size() == 2);
  CHECK(shapes[0].b.transposed);
  CHECK_FALSE(shapes[0].a.transposed);
  CHECK(std::min(shapes[0].a.alignment, shapes[1].a.alignment) == 4);
  const Values expected = values_of(others.c);

  std::vector<cuda::TunedProduct> products;
  for (const cuda::ProductShape& shape : shapes) {
    const cuda::MeasuredProduct measured = cuda::measure_product(test_context(), shape);
    CHECK(measured.fastest.shape == shape);
    CHECK(measured.proposals >= 1);
    CHECK(measured.fastest_us > 0);
    CHECK(measured.fastest_us <= measured.first_us);
    products.push_back(measured.fastest);
  }
  cuda::use_tuned_products(device, products);
  others.multiply();
  const Values tuned = values_of(others.c);
  for (size_t i = 0; i < tuned.size(); ++i) {
    CHECK(tuned[i] == Catch::Approx(expected[i]).margin(1e-4));
  }
  others.multiply();
  CHECK(values_of(others.c) == tuned);
}

}  // namespace tessera::test
#endif
