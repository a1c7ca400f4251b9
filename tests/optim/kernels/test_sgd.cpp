// Compares sgd_update with the formulas of torch.optim.SGD in float64. Also tests that its bits do
// not depend on shards or threads.
#include "optim/kernels/update.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/step_scalars.h"

using namespace tessera;
using namespace tessera::test;

namespace {

void update(const Tensor& p, const Tensor& momentum, const Tensor& gradients,
            std::vector<UpdateSegment> segments, std::vector<UpdateHyper> groups,
            const StepScalars* scalars = nullptr) {
  kernels::sgd_update(test_context(), p, momentum, gradients, std::span(segments),
                      std::span(groups), scalars);
}

const UpdateHyper plain{.learning_rate = 0.1f};
const UpdateHyper heavy{.learning_rate = 0.05f, .beta1 = 0.9f, .weight_decay = 0.1f,
                        .gradient_scale = 0.5f};
const UpdateHyper nesterov{.learning_rate = 0.02f, .beta1 = 0.8f, .weight_decay = 0.01f,
                           .nesterov = true};

/// Updates p and its momentum buffer b in float64.
void reference_update(std::vector<double>& p, std::vector<double>& b, const Tensor& gradients,
                      const UpdateHyper& hyper, size_t begin, size_t end) {
  const auto gradient = doubles(gradients);
  for (size_t i = begin; i < end; ++i) {
    const double g = gradient[i] * hyper.gradient_scale + hyper.weight_decay * p[i];
    double step = g;
    if (hyper.beta1 != 0) {
      b[i] = hyper.first_step ? g : hyper.beta1 * b[i] + g;
      step = hyper.nesterov ? g + hyper.beta1 * b[i] : b[i];
    }
    p[i] -= hyper.learning_rate * step;
  }
}

}  // namespace

TEST_CASE("sgd_update against float64, in three groups and a gap", "[sgd]") {
  const int64_t size = 256 * 7 + 19;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const std::vector<UpdateSegment> segments = {
      {0, 512, 1}, {512, 1024, 0}, {1280, 256 * 7, 2}, {256 * 7, size, 0}};
  const Tensor p = random_tensor({size}, 1);
  const Tensor momentum = Tensor::full({size}, NAN);  // the first step must not read it
  auto p_expected = doubles(p), b_expected = doubles(momentum);
  for (int step = 1; step <= 10; ++step) {
    const Tensor gradients =
        random_tensor_of(dtype, {size}, 100 + static_cast<uint64_t>(step));
    std::vector<UpdateHyper> groups = {plain, heavy, nesterov};
    for (UpdateHyper& group : groups) group.first_step = step == 1;
    update(p, momentum, gradients, segments, groups);
    for (const auto& [begin, end, group] : segments) {
      reference_update(p_expected, b_expected, gradients, groups[static_cast<size_t>(group)],
                       static_cast<size_t>(begin), static_cast<size_t>(end));
    }
  }
  REQUIRE(max_error(p, p_expected) < 1e-6);
  REQUIRE(same_bits(p.flat(1024, 1280), random_tensor({size}, 1).flat(1024, 1280)));  // gap
  b_expected.resize(512);
  REQUIRE(max_error(momentum.flat(0, 512), b_expected) < 1e-6);
}

TEST_CASE("sgd_update needs no momentum where no group has any", "[sgd]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor p = random_tensor({256}, 1), gradients = random_tensor_of(dtype, {256}, 2);
  auto expected = doubles(p);
  std::vector<double> none(256);
  update(p, Tensor{}, gradients, {{0, 256, 0}}, {plain});
  reference_update(expected, none, gradients, plain, 0, 256);
  REQUIRE(max_error(p, expected) < 1e-7);
}

TEST_CASE("sgd_update's bits do not depend on the number of threads, or on the shard",
          "[sgd][teams]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t size = 256 * 201;
  const auto updated = [&](int64_t begin, int64_t end) {
    const Tensor p = random_tensor({size}, 1).flat(begin, end);
    const Tensor momentum = random_tensor({size}, 2).flat(begin, end);
    const Tensor gradients = random_tensor_of(dtype, {size}, 3).flat(begin, end);
    const int64_t border = std::max(begin, int64_t{512}) - begin;
    update(p, momentum, gradients, {{0, border, 0}, {border, end - begin, 1}}, {heavy, nesterov});
    return std::vector{p, momentum};
  };
  REQUIRE(same_bits_for_any_threads([&] { return updated(0, size); }));
  const auto whole = updated(0, size), shard = updated(256 * 13, 256 * 77);
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(same_bits(shard[i], whole[i].flat(256 * 13, 256 * 77)));
  }
}

TEST_CASE("sgd_update applies a step's scalars", "[sgd]") {
  const int64_t size = 256 * 3 + 7;
  const Tensor gradients = random_tensor({size}, 3);
  for (UpdateHyper hyper : {plain, nesterov}) {
    const auto updated = [&](const StepScalars* scalars) {
      const Tensor p = random_tensor({size}, 1), momentum = random_tensor({size}, 2);
      update(p, momentum, gradients, {{0, size, 0}}, {hyper}, scalars);
      return std::vector{p, momentum};
    };
    const DeviceScalars half({.gradient_scale = 0.5f}), skip({.gradient_scale = NAN, .skip = 1});
    const auto on_device = updated(half.get()), skipped = updated(skip.get());
    hyper.gradient_scale *= 0.5f;
    const auto by_host = updated(nullptr);
    for (size_t i = 0; i < 2; ++i) {
      REQUIRE(same_bits(on_device[i], by_host[i]));
      REQUIRE(same_bits(skipped[i], random_tensor({size}, 1 + i)));
    }
  }
}

TEST_CASE("sgd_update refuses invalid arguments", "[sgd]") {
  const Tensor p = Tensor::zeros({512});
  REQUIRE_THROWS_WITH(update(p, p, Tensor::zeros({511}), {}, {}),
                      "sgd_update: moments or gradients have 511 elements, expected 512");
  REQUIRE_THROWS_WITH(update(p, Tensor{}, p, {}, {heavy}),
                      "sgd_update: moments or gradients have 0 elements, expected 512");
  REQUIRE_THROWS_WITH(update(p, p, p, {{256, 768, 0}}, {heavy}),
                      "sgd_update: segment [256, 768) is outside 512 elements");
  REQUIRE_THROWS_WITH(update(Tensor::zeros({512}, DType::bf16), Tensor{}, p, {}, {}),
                      "sgd_update: parameters have dtype bf16, expected f32");
}
