// Tests that the cache keeps a bounded number of oneDNN's primitives, which are operations compiled
// for given sizes, and drops the least recently used primitives.
#include "core/cpu/primitive_cache.h"

#include "core/cpu/gemm.h"
#include "core/cpu/onednn_conv.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

using cpu::onednn::most_primitives;

TEST_CASE("the most recently used primitives are kept", "[cpu]") {
  struct Problem {
    int64_t size;
    bool operator==(const Problem&) const = default;
  };
  cpu::onednn::PrimitiveCache<Problem, int64_t> cache;
  int64_t made = 0;
  const auto find = [&](int64_t size) {
    const auto make = [&](const Problem& problem) {
      ++made;
      return problem.size * 10;
    };
    CHECK(cache.find({size}, make) == size * 10);
  };
  for (int64_t size = 0; size < most_primitives; ++size) find(size);
  find(0);  // the entry of size 1 is now the least recently used
  CHECK(made == most_primitives);
  find(most_primitives);
  CHECK(cache.size() == most_primitives);
  find(0);
  CHECK(made == most_primitives + 1);
  find(1);
  CHECK(made == most_primitives + 2);
  for (int64_t size = 0; size < 5 * most_primitives; ++size) find(size);
  CHECK(cache.size() == most_primitives);
}

TEST_CASE("a bounded number of products is kept, however many sizes there are", "[cpu]") {
  const int64_t sizes = most_primitives + 100;
  const Tensor x = random_tensor({sizes, 2}, 1), y = random_tensor({sizes, 2}, 2);
  for (int64_t m = 1; m <= sizes; ++m) {
    cpu::gemm({.m = m, .n = 2, .k = 2, .a = {x.raw(), 2}, .b = {x.raw(), 2}, .c = {y.raw(), 2}});
    REQUIRE(cpu::onednn::kept_products() <= most_primitives);
  }
  CHECK(cpu::onednn::kept_products() == most_primitives);
  CHECK(dnnl::get_primitive_cache_capacity() <= 2 * most_primitives);
}

TEST_CASE("a bounded number of convolutions is kept, however many sizes there are", "[cpu][slow]") {
  for (int64_t height = 1; height <= most_primitives + 20; ++height) {
    const Conv2dSizes sizes = conv2d_sizes({1, height, 1, 1}, {1, 1, 1, 1}, {});
    CHECK(cpu::onednn::conv_workspace_bytes({Conv2dPass::forward, sizes}) >= 0);
  }
  CHECK(cpu::onednn::kept_convolutions() == most_primitives);
}

}  // namespace
}  // namespace tessera::test
