// Tests micro-steps that are launched as CUDA graphs. Bits and traffic must equal those without
// graphs. Peak memory must grow by one DropoutDraws per graph and by one float.
#include "core/ops.h"
#include "core/random.h"
#include "nn/layers.h"
#include "optim/plan/plan.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/memory_use.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

struct Measured {
  TrainingResult result;
  int64_t loss_calls = 0;
  float evaluated = 0;
  std::vector<int64_t> traffic;  // bytes by purpose, then calls by collective
  std::vector<int64_t> peaks;    // by category, of the whole run
};

Measured measure(const TinyRun& run, const dist::World& world, const optim::ZeroOptions& options) {
  const MemoryUse memory(*world.communicator, default_device());
  world.communicator->traffic().reset();
  Measured measured;
  {
    models::Gpt model(run.model);
    model.to(run.dtype);
    optim::ZeroOptimizer optimizer(model, optim::AdamW{.learning_rate = 1e-2f}, world, options);
    TinyBatch input;
    const auto load = [&](const MicroBatch& micro) {
      const TinyBatch next = tiny_batch(run, micro);
      if (!input.tokens.defined()) input = tiny_batch(run, micro);
      input.tokens.copy_from(next.tokens);
      input.targets.copy_from(next.targets);
    };
    const auto loss = [&] {
      ++measured.loss_calls;
      return model.loss(input.tokens, input.targets);
    };
    std::optional<optim::LaunchedStep> before;
    const auto ask = [&] {
      if (!before) return;
      const optim::StepReport report = before->get();
      CHECK(report.without_gradient.empty());
      measured.result.losses.push_back(report.loss);
      measured.result.grad_norms.push_back(report.grad_norm);
    };
    for (int64_t step = 0; step < run.steps; ++step) {
      optimizer.micro_steps(step, run.batch, load, loss);
      const optim::LaunchedStep next = optimizer.launch_step();
      ask();
      before = next;
      if (step == 1) {
        // Evaluates between two steps. At stage 3 the evaluation gathers parameters.
        const NoGrad no_grad;
        model.eval();
        measured.evaluated = model.loss(input.tokens, input.targets).item();
        model.train();
      }
    }
    ask();
    measured.result.weights = weights_of(optimizer);
  }
  const dist::TrafficLedger& traffic = world.communicator->traffic();
  for (int i = 0; i < dist::traffic_count; ++i) {
    measured.traffic.push_back(traffic.bytes_sent(static_cast<dist::Traffic>(i)));
  }
  for (int i = 0; i < dist::collective_count; ++i) {
    measured.traffic.push_back(traffic.calls(static_cast<dist::Collective>(i)));
  }
  for (int c = 0; c < category_count; ++c) {
    measured.peaks.push_back(memory.peak(static_cast<Category>(c)));
  }
  return measured;
}

struct Variant {
  int stage;
  int64_t micro_batches;
  bool recompute = false;
  optim::Reduction reduction = optim::Reduction::ordered;
  DType dtype = DType::f32;
  bool overlap = true;
  bool no_sync = false;
};

void check_variant(const Variant& variant, const dist::World& world) {
  CAPTURE(variant.stage, variant.micro_batches, variant.recompute, dtype_name(variant.dtype),
          variant.overlap, variant.no_sync, variant.reduction == optim::Reduction::fast);
  TinyRun run{.steps = 4, .batch = {.global = 2 * variant.micro_batches, .micro = 2}};
  run.model.recompute = variant.recompute;
  run.dtype = variant.dtype;
  optim::ZeroOptions options{.stage = variant.stage,
                             .bucket_bytes = 6000,
                             .overlap = variant.overlap,
                             .reduction = variant.reduction,
                             .no_sync = variant.no_sync,
                             .clip = 0.5f,
                             .seed = 3};
  const Measured expected = measure(run, world, options);
  options.graph = true;
  const Measured measured = measure(run, world, options);
  CHECK(measured.result == expected.result);
  CHECK(measured.evaluated == expected.evaluated);
  CHECK(measured.traffic == expected.traffic);

  const int64_t micro_steps = run.batch.micro_steps(world.size);
  CHECK(expected.loss_calls == run.steps * micro_steps);
  const int64_t graphs = optim::graph_count(run.batch, world.size, run.steps, variant.no_sync);
  CHECK(measured.loss_calls == 1 + graphs);
  std::vector<int64_t> peaks = expected.peaks;
  peaks[static_cast<size_t>(Category::workspace)] += graphs * int64_t{sizeof(DropoutDraws)};
  peaks[static_cast<size_t>(Category::communication)] += int64_t{sizeof(float)};
  CHECK(measured.peaks == peaks);
}

bool can_capture() { return job_world().communicator->captures(); }

TEST_CASE("launched steps as graphs: equal bits, traffic and memory") {
  if (!can_capture()) TESSERA_SKIP("graphs are captured on CUDA, over NCCL");
  constexpr auto fast = optim::Reduction::fast;
  const dist::World world = job_world();
  const int64_t n = world.size;
  for (const int stage : {0, 1, 2, 3}) {
    check_variant({.stage = stage, .micro_batches = n}, world);
    check_variant({.stage = stage, .micro_batches = 3 * n, .recompute = true}, world);
    check_variant({.stage = stage, .micro_batches = 3 * n, .reduction = fast}, world);
  }
  for (const int stage : {1, 3}) {
    check_variant({.stage = stage, .micro_batches = 2 * n, .dtype = DType::bf16, .overlap = false},
                  world);
    // In the last micro-step only rank 0 has a micro-batch. The other ranks repeat the micro-batch
    // of rank 0. The losses and gradients of these repeats must not be added.
    check_variant({.stage = stage, .micro_batches = 2 * n + 1, .recompute = true}, world);
  }
  check_variant({.stage = 0, .micro_batches = 3 * n, .no_sync = true}, world);
  check_variant({.stage = 2, .micro_batches = 3, .recompute = true}, lone_world());
}

class Renamed : public nn::Module {
 public:
  explicit Renamed(nn::Module& module) { add("later", module); }
};

// Trains one layer, then the same layer with larger batches, then both layers.
TrainingResult train_changing(bool graph, int stage) {
  constexpr int64_t width = 24;
  nn::Linear first(width, width), second(width, width);
  Renamed later(second);
  const dist::World world = job_world();
  optim::ZeroOptimizer optimizer(first, optim::AdamW{.learning_rate = 1e-2f}, world,
                                 {.stage = stage, .bucket_bytes = 1000, .graph = graph});
  const Tensor input = Tensor::empty({2, width});
  TrainingResult result;
  bool both = false;
  for (int64_t step = 0; step < 9; ++step) {
    if (step == 6) optimizer.add_param_group(later, {.learning_rate = 5e-3f});
    both = step >= 6;
    const Batch batch{.global = (step < 3 ? 4 : 6) * world.size, .micro = 2};
    const auto load = [&](const MicroBatch& micro) {
      input.copy_from(random_tensor({2, width}, static_cast<uint64_t>(100 * step + micro.index)));
    };
    optimizer.micro_steps(step, batch, load, [&] {
      const Tensor x = ops::gelu(first(input));
      const Tensor y = both ? second(x) : x;
      return ops::mean(ops::mul(y, y));
    });
    const optim::StepReport report = optimizer.step();
    result.losses.push_back(report.loss);
    result.grad_norms.push_back(report.grad_norm);
  }
  result.weights = weights_of(optimizer);
  return result;
}

TEST_CASE("launched steps as graphs: captured again when batches or parameters change") {
  if (!can_capture()) TESSERA_SKIP("graphs are captured on CUDA, over NCCL");
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    const TrainingResult expected = train_changing(false, stage);
    CHECK(expected.weights.size() == 4);
    CHECK(train_changing(true, stage) == expected);
  }
}

TEST_CASE("launched steps as graphs: unsupported runs are refused with the reason") {
  const auto refuses = [](const char* why, const dist::World& world, optim::ZeroOptions options,
                          DType dtype = DType::f32) {
    models::Gpt model(TinyRun{}.model);
    model.to(dtype);
    options.graph = true;
    const auto make = [&] { optim::ZeroOptimizer(model, optim::AdamW{}, world, options); };
    CHECK_THROWS_AS(make(), InputError);
    CHECK_THROWS_WITH(make(), ContainsSubstring(why));
  };
  refuses("graph: the ranks compute on the CPU", {.communicator = dist::single_communicator()}, {});
  if (on_cpu()) return;
  const auto staged =
      dist::staged_communicator(dist::single_communicator(), default_device().index);
  refuses("graph: single sends buckets through the host", {.communicator = staged}, {});
  refuses("graph: offload updates on the host", lone_world(),
          {.offload = optim::Offload::optimizer});
  refuses("graph: loss scaling (f16)", lone_world(), {.loss_scaling = optim::LossScaling{}});
  refuses("graph: loss scaling (f16)", lone_world(), {}, DType::f16);

  const TinyRun run{.batch = {.global = 4, .micro = 2}};
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, lone_world(), {.graph = true});
  CHECK_THROWS_WITH(optimizer.micro_batches(0, run.batch),
                    ContainsSubstring("call micro_steps(step, batch, load, loss)"));
  const TinyBatch input = tiny_batch(run, {.samples = 2});
  int calls = 0;
  const auto loss = [&] {
    return ++calls == 1 ? model.loss(input.tokens, input.targets) : Tensor();
  };
  CHECK_THROWS_WITH(optimizer.micro_steps(0, run.batch, [](const auto&) {}, loss),
                    ContainsSubstring("a micro-batch has no data, and a graph"));
}

}  // namespace
}  // namespace tessera::test
