// Compares 200 steps of GPT micro, in fp32 and in bf16, with PyTorch's fp32 losses. All runs start
// from the same weights and use the same batches (tests/fixtures/make_curve_fixture.py). Tests of
// ten steps do not see mistakes whose effect accumulates, or mistakes that matter only once the
// model has begun to learn.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/gpt/gpt.h"
#include "optim/zero_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr int64_t steps = 200;
constexpr int64_t batch = 12;
constexpr int64_t last = 20;

// The largest allowed difference of Curve::mean_of_last() between Tessera and PyTorch, or between
// fp32 and bf16.
constexpr double tolerance = 0.02;

/// Returns the same tokens as stream(tokens) in tests/fixtures/make_curve_fixture.py, which
/// explains their structure.
std::vector<int32_t> stream(int64_t tokens) {
  std::vector<int32_t> result{0, 0};
  uint64_t state = 1;
  while (std::ssize(result) < tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto draw = static_cast<uint32_t>(state >> 61);
    const auto before = static_cast<uint32_t>(result[result.size() - (draw < 6 ? 1 : 2)]);
    result.push_back(static_cast<int32_t>((before * 8 + draw) * 2654435761u >> 24));
  }
  return result;
}

struct Curve {
  std::vector<double> losses;

  double mean_of_last() const {
    return std::accumulate(losses.end() - last, losses.end(), 0.0) / last;
  }
};

Curve stored_curve() {
  std::ifstream file(fixture("micro_curve.json"));
  return {nlohmann::json::parse(file).at("losses").get<std::vector<double>>()};
}

/// Trains GPT micro with seed 0 on one rank.
Curve train(DType dtype) {
  models::Gpt model(models::GptConfig::preset("micro"));
  model.to(dtype);
  optim::ZeroOptimizer optimizer(
      model, optim::AdamW{.learning_rate = 3e-4f, .beta2 = 0.95f, .weight_decay = 0.1f},
      lone_world(),
      {.clip = 1.0f,
       .group_of = [](const auto& named) { return named.parameter.shape().rank() > 1 ? 0 : 1; },
       .groups = {{.weight_decay = 0.0f}}});
  const int64_t tokens_of_step = batch * model.config().context;
  const auto text = stream(steps * tokens_of_step + 1);
  const Shape shape{batch, model.config().context};
  Curve curve;
  for (int64_t step = 0; step < steps; ++step) {
    const auto report = optimizer.step(step, {.global = batch, .micro = batch}, [&](const auto&) {
      const auto begin = text.begin() + step * tokens_of_step;
      const Tensor tokens = Tensor::empty(shape, DType::i32);
      const Tensor targets = Tensor::empty(shape, DType::i32);
      std::copy_n(begin, tokens_of_step, tokens.data<int32_t>());
      std::copy_n(begin + 1, tokens_of_step, targets.data<int32_t>());
      return model.loss(tokens, targets);
    });
    curve.losses.push_back(report.loss);
  }
  return curve;
}

}  // namespace

TEST_CASE("GPT micro learns as it does in PyTorch, in fp32 and in bf16", "[full]") {
  const Curve theirs = stored_curve();
  REQUIRE(std::ssize(theirs.losses) == steps);
  const Curve single = train(DType::f32);
  const Curve half = train(DType::bf16);
  const double expected = theirs.mean_of_last();
  const double fp32 = single.mean_of_last();
  const double bf16 = half.mean_of_last();
  CAPTURE(expected, fp32, bf16);
  CHECK(std::fabs(single.losses[0] - theirs.losses[0]) < 1e-4);
  CHECK(std::fabs(half.losses[0] - theirs.losses[0]) < 1e-2);
  CHECK(std::fabs(fp32 - expected) < tolerance);
  CHECK(std::fabs(bf16 - expected) < tolerance);
  CHECK(std::fabs(bf16 - fp32) < tolerance);
}

// Needs TESSERA_TEST_DEVICE=cuda and a real GPU. An emulated device would take a day.
TEST_CASE("GPT micro learns on CUDA as on the CPU", "[full]") {
  const Device device = default_device();
  if (on_cpu()) {
    std::puts("skipped: TESSERA_TEST_DEVICE names no other device than the CPU");
    return;
  }
  const Curve on_cuda = train(DType::f32);
  set_default_device({});
  const Curve on_host = train(DType::f32);
  set_default_device(device);
  CAPTURE(on_host.mean_of_last(), on_cuda.mean_of_last());
  CHECK(std::fabs(on_host.losses[0] - on_cuda.losses[0]) < 1e-4);
  CHECK(std::fabs(on_host.mean_of_last() - on_cuda.mean_of_last()) < 0.01);
}
