// Tests dropout. For a given probability, the mask must be a function of seed, step, sample, layer
// and element alone. The gradient must use the forward's mask.
#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

namespace {

/// Sets the dropout state, and restores the previous state in the destructor.
class State {
 public:
  explicit State(DropoutState state) : before_(dropout_state()) { dropout_state() = state; }
  ~State() { dropout_state() = before_; }

 private:
  DropoutState before_;
};

Tensor mask(const Shape& shape, float probability, uint64_t layer, DropoutState state,
            DType dtype = DType::f32) {
  const State set(state);
  return ops::dropout(rounded_to(dtype, Tensor::full(shape, 1)), probability, layer);
}

double kept_share(const Tensor& mask) {
  double kept = 0;
  for (const float value : mask.values<float>()) kept += value != 0;
  return kept / static_cast<double>(mask.elements());
}

double equal_share(const Tensor& a, const Tensor& b) {
  double equal = 0;
  for (int64_t i = 0; i < a.elements(); ++i) equal += a.data<float>()[i] == b.data<float>()[i];
  return equal / static_cast<double>(a.elements());
}

}  // namespace

TEST_CASE("dropout draws the mask that core/ops/dropout.cpp describes", "[dropout]") {
  const DropoutState state{.seed = 0x123456789abcdef0, .step = 7, .first_sample = 3};
  const uint64_t layer = 0xfedcba9876543210;
  const int64_t samples = 3;
  const int64_t elements = GENERATE(1, 3, 4, 255, 256, 257, 1030);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor y = mask({samples, elements}, 0.3f, layer, state, dtype);
  const Tensor expected = Tensor::empty(y.shape());
  const auto purpose = static_cast<uint32_t>(stable_hash("dropout"));
  const PhiloxCounter key = philox({7, 0, purpose, 0}, philox_key(state.seed));
  const auto threshold = static_cast<uint32_t>(std::ldexp(double{0.3f}, 32));
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t element = 0; element < elements; ++element) {
      const PhiloxCounter words =
          philox({static_cast<uint32_t>(element / 4), static_cast<uint32_t>(3 + sample), 0x76543210,
                  0xfedcba98},
                 {key[0], key[1]});
      const bool kept = words[static_cast<size_t>(element % 4)] >= threshold;
      expected.data<float>()[sample * elements + element] = kept ? 1 / (1 - 0.3f) : 0;
    }
  }
  REQUIRE(same_bits(y, rounded_to(dtype, expected)));
}

TEST_CASE("dropout keeps a share of 1 - probability", "[dropout]") {
  const float probability = GENERATE(0.1f, 0.5f, 0.9f);
  const double kept = kept_share(mask({20, 5000}, probability, 1, {.seed = 1, .step = 0}));
  REQUIRE(std::abs(kept - (1 - double{probability})) < 0.01);
}

TEST_CASE("a sample's mask does not depend on the batch that it is in", "[dropout]") {
  const Tensor all = mask({6, 5, 13}, 0.4f, 2, {.seed = 5, .step = 1, .first_sample = 0});
  const Tensor part = mask({2, 5, 13}, 0.4f, 2, {.seed = 5, .step = 1, .first_sample = 3});
  REQUIRE(same_bits(part, all.rows(3, 5)));
}

TEST_CASE("masks of different seeds, steps, samples and layers are unrelated", "[dropout]") {
  const Shape shape{2, 5000};
  const DropoutState state{.seed = 5, .step = 1, .first_sample = 4};
  const Tensor base = mask(shape, 0.5f, 2, state);
  REQUIRE(same_bits(mask(shape, 0.5f, 2, state), base));
  const auto unrelated = [&](const Tensor& other) {
    return std::abs(equal_share(base, other) - 0.5) < 0.03;
  };
  REQUIRE(unrelated(mask(shape, 0.5f, 3, state)));
  REQUIRE(unrelated(mask(shape, 0.5f, uint64_t{2} << 32, state)));
  REQUIRE(unrelated(mask(shape, 0.5f, 2, {.seed = 6, .step = 1, .first_sample = 4})));
  REQUIRE(unrelated(mask(shape, 0.5f, 2, {.seed = 5, .step = 2, .first_sample = 4})));
  REQUIRE(unrelated(mask(shape, 0.5f, 2, {.seed = 5, .step = 1, .first_sample = 5})));
  REQUIRE(unrelated(mask(shape, 0.5f, 2, {.seed = 1, .step = 5, .first_sample = 4})));
}

TEST_CASE("dropout with probability 0 is x itself", "[dropout]") {
  const Tensor x = random_tensor({2, 3}, 1);
  REQUIRE(ops::dropout(x, 0, 1).raw() == x.raw());
}

TEST_CASE("dropout takes scalars and empty tensors, and drops NaN like any other value",
          "[dropout]") {
  const State step({.step = 0});
  REQUIRE(ops::dropout(Tensor::full({}, 1), 0.5f, 1).shape() == Shape{});
  REQUIRE(ops::dropout(Tensor::full({0, 4}, 1), 0.5f, 1).shape() == Shape{0, 4});
  REQUIRE(ops::dropout(Tensor::full({4, 0}, 1), 0.5f, 1).shape() == Shape{4, 0});
  const Tensor y = ops::dropout(Tensor::full({1, 1000}, NAN), 0.5f, 1);
  for (const float value : y.values<float>()) REQUIRE((std::isnan(value) || value == 0));
}

TEST_CASE("dropout's gradient uses the forward's mask", "[dropout]") {
  const State step({.step = 0});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const auto operation = [](const std::vector<Tensor>& in) { return ops::dropout(in[0], 0.4f, 9); };
  REQUIRE(check_gradient(operation, {random_tensor({3, 11}, 1)}, {.dtype = dtype}));
  // Backward must use the mask of the forward even if the dropout state has changed in between.
  const Tensor x = leaf(rounded_to(dtype, Tensor::full({2, 50}, 1)));
  const Tensor y = ops::dropout(x, 0.4f, 9);
  const State set({.seed = 77, .step = 8, .first_sample = 9});
  backward(ops::sum(y));
  REQUIRE(same_bits(gradient_of(x), y.detach()));
}

TEST_CASE("dropout's bits do not depend on the number of threads", "[dropout]") {
  const State step({.step = 0});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([&] {
    return std::vector{ops::dropout(random_tensor_of(dtype, {7, 3001}, 1), 0.2f, 3)};
  }));
}

TEST_CASE("dropout refuses invalid arguments", "[dropout]") {
  const Tensor x = random_tensor({2, 3}, 1);
  REQUIRE_THROWS_WITH(ops::dropout(x, 1.0f, 1),
                      "dropout: probability is 1, expected at least 0 and less than 1");
  REQUIRE_THROWS_WITH(ops::dropout(x, -0.5f, 1),
                      "dropout: probability is -0.5, expected at least 0 and less than 1");
  REQUIRE_THROWS_AS(ops::dropout(x, NAN, 1), Error);
  for (const int64_t first : {(int64_t{1} << 32) - 1, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const State set({.step = 0, .first_sample = first});
    REQUIRE_THROWS_WITH(
        ops::dropout(x, 0.5f, 1),
        fmt::format("dropout: 3 elements in each of 2 samples from sample {} on, expected at most "
                    "2^34 elements, and samples from 0 to 2^32 - 1",
                    first));
  }
}
