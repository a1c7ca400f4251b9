// Tests resuming at ZeRO stage 3 when some ranks have no data in their first micro-batch. These
// ranks must gather parameters in the order that the checkpoint recorded. Also tests that this
// order is the same at every stage, and that invalid orders are refused. Some runs have frozen
// parameters, which must be set and restored like all others.
#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/shared_folder.h"
#include "tests/support/tiny_training.h"
#include "train/checkpoint/checkpoint.h"

namespace tessera::test {
namespace {

constexpr int64_t all_steps = 4;
constexpr int64_t saved_step = 2;

/// A GPT with an optimizer. From step `saved_step` on (counted from 0), micro-batches 0, 3, 6 and
/// so on have data, and the others have none. So in a step's first micro-step only ranks 0, 3, 6
/// and so on have data.
struct Run {
  TinyRun tiny{.batch = {.global = 26, .micro = 2}};
  models::Gpt model{tiny.model};
  Training training = tiny_training(tiny, model);
  TrainingResult result;
  optim::ZeroOptimizer optimizer;

  // If `frozen`, the first transformer block is frozen.
  Run(const dist::World& world, int stage, bool frozen)
      : optimizer((freeze(frozen), model), training.rule, world,
                  {.stage = stage, .bucket_bytes = 6000, .clip = 0.5f, .seed = 3}) {
    const auto loss = training.loss;
    training.loss = [loss](const MicroBatch& micro) {
      // From step `saved_step` on, only every third of a step's 13 micro-batches has data, starting
      // with the first.
      const bool runs_out = micro.step >= saved_step && micro.first_sample / 2 % 3 != 0;
      return runs_out ? Tensor() : loss(micro);
    };
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Changes the frozen weights, so that they differ from those of a newly made run.
  void change_frozen() {
    Weights weights = weights_of(optimizer);
    for (const nn::NamedParameter& named : model.named_parameters()) {
      if (named.parameter.trainable()) continue;
      for (float& value : weights.at(named.name)) value += 0.125f;
    }
    optimizer.set_parameters(
        [&](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
          std::copy_n(weights.at(named.name).begin() + begin, out.size(), out.begin());
        });
    CHECK(weights_of(optimizer) == weights);
  }

  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) train_step(optimizer, training, step, result);
  }

 private:
  void freeze(bool frozen) {
    if (!frozen) return;
    for (const nn::NamedParameter& named : model.named_parameters()) {
      if (named.name.find("h.0.") != std::string::npos) named.parameter.set_trainable(false);
    }
  }
};

void check_resume(int writer_stage, bool writes_alone, bool frozen) {
  CAPTURE(writer_stage, writes_alone, frozen);
  const dist::World job = job_world();
  Run whole(lone_world(), 0, frozen);
  if (frozen) whole.change_frozen();
  whole.train(0, all_steps);

  const SharedFolder folder(job);
  {
    Run first(writes_alone ? lone_world() : job, writer_stage, frozen);
    if (frozen) first.change_frozen();
    first.train(0, saved_step);
    const dist::World& world = writes_alone ? lone_world() : job;
    if (!writes_alone || job.rank == 0) {
      train::save_checkpoint(folder.path(), first.optimizer, world, {.step = saved_step});
    }
    job.communicator->barrier();
  }
  Run second(job, 3, frozen);
  const auto found = train::find_checkpoint(folder.path(), job);
  REQUIRE(found != nullptr);
  train::restore_checkpoint(*found, second.optimizer);
  second.train(saved_step, all_steps);
  const std::vector<float> losses(whole.result.losses.begin() + saved_step,
                                  whole.result.losses.end());
  CHECK(second.result.losses == losses);
  CHECK(weights_of(second.optimizer) == weights_of(whole.optimizer));
}

TEST_CASE("ranks without data in the first micro-batch after a resume gather as the others do") {
  for (const bool frozen : {false, true}) {
    check_resume(3, false, frozen);
    check_resume(0, true, frozen);
  }
  check_resume(2, false, false);
}

TEST_CASE("the order in which parameters are used is the same at every stage") {
  std::vector<int64_t> expected;
  for (const int stage : {0, 1, 2, 3}) {
    Run run(job_world(), stage, true);
    CHECK(run.optimizer.parameter_events().empty());
    run.train(0, 1);
    const std::vector<int64_t> events = run.optimizer.parameter_events();
    if (stage == 0) expected = events;
    CHECK(!events.empty());
    CHECK(events == expected);
  }
}

TEST_CASE("an evaluation before skip() does not change the recorded order") {
  // At stage 3, a rank that skips a micro-batch must not evaluate in it.
  for (const int stage : {0, 1, 2}) {
    CAPTURE(stage);
    Run run(job_world(), stage, false);
    run.train(0, 1);
    const std::vector<int64_t> events = run.optimizer.parameter_events();
    for (const MicroBatch& micro : run.optimizer.micro_batches(1, run.tiny.batch)) {
      {
        const NoGrad no_grad;
        run.training.loss(micro);
      }
      run.optimizer.skip();
      CHECK(run.optimizer.parameter_events() == events);
    }
    CHECK(run.optimizer.step().skipped);
    CHECK(run.optimizer.parameter_events() == events);
  }
}

/// A state with the values of `state`, but with `events` as the recorded order of parameter uses.
class OtherOrder : public optim::StateSource {
 public:
  OtherOrder(const optim::StateSource& state, std::vector<int64_t> events)
      : state_(state), events_(std::move(events)) {}
  void read(const std::string& path, int64_t begin, std::span<float> out) const override {
    state_.read(path, begin, out);
  }
  int64_t count(const std::string& path) const override { return state_.count(path); }
  std::vector<int64_t> parameter_events() const override { return events_; }

 private:
  const optim::StateSource& state_;
  std::vector<int64_t> events_;
};

TEST_CASE("an order with unknown parameters is refused") {
  const dist::World job = job_world();
  const SharedFolder folder(job);
  Run run(job, 3, false);
  run.train(0, 1);
  train::save_checkpoint(folder.path(), run.optimizer, job, {.step = 1});
  const auto found = train::find_checkpoint(folder.path(), job);
  for (const int64_t number : {int64_t{-1}, int64_t{4000}, INT64_MAX}) {
    CHECK_THROWS_AS(run.optimizer.restore_state(OtherOrder(*found, {number})), InputError);
  }
}

}  // namespace
}  // namespace tessera::test
