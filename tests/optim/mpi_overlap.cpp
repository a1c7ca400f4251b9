// Overlap is real: with reductions that take a known time, the trace shows a bucket reducing before
// backward ends, and a step takes less than computing and communicating one after the other.
#include <algorithm>
#include <chrono>
#include <thread>

#include "core/trace.h"
#include "tests/support/catch.h"
#include "tests/support/delayed_communicator.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

constexpr auto delay = std::chrono::milliseconds(10);
constexpr int64_t delay_ns = 10'000'000;

// A backward that takes a known time too, in as many pieces as there are buckets.
struct SlowChain : nn::Module {
  static constexpr int links = 8;
  SlowChain() {
    for (int i = 0; i < links; ++i) {
      weights.push_back(add(fmt::format("w{}", i),
                            nn::Parameter({16, 16}, nn::Initializer::normal(0.25f))));
    }
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (const nn::Parameter& weight : weights) y = slow(ops::linear(y, weight, {}));
    return ops::mean(ops::mul(y, y));
  }
  static Tensor slow(const Tensor& x) {
    return record("slow", x.detach(), {x}, [](const Tensor& dy, InputGradients& grads) {
      std::this_thread::sleep_for(delay);
      grads.pass(0, dy);
    });
  }
  std::vector<nn::Parameter> weights;
};

struct Timeline {
  int64_t first_reduce_begin = 0;
  int64_t last_reduce_end = 0;
  int64_t backward_begin = 0;
  int64_t backward_end = 0;
};

Timeline traced_step(bool overlap) {
  dist::World world = job_world();
  world.communicator = std::make_shared<dist::DelayedCommunicator>(world.communicator, delay);
  SlowChain model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world,
                                 {.stage = 2, .bucket_bytes = 1024, .overlap = overlap});
  trace::take_events();
  trace::enable(true);
  for (const auto& micro : optimizer.micro_batches(0, {.global = world.size, .micro = 1})) {
    optimizer.backward(model(Tensor::full({1, 16}, 1.0f + static_cast<float>(micro.index))));
  }
  optimizer.step();
  optimizer.synchronize();
  trace::enable(false);
  Timeline line;
  for (const trace::Event& event : trace::take_events()) {
    if (event.name == "delay") {
      if (line.first_reduce_begin == 0) line.first_reduce_begin = event.begin_ns;
      line.last_reduce_end = std::max(line.last_reduce_end, event.end_ns);
    } else if (event.name == "backward") {
      line.backward_begin = event.begin_ns;
      line.backward_end = event.end_ns;
    }
  }
  return line;
}

TEST_CASE("a bucket reduces while backward still runs") {
  if (job_world().size == 1) return;  // one rank's reduction is done when it is called
  const Timeline line = traced_step(true);
  CHECK(line.first_reduce_begin < line.backward_end);
  // Serially: backward's own sleeps, and after them all reductions.
  const int64_t serial = 2 * SlowChain::links * delay_ns;
  CHECK(line.last_reduce_end - line.backward_begin < serial * 9 / 10);
}

TEST_CASE("without overlap a backward waits for each reduction") {
  if (job_world().size == 1) return;
  const Timeline line = traced_step(false);
  CHECK(line.backward_end - line.backward_begin >= 2 * SlowChain::links * delay_ns);
}

}  // namespace
}  // namespace tessera::test
