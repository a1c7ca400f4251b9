// Tests two optimizers in one program, with interleaved micro-batches. Each optimizer's run must
// give the same bits as without the other optimizer. Dropout must never draw the masks of the other
// run.
#include "core/recompute.h"
#include "nn/layers.h"
#include "tests/support/catch.h"
#include "tests/support/tensors.h"
#include "tests/support/training.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

class Net : public nn::Module {
 public:
  explicit Net(float probability) : dropout_(probability, 1) {
    add("linear", linear_);
    add("dropout", dropout_);
  }
  /// Backward computes the activations again, so it draws the masks a second time.
  Tensor loss(const MicroBatch& micro) {
    const Tensor x = random_tensor({micro.samples, 4}, static_cast<uint64_t>(micro.first_sample));
    const auto segment = [this](const std::vector<Tensor>& in) {
      return std::vector<Tensor>{dropout_(linear_(in[0]))};
    };
    return ops::mean(ops::square(recompute("net", {x}, segment)[0]));
  }
  Training training(int64_t steps) {
    return {.steps = steps,
            .batch = {.global = 6, .micro = 2},
            .loss = [this](const MicroBatch& micro) { return loss(micro); }};
  }

 private:
  nn::Linear linear_{4, 4};
  nn::Dropout dropout_;
};

TEST_CASE("two optimizers: dropout is refused while micro-batches of both are open") {
  const dist::World world = job_world();
  Net first(0.5f), second(0.5f);
  optim::ZeroOptimizer a(first, optim::Sgd{}, world, {.seed = 1});
  optim::ZeroOptimizer b(second, optim::Sgd{}, world, {.seed = 2});
  const Batch batch{.global = 2 * world.size, .micro = 2};
  const auto of_a = a.micro_batches(0, batch);
  const auto of_b = b.micro_batches(0, batch);
  const MicroBatch micro = *of_a.begin();
  const Tensor loss = first.loss(micro);
  (void)of_b.begin();
  CHECK_THROWS_WITH(second.loss(micro),
                    ContainsSubstring("dropout: micro-batches of two optimizers are open on this "
                                      "thread"));
  a.backward(loss);  // draws again the masks that the forward has drawn
  CHECK(dropout_state().seed == 2);
  b.backward(second.loss(micro));
  b.step();
  CHECK(dropout_state().seed == 1);
  a.step();
  CHECK_FALSE(dropout_state().is_set());
}

TEST_CASE("two optimizers: steps of one within the micro-batches of the other change no bit") {
  Net outer_alone(0.5f), inner_alone(0), outer(0.5f), inner(0);
  const dist::World world = job_world();
  optim::ZeroOptimizer optimizer(inner, optim::Sgd{}, world, {.seed = 2});
  TrainingResult inner_result;
  Training training = outer.training(2);
  training.loss = [&](const MicroBatch& micro) {
    const auto step = std::ssize(inner_result.losses);
    train_step(optimizer, inner.training(1), step, inner_result);
    return outer.loss(micro);
  };
  const TrainingResult result = train(outer, training, world, {.seed = 1});
  CHECK(result == train(outer_alone, outer_alone.training(2), lone_world(), {.seed = 1}));
  Training alone = inner_alone.training(std::ssize(inner_result.losses));
  alone.rule = optim::Sgd{};
  CHECK(inner_result.losses == train(inner_alone, alone, lone_world(), {.seed = 2}).losses);
}

}  // namespace
}  // namespace tessera::test
