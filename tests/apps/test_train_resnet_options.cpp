#include "apps/train_resnet_options.h"

#include <vector>

#include "tests/support/catch.h"

namespace tessera::apps {
namespace {

using Catch::Matchers::ContainsSubstring;

ImageTrainOptions parse(std::vector<const char*> arguments, const std::string& format = "cifar10",
                        int64_t images = 50000) {
  arguments.insert(arguments.begin(), "train_resnet");
  ImageCommandLine line =
      parse_image_command_line(static_cast<int>(arguments.size()), arguments.data());
  complete(line, images, format);
  return line.options;
}

TEST_CASE("train_resnet: the seed and the implied log are known before the data are open") {
  const char* arguments[] = {"train_resnet", "--seed", "7", "--report", "run.html"};
  const auto options = parse_image_command_line(5, arguments).options;
  CHECK(options.seed == 7);
  CHECK(options.log == "run.jsonl");
}

TEST_CASE("train_resnet: defaults without flags") {
  const ImageTrainOptions options = parse({});
  CHECK(options.model == "resnet20");
  CHECK(options.batch.global == 128);
  CHECK(options.batch.micro == 64);
  CHECK(options.optimizer == "sgd");
  CHECK(options.nesterov);
  CHECK(options.lr == 0.1f);
  CHECK(options.min_lr == 0);
  CHECK(options.weight_decay == 5e-4f);
  CHECK(options.clip == 0);
  CHECK(options.steps_per_epoch == 390);
  CHECK(options.steps == 15 * 390);
  CHECK(options.epochs == 15);
  CHECK(options.eval_every == 390);
  CHECK(options.warmup == 100);
  CHECK(parse({}, "drawn", 10000).steps == 6 * 78);
  CHECK(parse({"--model", "vgg11"}).lr == 0.01f);
  CHECK(parse({"--optimizer", "adamw"}).weight_decay == 0.05f);
  CHECK_FALSE(parse({"--optimizer", "sgd", "--beta1", "0"}).nesterov);
}

TEST_CASE("train_resnet: the length of a run is given in epochs or in steps") {
  CHECK(parse({"--epochs", "2"}).steps == 780);
  CHECK(parse({"--epochs", "0.5"}).steps == 195);
  CHECK(parse({"--steps", "78"}).epochs == Catch::Approx(0.2));
  CHECK(parse({"--batch", "256", "--epochs", "1"}).steps == 195);
  CHECK_THROWS_WITH(parse({"--epochs", "1", "--steps", "2"}), ContainsSubstring("expected one"));
  CHECK_THROWS_WITH(parse({"--epochs", "-1"}), ContainsSubstring("--epochs is -1"));
  CHECK_THROWS_WITH(parse({"--epochs", "nan"}), ContainsSubstring("--epochs"));
}

TEST_CASE("schedules and synchronized norms reach the optimizer") {
  const ImageTrainOptions cycle = parse({"--schedule", "onecycle", "--steps", "100", "--sync-bn"});
  const optim::ZeroOptions zero = image_training_run(cycle).zero;
  CHECK(zero.sync_batch_norm);
  CHECK(zero.schedule(0) == Catch::Approx(0.04));
  CHECK(zero.schedule(29) == Catch::Approx(1));
  const optim::ZeroOptions cosine = image_training_run(parse({"--steps", "100"})).zero;
  CHECK_FALSE(cosine.sync_batch_norm);
  CHECK(cosine.schedule(10) == Catch::Approx(1));
  CHECK_THROWS_WITH(parse({"--schedule", "onecycle", "--warmup", "3"}),
                    ContainsSubstring("expected no --warmup"));
}

TEST_CASE("synchronized norms need exactly one micro-batch on each rank") {
  const ImageTrainOptions options = parse({"--sync-bn"});
  CHECK_NOTHROW(check_ranks(options, 32, 2));
  CHECK_THROWS_WITH(check_ranks(options, 32, 4), ContainsSubstring("give --micro-batch 32"));
  CHECK_THROWS_WITH(check_ranks(options, 32, 3),
                    ContainsSubstring("give a --batch that is a multiple of 3"));
  CHECK_NOTHROW(check_ranks(parse({}), 32, 3));
}

TEST_CASE("batch norms need more than one value per channel") {
  const auto with_one = [](const char* model) {
    return parse({"--model", model, "--batch", "1", "--micro-batch", "1"});
  };
  const ImageTrainOptions one = with_one("resnet18");
  CHECK_THROWS_WITH(check_ranks(one, 8, 1), ContainsSubstring("give a larger --micro-batch"));
  CHECK_NOTHROW(check_ranks(one, 9, 1));  // 9 x 9 pixels become 2 x 2 in the last stage
  CHECK_THROWS_AS(check_ranks(with_one("resnet20"), 4, 1), InputError);
  CHECK_NOTHROW(check_ranks(with_one("vgg11"), 32, 1));
  const ImageTrainOptions shared = parse(
      {"--model", "resnet18", "--sync-bn", "--batch", "2", "--micro-batch", "1"});
  CHECK_NOTHROW(check_ranks(shared, 8, 2));
}

TEST_CASE("train_resnet --eval-only takes a batch with which no step could be taken") {
  const auto evaluated = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.end(), {"--eval-only", "--init", "model", "--sync-bn"});
    return parse(std::move(arguments), "folder", 40);
  };
  // There are 40 images, fewer than the default batch of 128.
  const ImageTrainOptions usual = evaluated({"--model", "resnet18"});
  CHECK(usual.batch.micro == 40);
  CHECK(usual.eval_every > 0);
  CHECK(evaluated({"--batch", "10", "--micro-batch", "3"}).batch.micro == 3);
  CHECK_NOTHROW(check_ranks(evaluated({"--model", "resnet18", "--micro-batch", "1"}), 8, 3));
  CHECK_THROWS_WITH(evaluated({"--batch", "0"}), ContainsSubstring("--global-batch is 0"));
  CHECK_THROWS_WITH(evaluated({"--micro-batch", "0"}), ContainsSubstring("--micro-batch is 0"));
  CHECK_THROWS_WITH(evaluated({"--plan"}), ContainsSubstring("--eval-only takes none; leave out"));
}

TEST_CASE("train_resnet refuses invalid flags") {
  CHECK_THROWS_WITH(parse({"--batch", "512"}, "folder", 500), ContainsSubstring("smaller --batch"));
  CHECK_THROWS_WITH(parse({"--image-size", "16385"}),
                    ContainsSubstring("--image-size is 16385, expected at most 16384"));
  CHECK_THROWS_WITH(parse({"--batch", "10", "--micro-batch", "3"}),
                    ContainsSubstring("--global-batch 10 is not a multiple of --micro-batch 3"));
  for (const std::vector<const char*>& arguments : std::vector<std::vector<const char*>>{
           {"--label-smoothing", "1"},
           {"--label-smoothing", "-0.1"},
           {"--workers", "0"},
           {"--image-size", "-3"},
           {"--model", "gpt2"},
           {"--schedule", "linear"},
           {"--batch", "10", "--micro-batch", "3"},
           {"--recompute"}}) {
    CAPTURE(arguments[0], arguments.size());
    CHECK_THROWS_AS(parse(arguments), InputError);
  }
}

}  // namespace
}  // namespace tessera::apps
