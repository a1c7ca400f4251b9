// Tests that the memory and the traffic of row-sparse tables equal the plan.
#include <limits>

#include "optim/plan/plan.h"
#include "optim/plan/plan_tables.h"
#include "tests/support/catch.h"
#include "tests/support/memory_use.h"
#include "tests/support/table_model.h"

namespace tessera::test {
namespace {

using optim::ZeroOptions;

const optim::UpdateRule adamw = optim::AdamW{.learning_rate = 1e-2f, .weight_decay = 0.1f};
const optim::UpdateRule sgd = optim::Sgd{.learning_rate = 5e-2f, .momentum = 0.9f};

optim::PlanInput plan_input(TableModel& model, const TableRun& run, const ZeroOptions& options,
                            const optim::UpdateRule& rule, const dist::World& world) {
  const optim::UpdateRule& of_tables = options.table_rule ? *options.table_rule : rule;
  return {.parameters = optim::plan_parameters(model),
          .ranks = world.size,
          .stage = options.stage,
          .bucket_bytes = options.bucket_bytes,
          .batch = run.batch,
          .state_tensors = std::ssize(rule.state_names()),
          .table_state_tensors = std::ssize(of_tables.state_names()),
          .table_value_per_row = of_tables.value_per_row(),
          .update_all_rows = options.update_all_rows,
          .device = world.communicator->device(),
          .staging_bytes = world.communicator->staging_bytes(),
          .header_bytes = world.communicator->header_bytes()};
}

void check_memory(const MemoryUse& memory, const optim::Plan& plan, const dist::World& world) {
  CHECK(memory.peak(Category::parameters) == plan.parameters);
  CHECK(memory.peak(Category::gradients) == plan.gradients);
  CHECK(memory.peak(Category::optimizer_state) == plan.optimizer_state);
  CHECK(memory.peak(Category::communication) + world.communicator->staging_bytes() ==
        plan.communication);
}

// Compares the peaks of memory, and the traffic of each step, with the plan.
void check_bytes(const TableRun& run, const ZeroOptions& options, const optim::UpdateRule& rule) {
  const dist::World world = fresh_world();
  TableModel model(run);
  model.users().weight.set_lookups(2);
  model.bias().weight.set_lookups(2);
  const MemoryUse memory(*world.communicator, world.communicator->device());
  optim::ZeroOptimizer optimizer(model, rule, world, options);
  const Training training{.batch = run.batch,
                          .loss = [&](const MicroBatch& micro) { return model.loss(micro); }};
  const optim::PlanInput input = plan_input(model, run, options, rule, world);
  const optim::Plan plan = optim::plan(input, world.rank);
  TrainingResult result;
  for (int64_t step = 0; step < 3; ++step) {
    world.communicator->traffic().reset();
    const auto before = optimizer.row_counts();
    train_step(optimizer, training, step, result);
    optimizer.synchronize();
    auto counts = optimizer.row_counts();
    for (auto& [name, count] : counts) {
      count -= before.at(name);
      CHECK(count.updates == (name == "items.weight" && run.freeze_items ? 0 : 1));
    }
    const auto rows = optim::tables_traffic(input, world.rank, counts);
    for (int i = 0; i < dist::traffic_count; ++i) {
      const auto purpose = static_cast<dist::Traffic>(i);
      if (purpose == dist::Traffic::other) continue;
      CAPTURE(step, dist::traffic_name(purpose));
      CHECK(world.communicator->traffic().bytes_sent(purpose) ==
            plan.traffic[static_cast<size_t>(i)] + rows[static_cast<size_t>(i)]);
    }
  }
  check_memory(memory, plan, world);
}

TEST_CASE("row-sparse tables: measured bytes equal the plan") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(stage, dtype_name(dtype));
      check_bytes({.dtype = dtype}, {.stage = stage, .clip = 0.5f}, adamw);
      check_bytes({.dtype = dtype, .freeze_items = true}, {.stage = stage}, sgd);
      check_bytes({.dtype = dtype},
                  {.stage = stage, .table_rule = optim::RowwiseAdagrad{.learning_rate = 0.1f}},
                  adamw);
    }
    check_bytes({}, {.stage = stage, .update_all_rows = true}, adamw);
  }
}

TEST_CASE("row-sparse tables: memory equals the plan if all steps are skipped") {
  const TableRun run{.dtype = DType::f16};
  for (const int stage : {0, 1, 2}) {
    for (const bool update_all_rows : {false, true}) {
      CAPTURE(stage, update_all_rows);
      const ZeroOptions options{
          .stage = stage, .loss_scaling = optim::LossScaling{}, .update_all_rows = update_all_rows};
      const dist::World world = fresh_world();
      TableModel model(run);
      const MemoryUse memory(*world.communicator, world.communicator->device());
      optim::ZeroOptimizer optimizer(model, adamw, world, options);
      const optim::PlanInput input = plan_input(model, run, options, adamw, world);
      const auto report = optimizer.step(0, run.batch, [&](const MicroBatch& micro) {
        return ops::scale(model.loss(micro), std::numeric_limits<float>::infinity());
      });
      CHECK(report.skipped);
      optimizer.synchronize();
      check_memory(memory, optim::plan(input, world.rank), world);
    }
  }
}

}  // namespace
}  // namespace tessera::test
