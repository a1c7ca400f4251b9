// Tests the comparison of a run's settings with those of its checkpoint, checkpoints of earlier
// versions, which lack some settings, and what else a run takes from its checkpoint.
#include "apps/cli/changed_settings.h"

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include "apps/cli/resume.h"
#include "apps/cli/run_options.h"
#include "core/error.h"
#include "dist/device_choice.h"
#include "models/gpt/gpt.h"
#include "optim/zero_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/checkpoint/checkpoint.h"
#include "train/report/progress.h"

using namespace tessera;
using namespace tessera::apps;

namespace {

// Returns the error message that refuses all settings of `run` that differ from `saved`. It has
// both values of each setting, and says what the user can do. `accepted` has the names that the
// user has already given to --resume-changed.
std::string refusal(const dist::Settings& run, const dist::Settings& saved,
                    const std::vector<std::string>& accepted = {}) {
  return refusal_of(changed_settings(run, saved), accepted, run);
}

bool is_fixed(const std::string& name, const std::string& now, const std::string& before,
              const dist::Settings& run = {}) {
  return must_agree({name, now, before}, run);
}

}  // namespace

TEST_CASE("the settings of a run have the order of its header") {
  const JsonObject model = JsonObject().add("width", 16).add("heads", 2).add("parameters", 99);
  const JsonObject header =
      JsonObject().add("type", "header").add("model", model).add("steps", 3).add("lr", 0.5f);
  const dist::Settings expected = {
      {"model.width", "16"}, {"model.heads", "2"}, {"steps", "3"}, {"lr", "0.5"}};
  CHECK(run_settings(header) == expected);
}

TEST_CASE("ranks, stage, buckets and transport are settings only if a run's bits depend on them") {
  const auto names = [](const char* reduction, bool sync_bn, int ranks = 2) {
    const JsonObject header = JsonObject()
                                  .add("ranks", ranks)
                                  .add("communicator", "mpi")
                                  .add("stage", 1)
                                  .add("bucket_bytes", 4096)
                                  .add("reduction", reduction)
                                  .add("sync_bn", sync_bn);
    return setting_names(run_settings(header), {});
  };
  using Names = std::vector<std::string>;
  CHECK(names("ordered", false) == Names{"reduction", "sync_bn"});
  CHECK(names("ordered", true) == Names{"ranks", "reduction", "sync_bn"});
  const Names all = {"ranks", "communicator", "stage", "bucket_bytes", "reduction", "sync_bn"};
  CHECK(names("fast", false) == all);
  CHECK(names("fast", true) == all);
  // A single rank adds nothing up, whatever its transport.
  CHECK(names("fast", false, 1) == Names{"ranks", "stage", "bucket_bytes", "reduction", "sync_bn"});
}

TEST_CASE("the error has all settings that differ, in the order of the run") {
  CHECK(changed_settings({{"b", "1"}}, {{"b", "1"}}).empty());
  CHECK(refusal({{"lr", "0.5"}, {"clip", "1"}, {"beta1", "0.9"}, {"loss_rows", "64"}},
                {{"beta1", "0.8"}, {"clip", "1"}, {"lr", "0.001"}, {"older", "yes"}}) ==
        "lr is 0.5 instead of 0.001, beta1 is 0.9 instead of 0.8, loss_rows is 64 but not "
        "set in the checkpoint, older is not set but yes in the checkpoint; give the same values, "
        "another folder, or --resume-changed lr,beta1,loss_rows,older");
  CHECK(refusal({{"lr", "0.5"}}, {{"lr", "1"}}, {"steps"}).ends_with("--resume-changed steps,lr"));
}

TEST_CASE("the error about an unknown setting has the settings that can change") {
  const std::vector<std::string> known = {"model.layers", "optimizer", "lr", "table_optimizer"};
  const dist::Settings run = {
      {"model.layers", "2"}, {"optimizer", "adam"}, {"lr", "1"}, {"table_optimizer", "same"}};
  CHECK(unknown_setting("layers", known, run) ==
        "--resume-changed layers: there is no such setting, expected model.layers");
  CHECK(unknown_setting("bucket_bytes", known, run) ==
        "--resume-changed bucket_bytes: leave it out, because bucket_bytes may always change");
  CHECK(unknown_setting("rate", known, run) ==
        "--resume-changed rate: there is no such setting, expected one of optimizer, lr");
}

TEST_CASE("--resume-changed is not proposed for settings on which the tensors depend") {
  CHECK(refusal({{"model.width", "32"}, {"lr", "0.5"}}, {{"model.width", "16"}, {"lr", "1"}}) ==
        "model.width is 32 instead of 16, lr is 0.5 instead of 1; give another folder, or the same "
        "values: model.width must be as in the checkpoint, because its tensors fit no other value");
  CHECK(refusal({{"model.width", "32"}, {"model.layers", "3"}},
                {{"model.width", "16"}, {"model.layers", "2"}})
            .ends_with(": model.width, model.layers must be as in the checkpoint, because its "
                       "tensors fit no other values"));
  CHECK(refusal({{"lr", "0.5"}}, {{"lr", "1"}, {"model.epsilon", "0.01"}}) ==
        "lr is 0.5 instead of 1, model.epsilon is not set but 0.01 in the checkpoint; give another "
        "folder, or the same values: model.epsilon comes from the config.json of --init; give "
        "--init weights with the checkpoint's epsilon");
  CHECK(refusal({{"model.epsilon", "0.01"}}, {}) ==
        "model.epsilon is 0.01 but not set in the checkpoint; give another folder, or the same "
        "values: model.epsilon comes from the config.json of --init; give --init weights with the "
        "checkpoint's epsilon, the default, or leave --init out");
}

TEST_CASE("the tensors of a checkpoint depend on the model and on the optimizer's state") {
  CHECK(is_fixed("model.layers", "3", "2"));
  CHECK_FALSE(is_fixed("model.layers", "3", "not set"));
  CHECK_FALSE(is_fixed("model.dropout", "0.5", "0"));
  CHECK(is_fixed("model.epsilon", "not set", "0.01"));
  CHECK(is_fixed("model.image_size", "64", "32", {{"model.name", "vgg11"}}));
  CHECK(is_fixed("model.image_size", "65", "64", {{"model.name", "vgg11"}}));
  CHECK_FALSE(is_fixed("model.image_size", "230", "224", {{"model.name", "vgg11"}}));
  CHECK_FALSE(is_fixed("model.image_size", "64", "32", {{"model.name", "resnet18"}}));
  CHECK_FALSE(is_fixed("model.image_size", "224", "96", {{"model.name", "resnet18"}}));
  CHECK(is_fixed("model.image_size", "96", "64", {{"model.name", "resnet18"}}));
  CHECK_FALSE(is_fixed("model.image_size", "96", "64", {{"model.name", "resnet20"}}));
  CHECK(is_fixed("ids", "7", "8"));
  CHECK_FALSE(is_fixed("ids", "7", "not set"));
  CHECK(is_fixed("optimizer", "sgd", "adamw"));
  CHECK_FALSE(is_fixed("optimizer", "adam", "adamw"));
  CHECK(is_fixed("optimizer", "adagrad", "adam"));
  CHECK(is_fixed("table_optimizer", "rowwise-adagrad", "same"));
  CHECK(is_fixed("precision", "fp16", "fp32"));
  CHECK_FALSE(is_fixed("precision", "bf16", "fp32"));
  CHECK(is_fixed("beta1", "0", "0.9", {{"optimizer", "sgd"}}));
  CHECK_FALSE(is_fixed("beta1", "0.8", "0.9", {{"optimizer", "sgd"}}));
  CHECK_FALSE(is_fixed("beta1", "0", "0.9", {{"optimizer", "adamw"}}));
  CHECK_FALSE(is_fixed("lr", "1", "2"));
}

TEST_CASE("evaluations depend on the seed only in runs with an objective, as recommenders have") {
  CHECK_FALSE(affects_evaluation("lr", {}));
  CHECK_FALSE(affects_evaluation("model.dropout", {}));
  CHECK_FALSE(affects_evaluation("bucket_bytes", {}));
  CHECK(affects_evaluation("data", {}));
  CHECK(affects_evaluation("micro_batch", {}));
  CHECK_FALSE(affects_evaluation("seed", {}));
  CHECK(affects_evaluation("seed", {{"objective", "bce"}}));
}

namespace {

// Saves the checkpoint of a run with the settings `run` and `bits`, and returns the flags that find
// it.
CheckpointFlags saved_run(const test::TemporaryFolder& folder, const dist::World& world,
                          const dist::Settings& run, const dist::Settings& bits = {}) {
  train::set_up_messages(false);
  models::Gpt model({.layers = 1, .heads = 1, .width = 4, .context = 4, .vocab = 5});
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, {});
  CheckpointFlags flags;
  flags.options.folder = folder.path("run");
  flags.resume = "latest";
  train::save_checkpoint(
      flags.options.folder, optimizer, world,
      {.step = 3, .best = train::BestEvaluation{.step = 2, .value = 1}, .run = run, .bits = bits});
  return flags;
}

}  // namespace

TEST_CASE("settings that earlier versions did not record are not compared") {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  const CheckpointFlags flags = saved_run(folder, world, {{"model.factors", "8"}});
  const Resumed resumed(flags, world);
  CHECK_NOTHROW(resumed.check(
      "train_recommender", {{"model.factors", "8"}, {"model.hidden", "8,4"}, {"ids", "7"}}));
  CHECK_THAT(test::message_of<InputError>([&] {
               resumed.check("train_recommender", {{"model.factors", "8"}, {"model.depth", "2"}});
             }),
             Catch::Matchers::ContainsSubstring("model.depth is 2 but not set in the checkpoint"));
  CHECK_NOTHROW(resumed.check("train_gpt", {{"model.factors", "8"}, {"training_part", "all"}}));
  CHECK_NOTHROW(resumed.check("train_gpt",
                              {{"model.factors", "8"}, {"stage", "3"}, {"bucket_bytes", "4096"}}));
  CHECK_NOTHROW(resumed.check("train_gpt", {{"model.factors", "8"}, {"communicator", "nccl"}}));
}

TEST_CASE("with the fast reduction, another transport is refused, unless the ranks differ too") {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  CheckpointFlags flags = saved_run(folder, world, {{"ranks", "2"}, {"communicator", "mpi"}});
  const dist::Settings other = {{"ranks", "2"}, {"communicator", "nccl"}};
  CHECK_NOTHROW(
      Resumed(flags, world).check("train_gpt", {{"ranks", "2"}, {"communicator", "mpi"}}));
  CHECK_THAT(test::message_of<InputError>([&] { Resumed(flags, world).check("train_gpt", other); }),
             Catch::Matchers::EndsWith("communicator is nccl instead of mpi; give the same values, "
                                       "another folder, or --resume-changed communicator"));
  flags.changed = {"communicator"};
  CHECK_NOTHROW(Resumed(flags, world).check("train_gpt", other));
  flags.changed = {"ranks"};
  CHECK_NOTHROW(
      Resumed(flags, world).check("train_gpt", {{"ranks", "3"}, {"communicator", "nccl"}}));
  CHECK_NOTHROW(Resumed(flags, world).check("train_gpt", {{"ranks", "1"}}));
}

TEST_CASE("a command that drops a setting can be started again after the run's own checkpoint") {
  struct Case {
    const char* program;
    std::vector<std::string> changed;
    dist::Settings before;
    dist::Settings now;
  };
  const dist::Setting ordered = {"reduction", "ordered"};
  const dist::Setting fast = {"reduction", "fast"};
  const dist::Settings of_fast = {
      fast, {"ranks", "2"}, {"stage", "1"}, {"bucket_bytes", "4096"}, {"communicator", "mpi"}};
  const dist::Settings alone = {
      fast, {"ranks", "1"}, {"stage", "1"}, {"bucket_bytes", "4096"}, {"steps", "5"}};
  const std::vector<Case> cases = {
      {"train_gpt", {"loss_rows", "lr"}, {{"lr", "1"}, {"loss_rows", "8"}}, {{"lr", "2"}}},
      {"train_gpt",
       {"ranks", "stage", "bucket_bytes", "communicator", "reduction"},
       of_fast,
       {ordered}},
      {"train_gpt", {"ranks", "communicator", "steps"}, of_fast, alone},
      {"train_resnet",
       {"ranks", "sync_bn"},
       {{"sync_bn", "true"}, {"ranks", "2"}},
       {{"sync_bn", "false"}}}};
  const dist::World world{.communicator = dist::single_communicator()};
  for (const auto& [program, changed, before, now] : cases) {
    CAPTURE(program, changed);
    for (const dist::Settings& saved : {before, now}) {
      const test::TemporaryFolder folder;
      CheckpointFlags flags = saved_run(folder, world, saved);
      flags.changed = changed;
      CHECK_NOTHROW(Resumed(flags, world).check(program, now));
    }
  }
}

TEST_CASE("a name that no earlier start of the command can have needed is refused") {
  using Catch::Matchers::ContainsSubstring;
  const dist::World world{.communicator = dist::single_communicator()};
  const test::TemporaryFolder folder;
  const dist::Settings ordered = {{"lr", "1"}, {"reduction", "ordered"}, {"sync_bn", "false"}};
  const dist::Settings fast = {{"lr", "1"}, {"reduction", "fast"}, {"ranks", "1"}};
  CheckpointFlags found = saved_run(folder, world, ordered);
  CheckpointFlags first;
  first.options.folder = folder.path("other");
  first.resume = "latest";
  const auto check = [&](CheckpointFlags& flags, const char* program, const dist::Settings& run,
                         const std::vector<std::string>& changed) {
    flags.changed = changed;
    return test::message_of<InputError>([&] { Resumed(flags, world).check(program, run); });
  };
  const auto free = ContainsSubstring("may always change");
  for (const char* name : {"ranks", "stage", "bucket_bytes"}) {
    CAPTURE(name);
    // The command does not change the reduction, so it drops none of these settings.
    CHECK_THAT(check(found, "train_gpt", ordered, {"lr", name}), free);
    // A command that is started without a checkpoint drops no setting.
    CHECK_THAT(check(first, "train_gpt", ordered, {"reduction", name}), free);
  }
  CHECK_THAT(check(found, "train_resnet", ordered, {"sync_bn", "stage"}), free);
  const auto unknown = ContainsSubstring("there is no such setting");
  CHECK_THAT(check(found, "train_gpt", ordered, {"communicator"}), unknown);
  CHECK_THAT(check(found, "train_resnet", ordered, {"loss_rows"}), unknown);
  CHECK_THAT(check(first, "train_gpt", ordered, {"loss_rows"}), unknown);
  // A rank may be lost before the first checkpoint. Then a single rank may start again, which
  // records no transport.
  first.changed = {"ranks", "communicator"};
  CHECK_NOTHROW(Resumed(first, world).check("train_gpt", fast));
}

TEST_CASE("a run warns of other conditions of equal bits, if the checkpoint records them") {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  const CheckpointFlags flags =
      saved_run(folder, world, {}, {{"threads", "1"}, {"cuDNN", "91300"}});
  const Resumed resumed(flags, world);
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(text)));
  train::LoopOptions loop;
  resumed.place(loop, {}, {{"threads", "2"}, {"cuBLASLt", "130100"}, {"cuDNN", "91400"}});
  spdlog::set_default_logger(before);
  using Catch::Matchers::ContainsSubstring;
  CHECK_THAT(text.str(), ContainsSubstring("threads is 2, but was 1 when the checkpoint"));
  CHECK_THAT(text.str(), ContainsSubstring("cuDNN is 91400, but was 91300 when the checkpoint"));
  CHECK_THAT(text.str(), !ContainsSubstring("cuBLASLt"));
}

TEST_CASE("a run without --min-lr keeps the value that an earlier version took") {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  const CheckpointFlags flags = saved_run(folder, world, {{"min_lr", "0.0009999999"}});
  const Resumed resumed(flags, world);
  const auto kept = [&](std::optional<float> earlier) {
    RunOptions options;
    options.min_lr = 0.001f;
    options.earlier_min_lr = earlier;
    keep_min_lr(options, resumed);
    return options.min_lr;
  };
  CHECK(kept(0.0009999999f) == 0.0009999999f);
  CHECK(kept(0.0019999999f) == 0.001f);
  CHECK(kept(std::nullopt) == 0.001f);
}

TEST_CASE("--eval-only compares the settings that the optimizer's state depends on") {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  const auto settings = [](const char* beta1, const char* table_optimizer) {
    return dist::Settings{
        {"optimizer", "sgd"}, {"beta1", beta1}, {"table_optimizer", table_optimizer}};
  };
  CheckpointFlags flags = saved_run(folder, world, settings("0.9", "same"));
  flags.only_weights = true;
  const Resumed resumed(flags, world);
  CHECK_NOTHROW(resumed.check("train_recommender", settings("0.8", "same")));
  const auto refused = [&](const char* beta1, const char* table_optimizer) {
    return test::message_of<InputError>(
        [&] { resumed.check("train_recommender", settings(beta1, table_optimizer)); });
  };
  using Catch::Matchers::ContainsSubstring;
  CHECK_THAT(refused("0", "same"), ContainsSubstring(": beta1 is 0 instead of 0.9;"));
  CHECK_THAT(refused("0.9", "rowwise-adagrad"),
             ContainsSubstring(": table_optimizer is rowwise-adagrad instead of same;"));
}

TEST_CASE("--eval-only compares the sizes of the model, but not its dropout") {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  const dist::Settings other = {{"model.width", "4"}, {"model.dropout", "0.5"}};
  CheckpointFlags flags =
      saved_run(folder, world, {{"model.width", "4"}, {"model.dropout", "0.1"}});
  CHECK_THROWS_AS(Resumed(flags, world).check("train_gpt", other), InputError);
  flags.only_weights = true;
  const Resumed resumed(flags, world);
  CHECK_NOTHROW(resumed.check("train_gpt", other));
  CHECK_THROWS_AS(resumed.check("train_gpt", {{"model.width", "8"}, {"model.dropout", "0.1"}}),
                  InputError);
}

TEST_CASE("--eval-only counts epochs with the steps per epoch of the checkpoint's run") {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  CheckpointFlags flags = saved_run(folder, world, {{"steps_per_epoch", "2"}});
  {
    const Resumed resumed(flags, world);
    CHECK(resumed.epochs(3, 4) == 0.75);
  }
  flags.only_weights = true;
  const Resumed resumed(flags, world);
  CHECK(resumed.epochs(3, 4) == 1.5);
  // A checkpoint that was imported records no steps per epoch.
  const test::TemporaryFolder other;
  CheckpointFlags imported = saved_run(other, world, {});
  imported.only_weights = true;
  CHECK(Resumed(imported, world).epochs(3, 4) == std::nullopt);
}

TEST_CASE("a resumed run has as many threads as its checkpoint's run") {
  const dist::World world{.communicator = dist::single_communicator()};
  const auto threads = [&](int given, const dist::Settings& bits) {
    const test::TemporaryFolder folder;
    return Resumed(saved_run(folder, world, {}, bits), world).threads(given, world);
  };
  const int without = dist::threads_per_rank(0, 1);
  CHECK(threads(0, {{"threads", std::to_string(without + 1)}}) == without + 1);
  CHECK(threads(1, {{"threads", std::to_string(without + 1)}}) == 1);
  CHECK(threads(0, {}) == without);  // as after an import
  for (const char* invalid : {"", "2x", "2.5", "0", "-1", "4097", "99999999999999999999"}) {
    CAPTURE(invalid);
    CHECK_THAT(test::message_of<InputError>([&] {
                 threads(0, {{"threads", invalid}});
               }),
               Catch::Matchers::ContainsSubstring("step-000000003: threads is "));
    CHECK(threads(1, {{"threads", invalid}}) == 1);
  }
}

TEST_CASE("the best evaluation is forgotten only if a setting that affects evaluations differs") {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  CheckpointFlags flags =
      saved_run(folder, world, {{"lr", "1"}, {"micro_batch", "2"}, {"seed", "1"}});
  flags.changed = {"lr", "micro_batch", "seed"};
  const auto keeps_best = [&](const dist::Settings& run) {
    const Resumed resumed(flags, world);
    CHECK_NOTHROW(resumed.check("train_gpt", run));
    train::LoopOptions loop;
    resumed.place(loop, run, {});
    return loop.best.has_value();
  };
  CHECK(keeps_best({{"lr", "1"}, {"micro_batch", "2"}, {"seed", "1"}}));
  CHECK(keeps_best({{"lr", "0.5"}, {"micro_batch", "2"}, {"seed", "7"}}));
  CHECK_FALSE(keeps_best({{"lr", "1"}, {"micro_batch", "4"}, {"seed", "1"}}));
}
