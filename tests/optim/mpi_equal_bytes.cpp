// Memory and traffic to the byte: what the ledgers measured equals what the plan said, which shares
// nothing with the optimizer but the layout.
#include "core/memory.h"
#include "optim/plan.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

struct Measured {
  std::array<int64_t, category_count> memory{};
  std::array<int64_t, dist::traffic_count> traffic{};
};

// One step with what the optimizer holds at its end; staging belongs to the communicator.
Measured measure(const TinyRun& run, const dist::World& world, const optim::ZeroOptions& options) {
  std::array<int64_t, category_count> before{};
  for (int c = 0; c < category_count; ++c) {
    before[static_cast<size_t>(c)] = memory_ledger().current(static_cast<Category>(c));
  }
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, options);
  Measured measured;
  for (int64_t step = 0; step < 2; ++step) {
    world.communicator->traffic().reset();
    for (const auto& micro : optimizer.micro_batches(step, run.batch)) {
      const auto [tokens, targets] = tiny_batch(run, micro);
      optimizer.backward(model.loss(tokens, targets));
    }
    optimizer.step();
    optimizer.synchronize();
  }
  for (int c = 0; c < category_count; ++c) {
    measured.memory[static_cast<size_t>(c)] =
        memory_ledger().current(static_cast<Category>(c)) - before[static_cast<size_t>(c)];
  }
  measured.memory[static_cast<size_t>(Category::communication)] +=
      world.communicator->staging_bytes();
  for (int t = 0; t < dist::traffic_count; ++t) {
    measured.traffic[static_cast<size_t>(t)] =
        world.communicator->traffic().bytes_sent(static_cast<dist::Traffic>(t));
  }
  return measured;
}

void check_equal(const TinyRun& run, const dist::World& world, const optim::ZeroOptions& options) {
  models::Gpt model(run.model);
  const optim::Plan plan = optim::plan({.parameters = optim::layout_parameters(model),
                                        .ranks = world.size,
                                        .stage = options.stage,
                                        .bucket_bytes = options.bucket_bytes,
                                        .reduction = options.reduction,
                                        .no_sync = options.no_sync,
                                        .batch = run.batch},
                                       world.rank);
  const Measured measured = measure(run, world, options);
  CAPTURE(options.stage, options.bucket_bytes, options.overlap, options.no_sync, run.batch.global);
  const auto memory = [&measured](Category c) { return measured.memory[static_cast<size_t>(c)]; };
  CHECK(memory(Category::parameters) == plan.parameters);
  CHECK(memory(Category::gradients) == plan.gradients);
  CHECK(memory(Category::optimizer_state) == plan.optimizer_state);
  CHECK(memory(Category::communication) == plan.communication);
  CHECK(memory(Category::activations) == 0);
  CHECK(measured.traffic == plan.traffic);
}

TEST_CASE("measured bytes equal the plan's") {
  const dist::World world = job_world();
  for (const int stage : {0, 1, 2}) {
    for (const int64_t bucket_bytes : {int64_t{64}, int64_t{6000}, int64_t{1} << 24}) {
      for (const bool overlap : {true, false}) {
        for (const int64_t global : {2, 24}) {
          const TinyRun run{.batch = {.global = global, .micro = 2}};
          check_equal(run, world,
                      {.stage = stage, .bucket_bytes = bucket_bytes, .overlap = overlap});
        }
      }
    }
  }
}

TEST_CASE("measured bytes equal the plan's: fast reduction, no_sync") {
  const dist::World world = job_world();
  for (const int stage : {0, 1, 2}) {
    check_equal({}, world, {.stage = stage, .bucket_bytes = 6000, .no_sync = true});
    check_equal({}, world,
                {.stage = stage, .bucket_bytes = 6000, .reduction = optim::Reduction::fast});
  }
}

TEST_CASE("measured bytes equal the plan's where a rank has nothing to do") {
  // One micro-batch: only rank 0 sends gradients.
  check_equal({.batch = {.global = 2, .micro = 2}}, job_world(), {.stage = 2});
}

}  // namespace
}  // namespace tessera::test
