// Tests that communication overlaps with computing. Reductions and gathers take a known time. The
// trace must show that the first reduction begins before backward ends, and that the gather of a
// block begins before the computation of the previous block ends. Without overlap, backward must
// wait for each reduction, and a block must be gathered only when it is read.
#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "core/trace.h"
#include "tests/support/catch.h"
#include "tests/support/delayed_communicator.h"
#include "tests/support/layered_model.h"

namespace tessera::test {
namespace {

constexpr auto delay = std::chrono::milliseconds(20);
constexpr int64_t delay_ns = 20'000'000;

// Sleeps for `delay`, and traces this time as work of block `link`.
void take_time(const char* name, int link) {
  const trace::Scope scope(name, trace::Track::compute, {link}, [] { return std::string(); });
  std::this_thread::sleep_for(delay);
}

// A model whose forward and backward take a known time. Each block is a bucket. In forward and in
// backward, a block reads its weight, then sleeps. The model's input needs no gradient, so backward
// of the first block does not read the weight and does not sleep.
struct SlowChain : nn::Module {
  static constexpr int links = 8;
  SlowChain() {
    for (int i = 0; i < links; ++i) {
      begin_block();
      weights.push_back(
          add(fmt::format("w{}", i), nn::Parameter({16, 16}, nn::Initializer::normal(0.25f))));
    }
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (int i = 0; i < links; ++i) {
      y = ops::linear(slow_backward(y, i), weights[static_cast<size_t>(i)], {});
      take_time("slow forward", i);
    }
    return ops::mean(ops::mul(y, y));
  }
  static Tensor slow_backward(const Tensor& x, int link) {
    return record("slow", x.detach(), {x}, [link](const Tensor& dy, InputGradients& grads) {
      take_time("slow backward", link);
      grads.pass(0, dy);
    });
  }
  std::vector<nn::Parameter> weights;
};

// Returns the trace of a second step, because at stage 3 the first step only learns the order of
// the blocks.
std::vector<trace::Event> traced_step(const optim::ZeroOptions& options,
                                      std::chrono::nanoseconds reduction_delay,
                                      std::chrono::nanoseconds gather_delay) {
  dist::World world = job_world();
  world.communicator = std::make_shared<dist::DelayedCommunicator>(world.communicator,
                                                                   reduction_delay, gather_delay);
  SlowChain model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, options);
  for (int64_t step = 0; step < 2; ++step) {
    trace::take_events();
    trace::enable(true);
    const Training training{
        .batch = {.global = world.size, .micro = 1}, .loss = [&](const MicroBatch& micro) {
          return model(Tensor::full({1, 16}, 1.0f + static_cast<float>(micro.index)));
        }};
    TrainingResult result;
    train_step(optimizer, training, step, result);
    optimizer.synchronize();
    trace::enable(false);
  }
  return trace::take_events();
}

struct Timeline {
  int64_t first_reduce_begin = 0;
  int64_t backward_begin = 0;
  int64_t backward_end = 0;
};

Timeline reductions(bool overlap) {
  Timeline line;
  const optim::ZeroOptions options{.stage = 2, .bucket_bytes = 1024, .overlap = overlap};
  for (const trace::Event& event : traced_step(options, delay, {})) {
    if (event.name == "delay") {
      if (line.first_reduce_begin == 0) line.first_reduce_begin = event.begin_ns;
    } else if (event.name == "backward") {
      line.backward_begin = event.begin_ns;
      line.backward_end = event.end_ns;
    }
  }
  return line;
}

TEST_CASE("a bucket reduces while backward still runs", "[cpu]") {
  if (job_world().size == 1) return;  // a single rank has nothing to send
  const Timeline line = reductions(true);
  CHECK(line.first_reduce_begin > line.backward_begin);  // the begin is 0 if nothing was reduced
  CHECK(line.first_reduce_begin < line.backward_end);
}

TEST_CASE("without overlap a backward waits for each reduction", "[cpu]") {
  if (job_world().size == 1) return;
  const Timeline line = reductions(false);
  CHECK(line.backward_end - line.backward_begin >= (2 * SlowChain::links - 1) * delay_ns);
}

// The times of one block in a step of stage 3.
struct BlockTimes {
  std::vector<trace::Event> gathers;  // before forward, and before backward
  trace::Event forward;
  trace::Event backward;
};

std::vector<BlockTimes> measure_blocks(bool overlap) {
  std::vector<BlockTimes> blocks(SlowChain::links);
  for (const trace::Event& event : traced_step({.stage = 3, .overlap = overlap}, {}, delay)) {
    if (event.name == "slow forward")
      blocks[static_cast<size_t>(event.place.bucket)].forward = event;
    if (event.name == "slow backward")
      blocks[static_cast<size_t>(event.place.bucket)].backward = event;
    // Buckets are numbered from the end of the model; gathers of norms and losses have no bucket.
    if (event.name == "delay" && event.place.bucket >= 0) {
      blocks[static_cast<size_t>(SlowChain::links - 1 - event.place.bucket)].gathers.push_back(
          event);
    }
  }
  return blocks;
}

const std::vector<BlockTimes>& block_times(bool overlap) {
  static std::map<bool, std::vector<BlockTimes>> times;
  const auto [entry, is_new] = times.try_emplace(overlap);
  if (is_new) entry->second = measure_blocks(overlap);
  return entry->second;
}

TEST_CASE("stage 3: a block is gathered once for its forward and once for its backward", "[cpu]") {
  for (const bool overlap : {true, false}) {
    const auto& blocks = block_times(overlap);
    for (size_t i = 1; i + 1 < blocks.size(); ++i) {
      CAPTURE(overlap, i);
      REQUIRE(blocks[i].gathers.size() == 2);
      CHECK(blocks[i].gathers[0].end_ns <= blocks[i].forward.begin_ns);
      CHECK(blocks[i].gathers[1].end_ns <= blocks[i].backward.begin_ns);
    }
    // The last and the first block are gathered once. The last block's weight is still in memory
    // when backward begins. Backward would read the first block's weight only for the gradient of
    // the model's input, which is not needed.
    CHECK(blocks.back().gathers.size() == 1);
    CHECK(blocks.front().gathers.size() == 1);
  }
}

TEST_CASE("stage 3: the next block's gather begins before the forward of this one ends", "[cpu]") {
  const auto& blocks = block_times(true);
  for (size_t i = 0; i + 1 < blocks.size(); ++i) {
    CAPTURE(i);
    REQUIRE_FALSE(blocks[i + 1].gathers.empty());
    CHECK(blocks[i + 1].gathers.front().begin_ns < blocks[i].forward.end_ns);
    // In backward, the gather of block i begins before the backward of block i + 1 ends. Block 0 is
    // not gathered again.
    if (i > 0) CHECK(blocks[i].gathers.back().begin_ns < blocks[i + 1].backward.end_ns);
  }
}

TEST_CASE("stage 3 without overlap: a block is gathered when it is read", "[cpu]") {
  const auto& blocks = block_times(false);
  for (size_t i = 0; i + 1 < blocks.size(); ++i) {
    CAPTURE(i);
    REQUIRE_FALSE(blocks[i + 1].gathers.empty());
    CHECK(blocks[i + 1].gathers.front().begin_ns >= blocks[i].forward.end_ns);
    if (i > 0) CHECK(blocks[i].gathers.back().begin_ns >= blocks[i + 1].backward.end_ns);
  }
}

}  // namespace
}  // namespace tessera::test
