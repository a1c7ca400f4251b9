// Tests models with frozen parameters, with parameters of several dtypes, and with parameters that
// join the optimizer later. Bits must be equal for any number of ranks and every stage. Only
// trained parameters may take memory for gradients and optimizer state.
#include "core/ops/convert.h"
#include "nn/convolution.h"
#include "tests/support/catch.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/layered_model.h"
#include "tests/support/memory_use.h"
#include "tests/support/mixed_model.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

void freeze(const nn::Module& model, const std::string& prefix) {
  for (const auto& named : model.named_parameters()) {
    if (named.name.starts_with(prefix)) named.parameter.set_trainable(false);
  }
}

TrainingResult train_frozen(const TinyRun& run, const std::string& frozen, const dist::World& world,
                            const optim::ZeroOptions& options) {
  models::Gpt model(run.model);
  model.to(run.dtype);
  freeze(model, frozen);
  return train(model, tiny_training(run, model), world, options);
}

TEST_CASE("frozen parameters keep their values, the others train with one rank's bits") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // Freezes a whole transformer block, a part of one, or the tied table.
    for (const char* frozen : {"h.0.", "h.1.mlp", "wte"}) {
      TinyRun run{.steps = 3, .batch = {.global = 26, .micro = 2}, .dtype = dtype};
      const auto expected = train_frozen(run, frozen, lone_world(), {.stage = 0, .clip = 0.5f});
      models::Gpt fresh(run.model);
      fresh.to(dtype);
      optim::ZeroOptimizer untrained(fresh, optim::AdamW{}, lone_world());
      for (const auto& [name, values] : weights_of(untrained)) {
        CAPTURE(name);
        if (name.starts_with(frozen)) {
          // Frozen parameters are held in the model's dtype only; they have no master weights.
          const Tensor rounded = Tensor::empty({static_cast<int64_t>(values.size())}, dtype);
          kernels::convert(current_context({}), rounded,
                           Tensor::from<float>({rounded.elements()}, values));
          const auto held = doubles(rounded);
          CHECK(std::vector<float>(held.begin(), held.end()) == expected.weights.at(name));
        } else {
          CHECK(values != expected.weights.at(name));
        }
      }
      for (const int stage : {0, 1, 2, 3}) {
        for (const bool recompute : {false, true}) {
          CAPTURE(dtype_name(dtype), frozen, stage, recompute);
          run.model.recompute = recompute;
          const optim::ZeroOptions options{.stage = stage, .bucket_bytes = 3000, .clip = 0.5f};
          CHECK(train_frozen(run, frozen, job_world(), options) == expected);
        }
      }
    }
  }
}

TEST_CASE("frozen parameters have neither gradients nor state") {
  const dist::World world = job_world();
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    // Each of the two layers has one bucket of 4 blocks of 256 elements: 24 x 24 = 576 weights take
    // 3 blocks, and 24 biases take 1. One of the layers is frozen.
    const int64_t shard = (4 + world.size - 1) / world.size * 256;
    const int64_t flat = shard * world.size;
    const MemoryUse memory(*world.communicator, default_device());
    LayeredModel model({.layers = 2});
    freeze(model, "0.");
    optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = stage});
    const Training training{.loss = [&](const auto& micro) { return model.loss(micro); }};
    TrainingResult result;
    train_step(optimizer, training, 0, result);
    CHECK(memory.current(Category::parameters) == 2 * 4 * (stage == 3 ? shard : flat));
    CHECK(memory.peak(Category::gradients) == 4 * (flat + shard));  // a bucket, and a shard of sums
    CHECK(memory.peak(Category::optimizer_state) == 2 * 4 * (stage == 0 ? flat : shard));
    CHECK(optimizer.state().count("0.weight") == 0);
  }
}

TEST_CASE("stage 3: a frozen block is gathered for forward, and again for backward") {
  // The gradient of the trained layer 0 is computed through the frozen layers 1 and 2, so backward
  // reads their weights too.
  const int64_t steps = 4;
  const Batch batch{.global = 14, .micro = 2};
  const auto run = [&](const dist::World& world, int stage) {
    LayeredModel model({.layers = 4});
    freeze(model, "1.");
    freeze(model, "2.");
    const Training training{.steps = steps, .batch = batch, .loss = [&](const auto& micro) {
                              return model.loss(micro);
                            }};
    world.communicator->barrier();  // no call of an earlier case may count
    world.communicator->traffic().reset();
    return train(model, training, world, {.stage = stage});
  };
  const auto expected = run(lone_world(), 0);
  const dist::World world = job_world();
  CHECK(run(world, 3) == expected);
  // A micro-step has five gathers. Forward gathers each layer. Backward reads layers 3, 2 and 1.
  // Trained and frozen layers are gathered apart, and the last layers of both, 3 and 2, are still
  // there. So only layer 1 is gathered again.
  const int64_t shard_bytes = (4 + world.size - 1) / world.size * 256 * 4;
  const int64_t gathers = 5 * steps * batch.micro_steps(world.size);
  CHECK(world.communicator->traffic().bytes_sent(dist::Traffic::parameters) ==
        gathers * (world.size - 1) * shard_bytes);
}

TEST_CASE("freezing and unfreezing parameters of an optimizer is refused") {
  for (const int stage : {2, 3}) {
    LayeredModel model;
    freeze(model, "0.");
    const optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = stage});
    CHECK_THROWS_WITH(model.layer(0).weight.set_trainable(true),
                      ContainsSubstring("'0.weight' is already optimised"));
    CHECK_THROWS_WITH(model.layer(1).weight.set_trainable(false),
                      ContainsSubstring("'1.weight' is already optimised"));
  }
}

TrainingResult train_mixed(DType half, const dist::World& world,
                           const optim::ZeroOptions& options) {
  MixedModel model(half);
  const TinyRun run{.batch = {.global = 26, .micro = 2}};
  const Training training{.batch = run.batch, .loss = [&](const MicroBatch& micro) {
                            return model.loss(tiny_batch(run, micro));
                          }};
  return train(model, training, world, options);
}

TEST_CASE("two dtypes in one model: one rank's bits at every stage") {
  for (const DType half : {DType::bf16, DType::f16}) {
    for (const DType grad_shard : {DType::f32, DType::bf16}) {
      const auto options = [&](int stage, int64_t bucket_bytes, bool overlap) {
        return optim::ZeroOptions{.stage = stage,
                                  .bucket_bytes = bucket_bytes,
                                  .overlap = overlap,
                                  .clip = 0.5f,
                                  .grad_shard = grad_shard};
      };
      const auto expected = train_mixed(half, lone_world(), options(0, 1 << 20, false));
      CHECK(expected.losses.back() < expected.losses.front());
      for (const int stage : {0, 1, 2, 3}) {
        for (const int64_t bucket_bytes : {int64_t{64}, int64_t{1} << 20}) {
          CAPTURE(dtype_name(half), dtype_name(grad_shard), stage, bucket_bytes);
          const bool overlap = stage % 2 == 0 || bucket_bytes == 64;
          CHECK(train_mixed(half, job_world(), options(stage, bucket_bytes, overlap)) == expected);
        }
      }
    }
  }
}

// Trains three layers. The last two join the optimizer after two steps, with dtype `joining`.
TrainingResult train_joining(DType joining, const dist::World& world, int stage) {
  LayeredModel model({.layers = 1});
  LayeredModel later({.layers = 2, .dtypes = {joining, joining}});
  struct Renamed : nn::Module {
    explicit Renamed(LayeredModel& inner) { add("later", inner); }
  } renamed(later);
  nn::materialize(renamed);  // the layers get their values before they join
  const Training training{.batch = {.global = 14, .micro = 2},
                          .rule = optim::AdamW{.learning_rate = 1e-2f},
                          .loss = [&](const MicroBatch& micro) {
                            const Tensor own = model.loss(micro);
                            return micro.step < 2 ? own : ops::add(own, later.loss(micro));
                          }};
  optim::ZeroOptimizer optimizer(model, training.rule, world,
                                 {.stage = stage, .bucket_bytes = 1024, .clip = 0.5f});
  TrainingResult result;
  for (int64_t step = 0; step < 5; ++step) {
    if (step == 2) optimizer.add_param_group(renamed, {.learning_rate = 5e-3f});
    train_step(optimizer, training, step, result);
  }
  result.weights = weights_of(optimizer);
  return result;
}

TEST_CASE("parameters added later train in their own group and dtype, at every stage") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto expected = train_joining(dtype, lone_world(), 0);
    CHECK(expected.weights.size() == 6);
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      CHECK(train_joining(dtype, job_world(), stage) == expected);
    }
  }
}

TEST_CASE("add_param_group: duplicate names and invalid hyper-parameters are refused") {
  for (const int stage : {0, 3}) {
    LayeredModel model;
    LayeredModel other;
    optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = stage});
    CHECK_THROWS_WITH(optimizer.add_param_group(other, {}),
                      ContainsSubstring("the name '0.weight' is taken"));
    struct Renamed : nn::Module {
      explicit Renamed(LayeredModel& inner) { add("other", inner); }
    } renamed(other);
    CHECK_THROWS_WITH(optimizer.add_param_group(renamed, {.learning_rate = -1.0f}),
                      ContainsSubstring("group 1 has a learning rate of -1"));
    optimizer.add_param_group(renamed, {});
    LayeredModel third;
    struct RenamedAgain : nn::Module {
      explicit RenamedAgain(LayeredModel& inner) { add("third", inner); }
    } again(third);
    CHECK_THROWS_WITH(optimizer.add_param_group(again, {.learning_rate = -1.0f}),
                      ContainsSubstring("group 2 has a learning rate of -1"));
    CHECK(weights_of(optimizer).count("other.2.bias") == 1);
  }
}

// On the last rank, `left` more allocations succeed and the next one fails, as if memory had run
// out. None fails if `left` is negative.
class ShortOfMemory : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    if (rank() == size() - 1 && left-- == 0) fail("no memory for {} bytes", bytes);
    return ForwardingCommunicator::allocate(bytes, category);
  }
  int left = -1;
};

// A module with a batch norm, and with one layer in each of two dtypes.
struct Joining : nn::Module {
  Joining() : layers({.layers = 2, .dtypes = {DType::f32, DType::bf16}}), norm(3) {
    add("later", layers);
    add("norm", norm);
  }
  Tensor loss(const MicroBatch& micro) {
    const auto seed = static_cast<uint64_t>(micro.first_sample);
    const Tensor image = norm(random_tensor({micro.samples, 2, 2, 3}, seed));
    return ops::add(layers.loss(micro), ops::mean(ops::mul(image, image)));
  }
  LayeredModel layers;
  nn::BatchNorm2d norm;
};

std::string bytes_of(const nn::Module& model) {
  std::string bytes;
  for (const auto& named : model.named_parameters()) {
    const Tensor values = named.parameter.tensor().detach().to_host();
    bytes.append(static_cast<const char*>(values.raw()), static_cast<size_t>(values.bytes()));
  }
  return bytes;
}

TEST_CASE("a constructor that runs out of memory leaves the model as it was", "[cpu]") {
  dist::World world = lone_world();
  const auto memory = std::make_shared<ShortOfMemory>(world.communicator);
  world.communicator = memory;
  for (const bool has_values : {false, true}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(has_values, stage);
      Joining model;
      Joining untouched;
      if (has_values) {
        // The seed 7 is not the optimizers' seed, so these values differ from the initial values
        // that an optimizer would give the parameters.
        nn::materialize(model, {}, 7);
        nn::materialize(untouched, {}, 7);
        backward(model.layers.loss({.samples = 2}));
      }
      const std::string before = has_values ? bytes_of(model) : "";
      const auto optimizer_of = [&](nn::Module& module) {
        return std::make_unique<optim::ZeroOptimizer>(
            module, optim::AdamW{}, world,
            optim::ZeroOptions{.stage = stage, .bucket_bytes = 1024});
      };
      std::unique_ptr<optim::ZeroOptimizer> optimizer;
      int failed = 0;
      for (; failed < 100; ++failed) {
        const MemoryUse use(*world.communicator);
        memory->left = failed;
        const std::string text = message_of<Error>([&] { optimizer = optimizer_of(model); });
        memory->left = -1;
        if (optimizer) break;
        CHECK_THAT(text, ContainsSubstring("no memory for"));
        for (const auto& named : model.named_parameters()) {
          CHECK(named.parameter.tensor().allocated() == has_values);
        }
        if (has_values) CHECK((bytes_of(model) == before));
        CHECK(model.layers.layer(0).weight.gradient().defined() == has_values);
        for (int c = 0; c < category_count; ++c) CHECK(use.current(Category(c)) == 0);
      }
      REQUIRE((failed > 4 && failed < 100));
      CHECK(weights_of(*optimizer) == weights_of(*optimizer_of(untouched)));
    }
  }
}

TEST_CASE("add_param_group: if one rank is out of memory, nothing changes on any rank", "[cpu]") {
  for (const dist::World& job : {lone_world(), job_world()}) {
    dist::World world = job;
    const auto memory = std::make_shared<ShortOfMemory>(job.communicator);
    world.communicator = memory;
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(stage, world.size);
      const auto train_on = [&](int failures) {
        LayeredModel model({.layers = 1});
        Joining later;
        nn::materialize(later);
        const std::string before = bytes_of(later);
        const Training training{.batch = {.global = 14, .micro = 2},
                                .loss = [&](const MicroBatch& micro) {
                                  const Tensor own = model.loss(micro);
                                  return micro.step == 0 ? own : ops::add(own, later.loss(micro));
                                }};
        optim::ZeroOptimizer optimizer(model, training.rule, world,
                                       {.stage = stage, .bucket_bytes = 1024, .clip = 0.5f});
        TrainingResult result;
        train_step(optimizer, training, 0, result);
        int failed = 0;
        for (; failed < failures; ++failed) {
          const MemoryUse use(*job.communicator);
          memory->left = failed;
          std::string text;
          try {
            optimizer.add_param_group(later, {.learning_rate = 5e-3f});
          } catch (const Error& error) {
            text = error.what();
          }
          memory->left = -1;
          if (text.empty()) break;
          const bool here = world.rank == world.size - 1;
          CHECK_THAT(text, ContainsSubstring(here ? "no memory for" : "could not take"));
          CHECK((bytes_of(later) == before));
          CHECK(optimizer.options().groups.empty());
          for (int c = 0; c < category_count; ++c) CHECK(use.current(Category(c)) == 0);
        }
        if (failures > 0) CHECK((failed > 4 && failed < failures));
        if (failures == 0) optimizer.add_param_group(later, {.learning_rate = 5e-3f});
        for (int64_t step = 1; step < 3; ++step) train_step(optimizer, training, step, result);
        result.weights = weights_of(optimizer);
        return result;
      };
      CHECK(train_on(100) == train_on(0));
    }
  }
}

TEST_CASE("add_param_group after an empty model: a failure is known to every rank", "[cpu]") {
  dist::World world = job_world();
  const auto memory = std::make_shared<ShortOfMemory>(world.communicator);
  world.communicator = memory;
  struct Empty : nn::Module {
  } empty;
  Joining later;
  optim::ZeroOptimizer optimizer(empty, optim::AdamW{}, world);
  memory->left = 0;
  const bool here = world.rank == world.size - 1;
  CHECK_THROWS_WITH(optimizer.add_param_group(later, {}),
                    ContainsSubstring(here ? "no memory for" : "could not take"));
  CHECK(optimizer.options().groups.empty());
}

}  // namespace
}  // namespace tessera::test
