// The ledgers of a run count its memory and its traffic. Tests that these counts are equal to the
// plan, to the byte. The plan shares little code with the optimizer (optim/plan/plan.h).
#include <initializer_list>
#include <memory>
#include <utility>

#include "optim/plan/plan.h"
#include "tests/support/catch.h"
#include "tests/support/layered_model.h"
#include "tests/support/memory_use.h"
#include "tests/support/mixed_model.h"
#include "tests/support/second_device_communicator.h"
#include "tests/support/tiny_vision.h"

namespace tessera::test {
namespace {

struct Subject {
  std::unique_ptr<nn::Module> model;
  std::function<Tensor(const MicroBatch&)> loss;
};

// Prefixes of the names of the tiny GPT's frozen parameters.
using Frozen = std::initializer_list<const char*>;

Subject tiny_gpt(DType dtype, Frozen frozen = {}, bool recompute = false) {
  TinyRun run;
  run.model.layers = 3;
  run.model.recompute = recompute;
  auto model = std::make_unique<models::Gpt>(run.model);
  model->to(dtype);
  for (const auto& named : model->named_parameters()) {
    for (const char* prefix : frozen) {
      if (named.name.starts_with(prefix)) named.parameter.set_trainable(false);
    }
  }
  auto loss = tiny_training(run, *model).loss;
  return {std::move(model), std::move(loss)};
}

Subject mixed(DType half) {
  auto model = std::make_unique<MixedModel>(half);
  auto loss = [model = model.get()](const MicroBatch& micro) {
    return model->loss(tiny_batch({}, micro));
  };
  return {std::move(model), std::move(loss)};
}

Subject tiny_resnet(DType dtype) {
  TinyVision run;
  run.dtype = dtype;
  auto model = std::make_unique<models::ResNet>(run.model);
  model->to(dtype);
  auto loss = tiny_training(run, *model).loss;
  return {std::move(model), std::move(loss)};
}

struct Run {
  optim::ZeroOptions options;
  int64_t micro_batches = 13;
  int64_t steps = 3;
  Batch batch() const { return {.global = 2 * micro_batches, .micro = 2}; }
};

struct Measured {
  std::array<int64_t, category_count> peaks{};
  std::array<int64_t, category_count> host_peaks{};
  std::array<int64_t, dist::traffic_count> traffic{};
};

std::array<int64_t, category_count> peaks_of(const MemoryUse& use) {
  std::array<int64_t, category_count> peaks{};
  for (int c = 0; c < category_count; ++c) {
    peaks[static_cast<size_t>(c)] = use.peak(static_cast<Category>(c));
  }
  return peaks;
}

// Returns the memory peaks of the whole run, and the traffic of its last step.
Measured measure(const Subject& subject, const dist::World& world, const Run& run) {
  const MemoryUse memory(*world.communicator, world.communicator->device());
  const MemoryUse host(*world.communicator);
  optim::ZeroOptimizer optimizer(*subject.model, optim::AdamW{}, world, run.options);
  const Training training{.batch = run.batch(), .loss = subject.loss};
  TrainingResult result;
  for (int64_t step = 0; step < run.steps; ++step) {
    world.communicator->traffic().reset();
    train_step(optimizer, training, step, result);
    optimizer.synchronize();
  }
  Measured measured{.peaks = peaks_of(memory), .host_peaks = peaks_of(host)};
  for (int t = 0; t < dist::traffic_count; ++t) {
    if (static_cast<dist::Traffic>(t) == dist::Traffic::other) continue;  // not planned
    measured.traffic[static_cast<size_t>(t)] =
        world.communicator->traffic().bytes_sent(static_cast<dist::Traffic>(t));
  }
  CHECK(memory.current(Category::activations) == 0);
  return measured;
}

optim::Plan plan_of(const Subject& subject, const dist::World& world, const Run& run) {
  const optim::ZeroOptions& options = run.options;
  return optim::plan({.parameters = optim::plan_parameters(*subject.model),
                      .ranks = world.size,
                      .stage = options.stage,
                      .bucket_bytes = options.bucket_bytes,
                      .single_pass = run.steps * run.batch().micro_steps(world.size) == 1,
                      .reduction = options.reduction,
                      .no_sync = options.no_sync,
                      .batch = run.batch(),
                      .sum_dtype = options.grad_shard,
                      .offload = options.offload == optim::Offload::optimizer,
                      .statistics = optim::plan_statistics(*subject.model),
                      .fixed_statistics = optim::plan_fixed_statistics(*subject.model),
                      .batch_norms = optim::plan_batch_norms(*subject.model),
                      .sync_batch_norm = options.sync_batch_norm,
                      .device = world.communicator->device(),
                      .staged = job_is_staged(),
                      .staging_bytes = world.communicator->staging_bytes(),
                      .header_bytes = world.communicator->header_bytes()},
                     world.rank);
}

// Compares the peaks of memory and the traffic of a run with its plan. The default world is
// fresh_world(), because earlier calls may have enlarged the host buffers of job_world()'s
// communicator.
void check_equal(const Subject& subject, const Run& run, const dist::World& world = fresh_world()) {
  const optim::ZeroOptions& options = run.options;
  CAPTURE(options.stage, options.bucket_bytes, options.overlap, run.micro_batches,
          dtype_name(options.grad_shard));
  const optim::Plan plan = plan_of(subject, world, run);
  const Measured measured = measure(subject, world, run);
  const auto peak = [&](Category c) { return measured.peaks[static_cast<size_t>(c)]; };
  const int64_t staging = world.communicator->staging_bytes();  // not in the measured peak
  if (options.overlap || options.stage < 3) {
    CHECK(peak(Category::parameters) == plan.parameters);
  } else {
    // plan_of() plans with overlap, which gathers a block of the model ahead. This run is without
    // overlap, so it gathers no block ahead.
    CHECK(peak(Category::parameters) < plan.parameters);
  }
  CHECK(peak(Category::gradients) == plan.gradients);
  CHECK(peak(Category::optimizer_state) == plan.optimizer_state);
  CHECK(peak(Category::communication) + staging == plan.communication);
  CHECK(measured.traffic == plan.traffic);
  if (world.communicator->device() == Device{}) return;
  const auto on_host = [&](Category c) { return measured.host_peaks[static_cast<size_t>(c)]; };
  CHECK(on_host(Category::parameters) == 0);
  CHECK(on_host(Category::gradients) == 0);
  CHECK(on_host(Category::optimizer_state) == plan.host.optimizer_state);
  const int64_t host_staging = job_is_staged() ? dist::mpi_staging_bytes(world.size) : 0;
  CHECK(on_host(Category::communication) + host_staging == plan.host.communication);
}

struct Precision {
  DType dtype;
  DType grad_shard;
};
constexpr Precision precisions[] = {{DType::f32, DType::f32},
                                    {DType::bf16, DType::f32},
                                    {DType::bf16, DType::bf16},
                                    {DType::f16, DType::f32}};

TEST_CASE("measured bytes equal the plan's", "[slow]") {
  for (const auto& [dtype, grad_shard] : precisions) {
    CAPTURE(dtype_name(dtype));
    for (const int stage : {0, 1, 2, 3}) {
      for (const int64_t bucket_bytes : {int64_t{64}, int64_t{6000}, int64_t{1} << 24}) {
        for (const int64_t micro_batches : {1, 13}) {  // with 1, only rank 0 sends gradients
          check_equal(tiny_gpt(dtype),
                      {{.stage = stage, .bucket_bytes = bucket_bytes, .grad_shard = grad_shard},
                       micro_batches});
        }
      }
    }
  }
}

TEST_CASE("measured bytes equal the plan's: without overlap") {
  for (const int stage : {0, 1, 2, 3}) {
    check_equal(tiny_gpt(DType::bf16), {{.stage = stage, .bucket_bytes = 6000, .overlap = false}});
  }
}

TEST_CASE("measured bytes equal the plan's: fast reduction, no_sync", "[slow]") {
  for (const auto& [dtype, grad_shard] : precisions) {
    CAPTURE(dtype_name(dtype));
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool no_sync : {true, false}) {
        const optim::ZeroOptions options{
            .stage = stage,
            .bucket_bytes = 6000,
            .reduction = no_sync ? optim::Reduction::ordered : optim::Reduction::fast,
            .no_sync = no_sync,
            .grad_shard = grad_shard};
        for (const int64_t micro_batches : {1, 4, 13}) {
          check_equal(tiny_gpt(dtype), {options, micro_batches});
        }
      }
    }
  }
}

TEST_CASE("measured bytes equal the plan's: frozen parameters", "[slow]") {
  const Frozen choices[] = {
      {"h.0."}, {"h.2."}, {"wte", "wpe"}, {"wte", "wpe", "h.0."}, {"h.1.mlp"}};
  for (const Frozen& frozen : choices) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(*frozen.begin(), frozen.size(), dtype_name(dtype));
        check_equal(tiny_gpt(dtype, frozen), {{.stage = stage, .bucket_bytes = 6000}});
      }
    }
  }
}

TEST_CASE("measured bytes equal the plan's: blocks that backward does not read") {
  const Run run{{.stage = 3, .bucket_bytes = 6000}};
  // The token table is frozen. In its block, only the position table is trained.
  check_equal(tiny_gpt(DType::f32, {"wte"}), run);
  // In block h.1 only the bias of mlp.c_proj is trained. Backward reads this bias again only to
  // recompute the block.
  const Frozen but_a_bias = {"h.1.ln", "h.1.attn", "h.1.mlp.c_fc", "h.1.mlp.c_proj.weight"};
  for (const bool recompute : {false, true}) {
    CAPTURE(recompute);
    check_equal(tiny_gpt(DType::f32, but_a_bias, recompute), run);
  }
}

TEST_CASE("sent bytes equal the plan's: each weight and each bias is gathered alone") {
  // Backward reads no bias. It does not read the first weight either, because the gradient of the
  // model's input is not needed.
  auto model = std::make_unique<LayeredModel>(LayeredOptions{.blocks = false});
  auto loss = [model = model.get()](const MicroBatch& micro) { return model->loss(micro); };
  const Subject subject{std::move(model), std::move(loss)};
  const Run run{{.stage = 3, .bucket_bytes = 64}};
  CHECK(measure(subject, job_world(), run).traffic == plan_of(subject, job_world(), run).traffic);
}

TEST_CASE("measured bytes equal the plan's: a run of one micro-step") {
  for (const int stage : {0, 1, 2, 3}) {
    check_equal(
        tiny_gpt(DType::f32),
        {.options = {.stage = stage, .bucket_bytes = 6000}, .micro_batches = 1, .steps = 1});
  }
}

TEST_CASE("measured bytes equal the plan's: more ranks than a bucket has blocks", "[many]") {
  for (const int stage : {0, 1, 2, 3}) {
    check_equal(tiny_gpt(DType::bf16), {{.stage = stage, .bucket_bytes = 1024}});
  }
}

TEST_CASE("measured bytes equal the plan's: two dtypes in one model, nothing tied") {
  for (const DType half : {DType::bf16, DType::f16}) {
    for (const DType grad_shard : {DType::f32, DType::bf16}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const int64_t bucket_bytes : {int64_t{64}, int64_t{6000}, int64_t{1} << 24}) {
          check_equal(mixed(half),
                      {{.stage = stage, .bucket_bytes = bucket_bytes, .grad_shard = grad_shard}});
        }
      }
    }
  }
}

TEST_CASE("measured bytes equal the plan's: batch norms") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool synchronized : {false, true}) {
        CAPTURE(dtype_name(dtype), synchronized);
        check_equal(tiny_resnet(dtype),
                    {{.stage = stage, .bucket_bytes = 6000, .sync_batch_norm = synchronized},
                     synchronized ? job_world().size : 13});
      }
    }
  }
}

TEST_CASE("measured bytes equal the plan's: offload, on both devices") {
  for (const auto& [dtype, grad_shard] : precisions) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype));
      check_equal(tiny_gpt(dtype),
                  {{.stage = stage,
                    .bucket_bytes = 6000,
                    .grad_shard = grad_shard,
                    .offload = optim::Offload::optimizer}},
                  beside_the_host(fresh_world()));
    }
  }
  for (const int stage : {0, 2, 3}) {
    check_equal(mixed(DType::bf16),
                {{.stage = stage, .bucket_bytes = 3000, .offload = optim::Offload::optimizer}},
                beside_the_host(fresh_world()));
  }
}

}  // namespace
}  // namespace tessera::test
