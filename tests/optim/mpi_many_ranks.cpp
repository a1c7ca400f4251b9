// Tests jobs with more ranks than elements, layers, blocks of 256 elements or micro-batches. Cases
// tagged [many] are also run with 16 ranks.
#include "tests/support/catch.h"
#include "tests/support/layered_model.h"

namespace tessera::test {
namespace {

// Three parameters of one element each: with 16 ranks, most ranks own nothing but padding.
class ThreeParameters : public nn::Module {
 public:
  explicit ThreeParameters(DType dtype) : first_(1, 1), second_(1, 1, {.bias = false}) {
    first_.to(dtype);
    second_.to(dtype);
    begin_block();
    add("first", first_);
    begin_block();
    add("second", second_);
  }

  // Returns the mean squared error to y = 2x - 1 for three samples.
  Tensor loss(const MicroBatch& micro) {
    const auto seed = static_cast<uint64_t>(micro.step * 100 + micro.index);
    const Tensor x = random_tensor({3, 1}, seed);
    const Tensor y = ops::convert(second_(first_(ops::convert(x, first_.weight.dtype()))),
                                  DType::f32);
    const Tensor expected = ops::add(ops::scale(x, -2), Tensor::full({3, 1}, 1));
    const Tensor difference = ops::add(y, expected);
    return ops::mean(ops::mul(difference, difference));
  }

 private:
  nn::Linear first_;
  nn::Linear second_;
};

TrainingResult train_three(DType dtype, int64_t micro_batches, const dist::World& world, int stage,
                           bool overlap = true) {
  ThreeParameters model(dtype);
  const Training training{.steps = 5,
                          .batch = {.global = micro_batches, .micro = 1},
                          .loss = [&](const auto& micro) { return model.loss(micro); }};
  return train(model, training, world,
               {.stage = stage, .bucket_bytes = 64, .overlap = overlap, .clip = 0.5f});
}

TEST_CASE("a model of three elements trains with one rank's bits on any number of ranks",
          "[many]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    // With 16 ranks and 5 micro-batches, five ranks have a micro-batch. With 20 micro-batches, all
    // ranks have one, and four ranks have a second one.
    for (const int64_t micro_batches : {5, 20}) {
      const auto expected = train_three(dtype, micro_batches, lone_world(), 0);
      CHECK(expected.weights.size() == 3);
      CHECK(expected.losses.front() != expected.losses.back());
      for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(dtype_name(dtype), micro_batches, stage);
        CHECK(train_three(dtype, micro_batches, job_world(), stage) == expected);
      }
    }
  }
  CHECK(train_three(DType::bf16, 20, job_world(), 3, false) ==
        train_three(DType::bf16, 20, lone_world(), 0));
}

TEST_CASE("state and gradients of three elements, on any number of ranks", "[many]") {
  const auto run = [](const dist::World& world, int stage) {
    ThreeParameters model(DType::bf16);
    optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = stage});
    for (const auto& micro : optimizer.micro_batches(0, {.global = 20, .micro = 1})) {
      optimizer.backward(model.loss(micro));
    }
    Weights values;
    for (const char* name : {"first.weight", "first.bias", "second.weight"}) {
      values[name] = {optimizer.gradient(name).item(), optimizer.gradient_norms().at(name)};
    }
    optimizer.step();
    const auto state = optimizer.consolidated_state(world.size - 1);
    if (world.rank == world.size - 1) {
      for (const auto& [name, shard] : state) {
        values["state of " + name] = shard.values.at("exp_avg");
      }
    }
    return values;
  };
  Weights expected = run(lone_world(), 0);
  CHECK(expected.size() == 6);
  if (job_world().rank != job_world().size - 1) {
    for (const char* name : {"first.weight", "first.bias", "second.weight"}) {
      expected.erase(std::string("state of ") + name);
    }
  }
  for (const int stage : {0, 1, 2, 3}) CHECK(run(job_world(), stage) == expected);
}

}  // namespace
}  // namespace tessera::test
