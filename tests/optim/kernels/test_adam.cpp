// Compares adam_update with the formulas of torch.optim.Adam and AdamW in float64. Also tests that
// its bits do not depend on shards or threads.
#include <cmath>

#include "optim/kernels/update.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/step_scalars.h"

using namespace tessera;
using namespace tessera::test;

namespace {

UpdateHyper hyper_of_step(int step, UpdateHyper hyper) {
  hyper.bias_correction1 = static_cast<float>(1 - std::pow(double{hyper.beta1}, step));
  hyper.bias_correction2 = static_cast<float>(1 - std::pow(double{hyper.beta2}, step));
  return hyper;
}

const UpdateHyper adamw{.learning_rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f,
                        .weight_decay = 0.1f};
const UpdateHyper adam_l2{.learning_rate = 3e-3f, .beta1 = 0.8f, .beta2 = 0.99f, .epsilon = 1e-6f,
                          .weight_decay = 0.2f, .gradient_scale = 0.25f, .decoupled_decay = false};
const UpdateHyper without_decay{.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f,
                                .epsilon = 1e-8f};

struct Weights {
  explicit Weights(int64_t size)
      : p(random_tensor({size}, 1)), m(Tensor::zeros({size})), v(Tensor::zeros({size})) {}
  Tensor p, m, v;
};

void update(const Weights& to, const Tensor& gradients, std::vector<UpdateSegment> segments,
            std::vector<UpdateHyper> groups, const StepScalars* scalars = nullptr) {
  kernels::adam_update(test_context(), to.p, to.m, to.v, gradients, std::span(segments),
                       std::span(groups), scalars);
}

struct ReferenceWeights {
  std::vector<double> p, m, v;

  void update(const std::vector<double>& gradients, int step, UpdateHyper hyper, size_t begin,
              size_t end) {
    const double beta1 = hyper.beta1, beta2 = hyper.beta2, rate = hyper.learning_rate;
    for (size_t i = begin; i < end; ++i) {
      double g = gradients[i] * hyper.gradient_scale;
      if (hyper.decoupled_decay) {
        p[i] -= rate * hyper.weight_decay * p[i];
      } else {
        g += hyper.weight_decay * p[i];
      }
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double denominator =
          std::sqrt(v[i]) / std::sqrt(1 - std::pow(beta2, step)) + hyper.epsilon;
      p[i] -= rate / (1 - std::pow(beta1, step)) * m[i] / denominator;
    }
  }
};

}  // namespace

TEST_CASE("adam_update against float64, in three groups and a gap", "[adam]") {
  const int64_t size = 256 * 7 + 19;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const std::vector<UpdateSegment> segments = {
      {0, 512, 1}, {512, 1024, 0}, {1280, 256 * 7, 2}, {256 * 7, size, 0}};
  const Weights weights(size);
  const Tensor before = random_tensor({size}, 1);
  ReferenceWeights expected{doubles(weights.p), doubles(weights.m), doubles(weights.v)};
  for (int step = 1; step <= 10; ++step) {
    const Tensor gradients =
        random_tensor_of(dtype, {size}, 100 + static_cast<uint64_t>(step));
    std::vector<UpdateHyper> groups;
    for (const auto& group : {adamw, adam_l2, without_decay}) {
      groups.push_back(hyper_of_step(step, group));
    }
    update(weights, gradients, segments, groups);
    for (const auto& [begin, end, group] : segments) {
      expected.update(doubles(gradients), step, groups[static_cast<size_t>(group)],
                      static_cast<size_t>(begin), static_cast<size_t>(end));
    }
  }
  REQUIRE(max_error(weights.p, expected.p) < 2e-6);
  REQUIRE(max_error(weights.m, expected.m) < 1e-6);
  REQUIRE(max_error(weights.v, expected.v) < 1e-6);
  REQUIRE(same_bits(weights.p.flat(1024, 1280), before.flat(1024, 1280)));  // gap: unchanged
}

TEST_CASE("adam_update of a shard gives the bits of the whole", "[adam]") {
  const int64_t size = 256 * 40;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor gradients = random_tensor_of(dtype, {size}, 5);
  const std::vector<UpdateHyper> groups = {hyper_of_step(1, adamw), hyper_of_step(1, adam_l2)};
  const Weights whole(size), shards(size);
  update(whole, gradients, {{0, 256 * 13, 0}, {256 * 13, size, 1}}, groups);
  const auto shard = [&](int64_t begin, int64_t end, std::vector<UpdateSegment> segments) {
    Weights part(0);
    part.p = shards.p.flat(begin, end);
    part.m = shards.m.flat(begin, end);
    part.v = shards.v.flat(begin, end);
    update(part, gradients.flat(begin, end), std::move(segments), groups);
  };
  shard(0, 256 * 10, {{0, 256 * 10, 0}});
  shard(256 * 10, 256 * 27, {{0, 256 * 3, 0}, {256 * 3, 256 * 17, 1}});
  shard(256 * 27, size, {{0, 256 * 13, 1}});
  REQUIRE(same_bits(shards.p, whole.p));
  REQUIRE(same_bits(shards.m, whole.m));
  REQUIRE(same_bits(shards.v, whole.v));
}

TEST_CASE("adam_update's bits do not depend on the number of threads", "[adam][teams]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([dtype] {
    const int64_t size = 256 * 201;
    const Weights weights(size);
    update(weights, random_tensor_of(dtype, {size}, 5), {{0, 512, 0}, {512, size, 1}},
           {hyper_of_step(1, adamw), hyper_of_step(1, adam_l2)});
    return std::vector{weights.p, weights.m, weights.v};
  }));
}

TEST_CASE("adam_update of more segments than a launch's arguments hold", "[adam]") {
  const int64_t size = 256 * 300;
  const Tensor gradients = random_tensor({size}, 5);
  const std::vector<UpdateHyper> groups = {hyper_of_step(1, adamw), hyper_of_step(1, adam_l2)};
  const Weights together(size), apart(size);
  std::vector<UpdateSegment> segments;
  for (int64_t i = 0; i < 300; ++i) {
    segments.push_back({256 * i, 256 * (i + 1), i % 3 == 0 ? 1 : 0});
    update(apart, gradients, {segments.back()}, groups);
  }
  update(together, gradients, segments, groups);
  REQUIRE(same_bits(together.p, apart.p));
  REQUIRE(same_bits(together.v, apart.v));
}

TEST_CASE("adam_update applies a step's scalars", "[adam]") {
  const int64_t size = 256 * 5 + 3;
  const Tensor gradients = random_tensor({size}, 5);
  UpdateHyper hyper = hyper_of_step(3, adam_l2);
  const Weights on_device(size), by_host(size), skipped(size);
  const DeviceScalars quarter({.gradient_scale = 0.25f}), skip({.gradient_scale = NAN, .skip = 1});
  update(on_device, gradients, {{0, size, 0}}, {hyper}, quarter.get());
  update(skipped, gradients, {{0, size, 0}}, {hyper}, skip.get());
  hyper.gradient_scale *= 0.25f;
  update(by_host, gradients, {{0, size, 0}}, {hyper});
  REQUIRE(same_bits(on_device.p, by_host.p));
  REQUIRE(same_bits(on_device.m, by_host.m));
  REQUIRE(same_bits(on_device.v, by_host.v));
  REQUIRE(same_bits(skipped.p, Weights(size).p));
  REQUIRE(same_bits(skipped.m, Weights(size).m));
  REQUIRE(same_bits(skipped.v, Weights(size).v));
}

TEST_CASE("adam_update of no elements", "[adam]") {
  const Weights none(0), some(256);
  update(none, Tensor::empty({0}), {}, {adamw});
  update(some, random_tensor({256}, 2), {{0, 0, 0}}, {adamw});
  REQUIRE(same_bits(some.p, random_tensor({256}, 1)));
}

TEST_CASE("adam_update refuses invalid arguments", "[adam]") {
  const Weights weights(512);
  const Tensor gradients = Tensor::zeros({512});
  REQUIRE_THROWS_WITH(update(weights, Tensor::zeros({511}), {}, {}),
                      "adam_update: moments or gradients have 511 elements, expected 512");
  REQUIRE_THROWS_WITH(update(weights, gradients, {{0, 768, 0}}, {adamw}),
                      "adam_update: segment [0, 768) is outside 512 elements");
  REQUIRE_THROWS_WITH(
      update(weights, gradients, {{0, 100, 0}}, {adamw}),
      "adam_update: segment [0, 100) does not consist of whole blocks of 256 elements");
  REQUIRE_THROWS_WITH(
      update(weights, gradients, {{0, 256, 1}}, {adamw}),
      "adam_update: a segment of group 1, expected a group of at least 0 and less than 1");
  Weights narrow(512);
  narrow.p = Tensor::zeros({512}, DType::bf16);
  REQUIRE_THROWS_WITH(update(narrow, gradients, {}, {}),
                      "adam_update: parameters have dtype bf16, expected f32");
}
