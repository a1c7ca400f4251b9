// Tests stage 3: which parameters are gathered, and when. A run must have the bits of the same run
// on one rank. This must hold for any order in which the model reads its parameters, and if the
// model is evaluated between or within steps.
#include <algorithm>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/layered_model.h"
#include "tests/support/memory_use.h"
#include "tests/support/table_model.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};

// Returns the number of elements of a bucket of `blocks` blocks of 256 elements. The bucket is
// padded so that the shards of all ranks have the same size.
int64_t padded(int64_t blocks) {
  const int64_t ranks = job_world().size;
  return (blocks + ranks - 1) / ranks * ranks * 256;
}

// The numbers of elements in the buckets of the tiny GPT of width 20, derived by hand. Each
// parameter takes whole blocks of 256 elements. The token table has 37 x 20 elements (3 blocks),
// the position table 8 x 20 (1 block). Each layer has two norms of 20 and 20 (4 blocks), and
// weights with biases: 20 x 60 and 60 (5 + 1), 20 x 20 and 20 (2 + 1), 20 x 80 and 80 (7 + 1), 80 x
// 20 and 20 (7 + 1). The last layer's bucket also has the final norm (2 blocks).
struct TinyBlocks {
  int64_t embeddings = padded(3) + padded(1);  // the tied table has a bucket of its own
  int64_t layer = padded(4 + (5 + 1) + (2 + 1) + (7 + 1) + (7 + 1));
  int64_t last_layer = padded(4 + (5 + 1) + (2 + 1) + (7 + 1) + (7 + 1) + 2);
};

TEST_CASE("stage 3: a rank holds its shard, the tied block and at most two others") {
  const dist::World world = job_world();
  const TinyBlocks blocks;
  TinyRun run{.steps = 3};
  run.model.layers = 4;
  const int64_t whole = blocks.embeddings + 3 * blocks.layer + blocks.last_layer;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool overlap : {true, false}) {
      for (const bool recompute : {false, true}) {
        CAPTURE(dtype_name(dtype), overlap, recompute);
        run.model.recompute = recompute;
        const MemoryUse memory(*world.communicator);
        models::Gpt model(run.model);
        model.to(dtype);
        optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world,
                                       {.stage = 3, .overlap = overlap});
        const int64_t shard = whole / world.size;
        // Only shards have memory at the beginning.
        CHECK(memory.peak(Category::parameters) == shard * dtype_size(dtype));
        TrainingResult result;
        for (int64_t step = 0; step < run.steps; ++step) {
          train_step(optimizer, tiny_training(run, model), step, result);
        }
        // Without overlap, the next layer is not gathered ahead.
        const int64_t gathered =
            blocks.embeddings + (overlap ? blocks.layer : 0) + blocks.last_layer;
        CHECK(memory.peak(Category::parameters) == (shard + gathered) * dtype_size(dtype));
        CHECK(gathered < whole);
      }
    }
  }
}

TEST_CASE("stage 3 without blocks: at most a weight, its bias and the next weight are held") {
  // Each parameter has its own bucket. A weight of 24 x 24 elements takes 3 blocks of 256 elements,
  // a bias takes 1 block.
  const dist::World world = job_world();
  const MemoryUse memory(*world.communicator);
  LayeredModel model({.layers = 4, .blocks = false});
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = 3, .bucket_bytes = 64});
  const Training training{.loss = [&](const auto& micro) { return model.loss(micro); }};
  TrainingResult result;
  for (int64_t step = 0; step < 2; ++step) train_step(optimizer, training, step, result);
  const int64_t shards = 4 * (padded(3) + padded(1)) / world.size;
  CHECK(memory.peak(Category::parameters) == 4 * (shards + padded(3) + padded(1) + padded(3)));
}

TEST_CASE("stage 3: between steps parameters have no memory but their shards") {
  const dist::World world = job_world();
  const TinyRun run{.steps = 2};
  const MemoryUse memory(*world.communicator);
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = 3});
  const int64_t shard = memory.current(Category::parameters);
  TrainingResult result;
  for (int64_t step = 0; step < run.steps; ++step) {
    train_step(optimizer, tiny_training(run, model), step, result);
    CHECK(memory.current(Category::parameters) == shard);
    for (const auto& named : model.named_parameters()) {
      CAPTURE(named.name);
      CHECK_FALSE(named.parameter.tensor().allocated());
    }
  }
}

TEST_CASE("stage 3: reading a parameter without an operation is an error, not old values") {
  models::Gpt model(TinyRun{}.model);
  const optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = 3});
  CHECK_THROWS_AS(weights_of(model), Error);
}

TEST_CASE("stage 3: evaluation gathers each block once, and holds no more than training") {
  const dist::World world = job_world();
  const TinyBlocks blocks;
  TinyRun run;
  run.model.layers = 4;
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = 3});
  TrainingResult result;
  train_step(optimizer, tiny_training(run, model), 0, result);
  const MemoryUse memory(*world.communicator);
  dist::TrafficLedger& traffic = world.communicator->traffic();
  const int64_t layers = 3 * blocks.layer + blocks.last_layer;
  const auto evaluate = [&](int64_t gathered_elements, int64_t calls) {
    const NoGrad no_grad;
    world.communicator->barrier();
    traffic.reset();
    const auto [tokens, targets] = tiny_batch(run, {.step = 100, .samples = 2});
    model.eval();
    model.loss(tokens, targets);
    world.communicator->barrier();
    CHECK(traffic.bytes_sent(dist::Traffic::other) ==
          (world.size - 1) *
              (gathered_elements / world.size * 4 + calls * world.communicator->header_bytes()));
    CHECK(traffic.bytes_sent(dist::Traffic::parameters) == 0);
  };
  // The 7 calls are the barrier, and one gather for each bucket: two of embeddings, and four of
  // layers. Without the embeddings there are 5 calls.
  evaluate(blocks.embeddings + layers, 7);
  evaluate(layers, 5);  // the embeddings stay gathered until synchronize()
  CHECK(memory.peak(Category::parameters) ==
        4 * (blocks.embeddings + blocks.layer + blocks.last_layer));
  optimizer.synchronize();
  // The shards existed before `memory`, which therefore does not count them.
  CHECK(memory.current(Category::parameters) == 0);
}

// Rank 0 reads the layers of `model` in the order `one`, the other ranks in the order `another`.
// Returns the text of the optimizer's error, which is empty if there was none.
std::string disagreement(LayeredModel& model, const LayeredModel::Way& one,
                         const LayeredModel::Way& another) {
  dist::World world = job_world();
  world.communicator = dist::mpi_communicator();
  std::string text;
  try {
    optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = 3});
    const auto loss = [&](const auto& micro) {
      return model.loss(micro, world.rank == 0 ? one : another);
    };
    TrainingResult result;
    train_step(optimizer, Training{.loss = loss}, 0, result);
  } catch (const Error& error) {
    text = error.what();
  }
  job_world().communicator->barrier();
  return text;
}

TEST_CASE("stage 3: if ranks read parameters in different orders, the error names both") {
  if (job_world().size == 1 || !on_cpu()) return;
  using Catch::Matchers::ContainsSubstring;
  // Each layer has a bucket. The last layer's bucket is number 0.
  LayeredModel model({.layers = 4});
  CHECK_THAT(disagreement(model, {0, 1, 2, 3}, {0, 2, 1, 3}),
             ContainsSubstring("rank 0 all_gather of parameters, bucket 2 (call ") &&
                 ContainsSubstring(" all_gather of parameters, bucket 1 (call ") &&
                 ContainsSubstring("read them in the same order"));
  // Frozen parameters form a group of their own, and its buckets are numbered from 0 again. A
  // group's number is the index of its first parameter: 1.weight is parameter 2 of the model.
  LayeredModel frozen({.layers = 2});
  frozen.layer(1).weight.set_trainable(false);
  frozen.layer(1).bias.set_trainable(false);
  CHECK_THAT(disagreement(frozen, {0, 1}, {1, 0}),
             ContainsSubstring("rank 0 all_gather of parameters, bucket 0 (call ") &&
                 ContainsSubstring(" all_gather of parameters, bucket 0 of group 2 (call "));
}

struct Layered {
  LayeredOptions model;
  std::function<LayeredModel::Way(int64_t step)> way;
};

TrainingResult train_layered(const Layered& layered, const dist::World& world, int stage,
                             int64_t bucket_bytes, bool overlap) {
  LayeredModel model(layered.model);
  const Training training{.steps = 6, .loss = [&](const MicroBatch& micro) {
                            return model.loss(micro, layered.way(micro.step));
                          }};
  return train(model, training, world,
               {.stage = stage, .bucket_bytes = bucket_bytes, .overlap = overlap, .clip = 0.1f});
}

void check_layered(const Layered& layered) {
  const TrainingResult expected = train_layered(layered, lone_world(), 0, 1 << 20, false);
  CHECK(expected.losses.front() != expected.losses.back());
  for (const int64_t bucket_bytes : {int64_t{64}, int64_t{4096}}) {
    for (const bool overlap : {true, false}) {
      CAPTURE(bucket_bytes, overlap);
      CHECK(train_layered(layered, job_world(), 3, bucket_bytes, overlap) == expected);
    }
  }
  CHECK(train_layered(layered, job_world(), 2, 64, true) == expected);
}

TEST_CASE("stage 3: a model without blocks, with a bucket for each weight and each bias") {
  for (const DType dtype : dtypes) {
    CAPTURE(dtype_name(dtype));
    check_layered({{.blocks = false, .dtypes = {dtype, dtype, dtype}},
                   [](int64_t) { return LayeredModel::Way{0, 1, 2}; }});
  }
}

TEST_CASE("stage 3: layers in any order, used more than once, or not in every step") {
  const LayeredModel::Way ways[] = {
      {3, 2, 1, 0},           // in the reverse order of registration
      {0, 1, 2, 3},           // in the order of registration
      {0, 1, 0, 2, 0, 3, 0},  // layer 0 is used four times
      {2, 2, 2},              // without the other layers
      {1, 3},
      {0, 1, 2, 3, 3, 2, 1, 0},
  };
  for (const bool blocks : {true, false}) {
    for (const bool mixed : {false, true}) {
      CAPTURE(blocks, mixed);
      std::vector<DType> of_layers(4, DType::f32);
      if (mixed) of_layers = {DType::bf16, DType::f32, DType::bf16, DType::f32};
      check_layered({{.layers = 4, .blocks = blocks, .dtypes = of_layers},
                     [&](int64_t step) { return ways[step]; }});
    }
  }
}

// Returns the losses of three batches, computed without gradients, and the weights.
std::pair<std::vector<float>, Weights> evaluate(models::Gpt& model, const TinyRun& run,
                                                optim::ZeroOptimizer& optimizer) {
  const NoGrad no_grad;
  model.eval();
  std::vector<float> losses;
  for (int64_t m = 0; m < 3; ++m) {
    const auto [tokens, targets] =
        tiny_batch(run, {.step = 100, .first_sample = 2 * m, .samples = 2});
    losses.push_back(model.loss(tokens, targets).item());
  }
  model.train();
  return {losses, weights_of(optimizer)};
}

struct Evaluated {
  std::vector<float> losses;
  Weights weights;
  std::vector<std::pair<std::vector<float>, Weights>> between;
  bool operator==(const Evaluated&) const = default;
};

// Trains. If `evaluating`, evaluates before each step, before and after each of the first two
// micro-steps of a step, before each update, and after the last step.
Evaluated train_and_evaluate(const dist::World& world, int stage, DType dtype, bool evaluating) {
  const TinyRun run{.steps = 3, .dtype = dtype};
  models::Gpt model(run.model);
  model.to(dtype);
  const Training training = tiny_training(run, model);
  optim::ZeroOptimizer optimizer(model, training.rule, world,
                                 {.stage = stage, .bucket_bytes = 3000});
  Evaluated result;
  const auto look = [&] {
    if (evaluating) result.between.push_back(evaluate(model, run, optimizer));
  };
  for (int64_t step = 0; step < run.steps; ++step) {
    look();
    for (const auto& micro : optimizer.micro_batches(step, run.batch)) {
      if (evaluating && micro.micro_step < 2) evaluate(model, run, optimizer);
      optimizer.backward(training.loss(micro));
      if (evaluating && micro.micro_step < 2) evaluate(model, run, optimizer);
    }
    look();
    result.losses.push_back(optimizer.step().loss);
  }
  look();
  result.weights = weights_of(optimizer);
  return result;
}

TEST_CASE("evaluation between steps and micro-batches: equal losses, unchanged weights") {
  for (const DType dtype : dtypes) {
    const Evaluated expected = train_and_evaluate(lone_world(), 0, dtype, true);
    CHECK(expected.between.front() != expected.between.back());
    CHECK(expected.weights == train_and_evaluate(lone_world(), 0, dtype, false).weights);
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      CHECK(train_and_evaluate(job_world(), stage, dtype, true) == expected);
    }
  }
}

TEST_CASE("evaluation within a micro-batch: row-sparse tables get unchanged weights") {
  const auto train_tables_with = [](const dist::World& world, int stage, bool evaluating) {
    const TableRun run{.recompute = stage % 2 == 1};
    TableModel model(run);
    // 40 samples look up more rows than Parameter::set_row_sparse allows in a training micro-batch.
    // The limit must not hold for evaluations.
    const auto look = [&] {
      const NoGrad no_grad;
      if (evaluating) CHECK(model.loss({.step = 100, .samples = 40}).item() > 0);
    };
    const Training training{.batch = run.batch, .loss = [&](const MicroBatch& micro) {
                              if (micro.step > 0 && micro.index % 3 == 1) return Tensor();
                              look();
                              Tensor loss = model.loss(micro);
                              look();
                              return loss;
                            }};
    return train(model, training, world, {.stage = stage});
  };
  const TrainingResult expected = train_tables_with(lone_world(), 0, false);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    CHECK(train_tables_with(job_world(), stage, true) == expected);
  }
}

TEST_CASE("parameters are set and read whole, at every stage and dtype") {
  const TinyRun run{.steps = 1};
  const auto value = [](const std::string& name, int64_t element) {
    return static_cast<float>(name.size()) + 0x1p-12f * static_cast<float>(element % 4096);
  };
  const optim::ParameterSource source = [&](const nn::NamedParameter& named, int64_t begin,
                                            std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = value(named.name, begin + static_cast<int64_t>(i));
    }
  };
  for (const DType dtype : dtypes) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      models::Gpt model(run.model);
      model.to(dtype);
      optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(),
                                     {.stage = stage, .bucket_bytes = 3000});
      TrainingResult result;
      train_step(optimizer, tiny_training(run, model), 0, result);
      const auto before = evaluate(model, run, optimizer);
      optimizer.set_parameters(source);
      for (const auto& [name, values] : weights_of(optimizer)) {
        CAPTURE(name);
        int64_t wrong = 0;  // stays 0: 16-bit parameters have exact f32 master weights
        for (size_t i = 0; i < values.size(); ++i) {
          wrong += values[i] == value(name, static_cast<int64_t>(i)) ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
      CHECK(evaluate(model, run, optimizer).first != before.first);  // the model uses new values
      optimizer.set_parameters([&](const nn::NamedParameter& named, int64_t begin,
                                   std::span<float> out) {
        const auto& values = before.second.at(named.name);
        std::copy_n(values.begin() + begin, out.size(), out.begin());
      });
      CHECK(evaluate(model, run, optimizer) == before);
    }
  }
}

}  // namespace
}  // namespace tessera::test
