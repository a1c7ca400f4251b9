// Tests optimizer offload on two devices. The ranks compute on a GPU or, in CPU tests, on cpu:1 (a
// second device in host memory that is counted separately, core/device.h). Master weights and
// optimizer state must be on the host only. The results must have the same bits as without offload.
#include "optim/plan/plan.h"
#include "tests/support/catch.h"
#include "tests/support/memory_use.h"
#include "tests/support/mixed_model.h"
#include "tests/support/second_device_communicator.h"
#include "tests/support/table_model.h"

namespace tessera::test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16};

TinyRun run_of(DType dtype, int64_t steps = 4) {
  return {.steps = steps, .batch = {.global = 26, .micro = 2}, .dtype = dtype};
}

optim::ZeroOptions options_of(int stage, optim::Offload offload) {
  return {.stage = stage, .bucket_bytes = 3000, .clip = 0.5f, .offload = offload};
}

TEST_CASE("offload: the computing device never holds optimizer state, the host does") {
  const dist::World world = beside_the_host(job_world());
  for (const DType dtype : dtypes) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      const MemoryUse device(*world.communicator, world.communicator->device());
      const MemoryUse host(*world.communicator);
      train_tiny(run_of(dtype, 1), world, options_of(stage, optim::Offload::optimizer));
      CHECK(device.peak(Category::optimizer_state) == 0);
      CHECK(host.peak(Category::optimizer_state) > 0);
      CHECK(host.peak(Category::communication) > 0);  // buffers for gradient sums and weights
    }
  }
}

TEST_CASE("without offload, the optimizer state is on the computing device") {
  const dist::World world = beside_the_host(job_world());
  for (const DType dtype : dtypes) {
    for (const int stage : {0, 1, 2, 3}) {
      const MemoryUse device(*world.communicator, world.communicator->device());
      const MemoryUse host(*world.communicator);
      train_tiny(run_of(dtype, 1), world, options_of(stage, optim::Offload::none));
      CHECK(device.peak(Category::optimizer_state) > 0);
      CHECK(host.peak(Category::optimizer_state) == 0);
      // With GPUs, flags and copies of a step's scalars are in host memory.
      if (on_cpu()) CHECK(host.peak(Category::communication) == 0);
    }
  }
}

TEST_CASE("offload: parameters and gradients stay on the computing device") {
  const dist::World world = beside_the_host(job_world());
  const MemoryUse device(*world.communicator, world.communicator->device());
  const MemoryUse host(*world.communicator);
  train_tiny(run_of(DType::bf16, 1), world, options_of(3, optim::Offload::optimizer));
  for (const Category category : {Category::parameters, Category::gradients}) {
    CHECK(host.peak(category) == 0);
    CHECK(device.peak(category) > 0);
  }
}

TEST_CASE("offload changes no bit, in any precision, at any stage") {
  const dist::World world = beside_the_host(job_world());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto expected =
        train_tiny(run_of(dtype), lone_world(), options_of(0, optim::Offload::none));
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      CHECK(train_tiny(run_of(dtype), world, options_of(stage, optim::Offload::none)) == expected);
      CHECK(train_tiny(run_of(dtype), world, options_of(stage, optim::Offload::optimizer)) ==
            expected);
    }
  }
}

TEST_CASE("offload by ranks that compute on the host changes nothing", "[cpu]") {
  const TinyRun run = run_of(DType::f32);
  const MemoryUse host(*job_world().communicator);
  const auto expected = train_tiny(run, job_world(), options_of(2, optim::Offload::none));
  const int64_t state = host.peak(Category::optimizer_state);
  const MemoryUse offloaded(*job_world().communicator);
  CHECK(train_tiny(run, job_world(), options_of(2, optim::Offload::optimizer)) == expected);
  CHECK(offloaded.peak(Category::optimizer_state) == state);
}

TEST_CASE("offload: parameters and state are set, read and gathered as without") {
  const dist::World world = beside_the_host(job_world());
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto run = [&](optim::Offload offload) {
      MixedModel model(DType::bf16);
      optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, options_of(stage, offload));
      const TinyRun sizes{.batch = {.global = 10, .micro = 2}};
      const Training training{.batch = sizes.batch, .loss = [&](const auto& micro) {
                                return model.loss(tiny_batch(sizes, micro));
                              }};
      optimizer.set_parameters([](const nn::NamedParameter&, int64_t begin, std::span<float> out) {
        for (size_t i = 0; i < out.size(); ++i) {
          out[i] = 1e-3f * static_cast<float>((begin + static_cast<int64_t>(i)) % 100);
        }
      });
      TrainingResult result;
      for (int64_t step = 0; step < 2; ++step) train_step(optimizer, training, step, result);
      result.weights = weights_of(optimizer);
      for (const auto& [name, shard] : optimizer.consolidated_state()) {
        result.weights["state of " + name] = shard.values.at("exp_avg_sq");
      }
      for (const auto& micro : optimizer.micro_batches(2, training.batch)) {
        optimizer.backward(training.loss(micro));
      }
      for (const char* name : {"table.weight", "head.bias"}) {
        const Tensor gradient = optimizer.gradient(name);
        const auto values = gradient.template values<float>();
        result.weights[std::string("gradient of ") + name].assign(values.begin(), values.end());
      }
      return result;
    };
    CHECK(run(optim::Offload::optimizer) == run(optim::Offload::none));
  }
}

const optim::UpdateRule adamw = optim::AdamW{.learning_rate = 1e-2f, .weight_decay = 0.1f};

TEST_CASE("row-sparse tables: offload changes no bit, in chunks of any size") {
  const dist::World world = beside_the_host(job_world());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool all_rows : {false, true}) {
      const TableRun run{.dtype = dtype};
      optim::ZeroOptions options{.stage = 0, .clip = 0.5f, .update_all_rows = all_rows};
      if (!all_rows) options.table_rule = optim::RowwiseAdagrad{.learning_rate = 5e-2f};
      const TrainingResult expected = train_tables(run, adamw, lone_world(), options);
      options.offload = optim::Offload::optimizer;
      for (const int stage : {0, 1, 2, 3}) {
        // The rows of a table are updated in chunks. With these bucket sizes a chunk has one row of
        // the table of items, a few rows, or all rows.
        for (const int64_t bucket : {80, 700, 1 << 20}) {
          CAPTURE(dtype_name(dtype), all_rows, stage, bucket);
          options.stage = stage;
          options.bucket_bytes = bucket;
          CHECK(train_tables(run, adamw, world, options) == expected);
        }
      }
    }
  }
}

TEST_CASE("row-sparse tables: state is gathered as without offload") {
  const dist::World world = beside_the_host(job_world());
  for (const int stage : {0, 2, 3}) {
    CAPTURE(stage);
    const auto state = [&](optim::Offload offload) {
      const TableRun run{.dtype = DType::bf16};
      TableModel model(run);
      optim::ZeroOptimizer optimizer(model, adamw, world, options_of(stage, offload));
      optimizer.step(0, run.batch, [&](const MicroBatch& micro) { return model.loss(micro); });
      Weights result;
      for (const auto& [name, shard] : optimizer.consolidated_state()) {
        for (const auto& [kind, values] : shard.values) result[name + " " + kind] = values;
      }
      return result;
    };
    CHECK(state(optim::Offload::optimizer) == state(optim::Offload::none));
  }
}

TEST_CASE("row-sparse tables: with offload the host holds the state, as planned", "[cpu]") {
  const dist::World world = beside_the_host(fresh_world());
  for (const int stage : {0, 1, 2, 3}) {
    for (const int64_t bucket : {500, 1 << 20}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        CAPTURE(stage, bucket, dtype_name(dtype));
        TableModel model(TableRun{.dtype = dtype});
        model.users().weight.set_lookups(2);
        model.bias().weight.set_lookups(2);
        const MemoryUse device(*world.communicator, world.communicator->device());
        const MemoryUse host(*world.communicator);
        optim::ZeroOptimizer optimizer(model, adamw, world,
                                       {.stage = stage,
                                        .bucket_bytes = bucket,
                                        .clip = 0.5f,
                                        .offload = optim::Offload::optimizer});
        const TableRun run{};
        for (int64_t step = 0; step < 2; ++step) {
          optimizer.step(step, run.batch,
                         [&](const MicroBatch& micro) { return model.loss(micro); });
        }
        optimizer.synchronize();
        const optim::Plan plan = optim::plan({.parameters = optim::plan_parameters(model),
                                              .ranks = world.size,
                                              .stage = stage,
                                              .bucket_bytes = bucket,
                                              .batch = run.batch,
                                              .state_tensors = 2,
                                              .offload = true,
                                              .staging_bytes = 0},
                                             world.rank);
        CHECK(device.peak(Category::optimizer_state) == 0);
        CHECK(host.peak(Category::optimizer_state) == plan.host.optimizer_state);
        CHECK(device.peak(Category::parameters) == plan.parameters);
        CHECK(device.peak(Category::gradients) == plan.gradients);
        // In CPU tests both devices are host memory, so lists of rows may be on either device. The
        // test therefore compares only the sum over both devices.
        CHECK(device.peak(Category::communication) + host.peak(Category::communication) ==
              plan.communication + plan.host.communication);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
