// Tests parameters before and after they have memory, and their initial values.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/random.h"
#include "nn/parameter.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::nn;
using tessera::test::ThreadCountRestorer;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<float> drawn(const Initializer& initializer, int64_t count, uint64_t seed = 1,
                         const std::string& name = "weight", int64_t begin = 0) {
  std::vector<float> values(static_cast<size_t>(count), NAN);
  initialize(initializer, seed, name, begin, values);
  return values;
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;

  explicit Moments(const std::vector<float>& values) {
    const auto n = static_cast<double>(values.size());
    for (const float value : values) mean += value / n;
    double third = 0;
    double fourth = 0;
    for (const float value : values) {
      const double centred = value - mean;
      variance += centred * centred / n;
      third += centred * centred * centred / n;
      fourth += centred * centred * centred * centred / n;
    }
    skewness = third / std::pow(variance, 1.5);
    kurtosis = fourth / (variance * variance);
  }
};

}  // namespace

TEST_CASE("a parameter has a shape and no memory") {
  const int64_t before = memory_ledger().current_total();
  const Parameter parameter({1000, 1000}, Initializer::normal(1));
  CHECK(memory_ledger().current_total() == before);
  CHECK(parameter.defined());
  CHECK(parameter.shape() == Shape{1000, 1000});
  CHECK(parameter.elements() == 1000000);
  CHECK(parameter.dtype() == DType::f32);
  CHECK(Parameter({2}, Initializer::zeros(), DType::bf16).dtype() == DType::bf16);
  CHECK_FALSE(parameter.tensor().allocated());
  CHECK(parameter.tensor().requires_grad());
  CHECK_FALSE(parameter.gradient().defined());
  CHECK_THROWS_WITH(parameter.tensor().values<float>(), ContainsSubstring("no memory yet"));
}

TEST_CASE("copies are the same parameter; equal parameters are not") {
  const Parameter a({2}, Initializer::ones());
  const Parameter b = a;
  const Parameter c({2}, Initializer::ones());
  CHECK(a.same(b));
  CHECK_FALSE(a.same(c));
  Tensor tensor = a.tensor();
  tensor.attach(allocate(8, Category::parameters), 0);
  CHECK(b.tensor().allocated());
  CHECK(&a.leaf() == &b.leaf());
}

TEST_CASE("an undefined parameter has an undefined tensor") {
  const Parameter none;
  CHECK_FALSE(none.defined());
  CHECK_FALSE(none.tensor().defined());
  CHECK_THROWS_AS(none.shape(), Error);
}

TEST_CASE("constant initializers fill with their value") {
  CHECK(drawn(Initializer::constant(2.5f), 3) == std::vector<float>{2.5f, 2.5f, 2.5f});
  CHECK(drawn(Initializer::zeros(), 2) == std::vector<float>{0, 0});
  CHECK(drawn(Initializer::ones(), 2) == std::vector<float>{1, 1});
  CHECK(drawn(Initializer::ones(), 0).empty());
}

TEST_CASE("an element's value is a function of seed, name and element alone") {
  constexpr int64_t count = 3001;  // enough for several threads
  for (const auto& initializer : {Initializer::normal(0.5f), Initializer::uniform(0.5f)}) {
    const auto whole = drawn(initializer, count);
    CHECK(drawn(initializer, count) == whole);
    CHECK(drawn(initializer, count, 2) != whole);
    CHECK(drawn(initializer, count, 1, "bias") != whole);

    // The values must not depend on how the elements are divided into ranges. These ranges have
    // different lengths, and begin at even and odd elements.
    std::vector<float> pieces;
    for (int64_t begin = 0, length = 1; begin < count; begin += length, length = length * 3 % 17) {
      const int64_t size = std::min(length, count - begin);
      const auto piece = drawn(initializer, size, 1, "weight", begin);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    CHECK(pieces == whole);

    // The values must not depend on the number of threads.
    const ThreadCountRestorer restorer;
    for (const int threads : {2, 3}) {
      set_thread_count(threads);
      CHECK(drawn(initializer, count) == whole);
    }

    // Elements beyond 2^32 do not repeat the first elements' values.
    CHECK(drawn(initializer, 4, 1, "weight", int64_t{1} << 33) !=
          std::vector<float>(whole.begin(), whole.begin() + 4));
    auto sorted = whole;
    std::sort(sorted.begin(), sorted.end());
    CHECK(std::unique(sorted.begin(), sorted.end()) - sorted.begin() > count - 5);
  }
}

TEST_CASE("normal values have the moments of a normal distribution") {
  constexpr int64_t count = 400000;
  const auto n = static_cast<double>(count);
  const auto values = drawn(Initializer::normal(0.02f), count);
  const Moments moments(values);
  // The bounds are five standard errors each.
  CHECK(std::fabs(moments.mean) < 5 * 0.02 / std::sqrt(n));
  CHECK(std::fabs(std::sqrt(moments.variance) / 0.02 - 1) < 5 / std::sqrt(2 * n));
  CHECK(std::fabs(moments.skewness) < 5 * std::sqrt(6 / n));
  CHECK(std::fabs(moments.kurtosis - 3) < 5 * std::sqrt(24 / n));
  // Values are drawn in pairs. The two values of a pair, and neighbours of different pairs, are
  // uncorrelated.
  double within = 0;
  double across = 0;
  for (size_t i = 0; i + 2 < values.size(); i += 2) {
    within += double{values[i]} * values[i + 1];
    across += double{values[i + 1]} * values[i + 2];
  }
  const double limit = 5 * 0.02 * 0.02 * std::sqrt(n / 2);
  CHECK(std::fabs(within) < limit);
  CHECK(std::fabs(across) < limit);
  // 2.7 of a thousand normal values are more than three standard deviations from the mean.
  const auto beyond = std::count_if(values.begin(), values.end(),
                                    [](float value) { return std::fabs(value) > 0.06f; });
  CHECK(std::fabs(static_cast<double>(beyond) / n - 0.0027) < 0.0005);
}

TEST_CASE("uniform values fill their interval evenly") {
  constexpr int64_t count = 400000;
  const auto n = static_cast<double>(count);
  const auto values = drawn(Initializer::uniform(2), count);
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  CHECK(*least > -2);
  CHECK(*least < -1.999f);
  CHECK(*greatest <= 2);
  CHECK(*greatest > 1.999f);
  const Moments moments(values);
  CHECK(std::fabs(moments.mean) < 5 * 2 / std::sqrt(3 * n));
  CHECK(std::fabs(moments.variance / (4.0 / 3) - 1) < 5 * std::sqrt(0.8 / n));
  CHECK(std::fabs(moments.kurtosis - 1.8) < 0.02);
}

TEST_CASE("Xavier and He initializers have the bounds and deviations of their papers") {
  const Initializer xavier = Initializer::xavier_uniform(3, 5);
  CHECK(xavier.kind == Initializer::Kind::uniform);
  CHECK(xavier.value == Catch::Approx(std::sqrt(6.0 / 8)));
  const Initializer he = Initializer::he_normal(8);
  CHECK(he.kind == Initializer::Kind::normal);
  CHECK(he.value == Catch::Approx(0.5));
  CHECK_THROWS_AS(Initializer::xavier_uniform(0, 0), Error);
  CHECK_THROWS_AS(Initializer::he_normal(0), Error);
}

TEST_CASE("a parameter's dtype can change only while it has no memory") {
  const Parameter parameter({2, 3}, Initializer::ones());
  const Parameter copy = parameter;
  const Tensor tensor = parameter;
  parameter.set_dtype(DType::bf16);
  CHECK(copy.dtype() == DType::bf16);
  CHECK(tensor.dtype() == DType::bf16);
  CHECK(tensor.bytes() == 12);
  CHECK_THROWS_WITH(parameter.set_dtype(DType::i32),
                    ContainsSubstring("dtype is i32, expected f32, bf16 or f16"));
  Tensor handle = parameter.tensor();
  handle.attach(allocate(12, Category::parameters), 0);
  parameter.set_dtype(DType::bf16);  // no change
  CHECK_THROWS_WITH(parameter.set_dtype(DType::f32),
                    ContainsSubstring("shape [2, 3] and dtype bf16 already has memory"));
  // A gradient buffer means that an optimizer manages the parameter, so its dtype is fixed.
  handle.attach(nullptr, 0);
  parameter.leaf().gradient_buffer = [] { return Tensor(); };
  CHECK_THROWS_AS(parameter.set_dtype(DType::f32), Error);
  parameter.leaf().gradient_buffer = nullptr;
  parameter.set_dtype(DType::f32);
  CHECK(copy.dtype() == DType::f32);
}

TEST_CASE("a parameter can be frozen until an optimizer manages it") {
  const Parameter parameter({2}, Initializer::ones());
  const Parameter copy = parameter;
  CHECK(parameter.trainable());
  CHECK(parameter.tensor().requires_grad());
  copy.set_trainable(false);
  CHECK_FALSE(parameter.trainable());
  CHECK_FALSE(parameter.tensor().requires_grad());
  parameter.set_trainable(true);
  CHECK(copy.tensor().requires_grad());
  parameter.leaf().name = "w";
  parameter.leaf().gradient_buffer = [] { return Tensor(); };
  CHECK_THROWS_WITH(parameter.set_trainable(false),
                    ContainsSubstring("parameter 'w' is already optimised"));
  CHECK(parameter.trainable());
}
