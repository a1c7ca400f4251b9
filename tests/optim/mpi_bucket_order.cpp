// Tests models that do not use their layers in the order of registration. After the first
// micro-step, all ranks must send buckets in the order in which rank 0 completed them. From the
// second step on, gradients must take exactly the bytes that optim::plan predicts. At stages 2 and
// 3, buckets take their memory from a ring. A bucket that finds no free memory in the ring gets a
// slot outside of the ring (optim/zero/gradient_policy.h). The plan counts only the ring, so no
// slot outside of the ring may remain.
#include <functional>
#include <utility>
#include <vector>

#include "optim/plan/plan.h"
#include "tests/support/catch.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/layered_model.h"
#include "tests/support/memory_use.h"

namespace tessera::test {
namespace {

// Records the buckets whose gradients are sent.
class NotingCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  dist::Work exchange(const Tensor& input, int contributors, Receive receive,
                      dist::Call call) override {
    sent.push_back({call.group, call.bucket});
    if (sent.size() == 1) at_first();
    return ForwardingCommunicator::exchange(input, contributors, std::move(receive), call);
  }

  using Bucket = std::pair<int64_t, int64_t>;  // group of parameters, index of the bucket in it
  std::vector<Bucket> sent;
  std::function<void()> at_first = [] {};  // called for the first bucket of a step
};

constexpr int layers = 6;
// Forward uses the layers from last to first, so backward completes them from layer 0 to layer 5,
// in the order of registration.
const LayeredModel::Way from_the_last = {5, 4, 3, 2, 1, 0};
constexpr DType half = DType::bf16;
const std::vector<DType> alternating = {DType::f32, half, DType::f32, half, DType::f32, half};

using HasData = std::function<bool(const MicroBatch&)>;
bool all_have_data(const MicroBatch&) { return true; }

// Trains a model of six layers; `options` sets the size of the buckets.
class Run {
 public:
  Run(const dist::World& world, const optim::ZeroOptions& options, LayeredModel::Way way,
      std::vector<DType> dtypes = {}, HasData has_data = all_have_data)
      : memory_(*world.communicator, world.communicator->device()),
        model_({.layers = layers, .width = 48, .dtypes = std::move(dtypes)}),
        noting_(std::make_shared<NotingCommunicator>(world.communicator)),
        optimizer_(model_, optim::AdamW{},
                   {.communicator = noting_, .rank = world.rank, .size = world.size}, options),
        training_{.batch = {.global = 2 * job_world().size, .micro = 1},
                  .loss = [this, way = std::move(way),
                           has_data = std::move(has_data)](const MicroBatch& micro) {
                    return has_data(micro) ? model_.loss(micro, way) : Tensor();
                  }} {
    noting_->at_first = [this] { first_gradients_ = gradients(); };
  }

  /// Runs a step. With job_world() the step has two micro-steps. Returns the buckets that the
  /// second micro-step sent, in order.
  std::vector<NotingCommunicator::Bucket> step(int64_t number) {
    noting_->sent.clear();
    memory_.reset_peaks();
    train_step(optimizer_, training_, number, result_);
    optimizer_.synchronize();
    const auto& sent = noting_->sent;
    return {sent.begin() + std::ssize(sent) / 2, sent.end()};
  }

  /// Return the bytes of gradients: gradients() at present, first_gradients() at the time at which
  /// the last step sent its first bucket, and peak_gradients() at the peak of the last step.
  int64_t gradients() const { return memory_.current(Category::gradients); }
  int64_t first_gradients() const { return first_gradients_; }
  int64_t peak_gradients() const { return memory_.peak(Category::gradients); }
  optim::Plan plan(const dist::World& world, const optim::ZeroOptions& options) const {
    return optim::plan({.parameters = optim::plan_parameters(model_),
                        .ranks = world.size,
                        .stage = options.stage,
                        .bucket_bytes = options.bucket_bytes,
                        .batch = training_.batch},
                       world.rank);
  }
  optim::ZeroOptimizer& optimizer() { return optimizer_; }
  const TrainingResult& result() const { return result_; }

 private:
  MemoryUse memory_;
  LayeredModel model_;
  std::shared_ptr<NotingCommunicator> noting_;
  optim::ZeroOptimizer optimizer_;
  Training training_;
  TrainingResult result_;
  int64_t first_gradients_ = 0;
};

// The bytes that an f32 layer takes in a bucket: a weight of 48 x 48, and a bias of 48 that takes a
// whole block of 256 elements. With bucket_bytes of this size, each f32 layer has its own bucket.
constexpr int64_t layer_bytes = (48 * 48 + 256) * 4;

TEST_CASE("buckets are sent in the order in which rank 0 completes them") {
  const dist::World world = job_world();
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const optim::ZeroOptions options{.stage = stage, .bucket_bytes = layer_bytes};
    Run run(world, options, from_the_last);
    for (int64_t step = 0; step < 3; ++step) {
      // Buckets are numbered from the layer that is registered last. Forward uses this layer first,
      // so backward completes bucket 0 last, and buckets must be sent in the order from 5 to 0.
      std::vector<NotingCommunicator::Bucket> expected;
      for (int b = layers - 1; b >= 0; --b) expected.emplace_back(0, b);
      CHECK(run.step(step) == expected);
      // At stages 2 and 3, buckets of step 0 may also take memory outside the ring (RingGradients),
      // because their order is not known yet. The plan counts only the ring.
      if (step > 0) CHECK(run.peak_gradients() == run.plan(world, options).gradients);
    }
  }
}

TEST_CASE("on the CPU gradients have memory from backward to the end of the step") {
  const dist::World world = job_world();
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const optim::ZeroOptions options{.stage = stage, .bucket_bytes = layer_bytes};
    Run run(world, options, from_the_last);
    const optim::Plan plan = run.plan(world, options);
    // On a GPU all gradients keep their memory between steps, because CUDA graphs record addresses.
    // On the CPU only the ring of stages 2 and 3 keeps its memory.
    const bool on_cpu = world.communicator->device().is_cpu();
    const int64_t ring = stage < 2 ? 0 : plan.gradients - plan.parts.accumulators;
    for (int64_t step = 0; step < 3; ++step) {
      run.step(step);
      CHECK(run.gradients() == (on_cpu ? ring : plan.gradients));
    }
    CHECK(run.peak_gradients() == plan.gradients);
    // When a step sends its first bucket, only this bucket may have memory outside the ring: for
    // its sums and, at stages 0 and 1, for its gradients. This is at most a sixth of all memory
    // outside the ring, because the six buckets have the same size.
    if (on_cpu) CHECK(run.first_gradients() - ring <= (plan.gradients - ring) / layers);
  }
}

TEST_CASE("buckets of two dtypes are sent in one order, in which rank 0 completes them") {
  Run run(job_world(), {.stage = 2, .bucket_bytes = layer_bytes}, from_the_last, alternating);
  // Parameters of one dtype form a group. The group's number is the registration index of its first
  // parameter: 0 for f32, 2 for bf16 (1.weight). Two bf16 layers fit into a bucket, so bf16 bucket
  // 0 has layers 5 and 3, and bucket 1 has layer 1. Backward completes layers 0 to 5 in turn.
  const std::vector<NotingCommunicator::Bucket> expected = {{0, 2}, {2, 1}, {0, 1}, {0, 0}, {2, 0}};
  for (int64_t step = 0; step < 2; ++step) CHECK(run.step(step) == expected);
}

TEST_CASE("on a rank without data gradients take the bytes of the plan") {
  const dist::World world = job_world();
  const optim::ZeroOptions options{.stage = 2, .bucket_bytes = layer_bytes};
  for (const bool mixed : {false, true}) {
    CAPTURE(mixed);
    // Ranks other than 0 have no data in step 0 or, with two dtypes, in any step.
    const auto has_data = [&](const MicroBatch& micro) {
      return world.rank == 0 || (!mixed && micro.step > 0);
    };
    Run run(world, options, from_the_last, mixed ? alternating : std::vector<DType>{}, has_data);
    for (int64_t step = 0; step < 3; ++step) {
      run.step(step);
      if (step > 0) CHECK(run.peak_gradients() == run.plan(world, options).gradients);
    }
  }
}

TEST_CASE("the order of buckets changes no bit") {
  for (const auto& way : {from_the_last, LayeredModel::Way{3, 0, 5, 1, 4, 2}}) {
    Run lone(lone_world(), {.stage = 0}, way);
    Run run(job_world(), {.stage = 2, .bucket_bytes = layer_bytes}, way);
    for (int64_t step = 0; step < 3; ++step) {
      lone.step(step);
      run.step(step);
    }
    CHECK(run.result() == lone.result());
    CHECK(weights_of(run.optimizer()) == weights_of(lone.optimizer()));
  }
}

}  // namespace
}  // namespace tessera::test
