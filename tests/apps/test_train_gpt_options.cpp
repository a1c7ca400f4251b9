#include "apps/train_gpt_options.h"

#include "models/gpt/gpt_weights.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/plan/plan_table.h"

using namespace tessera;
using namespace tessera::apps;
using Catch::Matchers::ContainsSubstring;

namespace {

TrainOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"train_gpt", "--data", "text"});
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data()).options;
}

std::string refusal(const std::vector<const char*>& arguments) {
  return test::message_of<InputError>([&] { parse(arguments); });
}

// Saves the weights of a model, with config.json beside them. Returns the path of the weights.
std::string saved(const test::TemporaryFolder& folder, const models::GptConfig& config) {
  models::Gpt model(config);
  nn::materialize(model, Device{}, 5);
  const std::string path = folder.path("model.safetensors");
  models::GptWriter writer(path, model);
  for (const nn::NamedParameter& named : model.named_parameters()) {
    writer.write(named, named.parameter.tensor().values<float>());
  }
  writer.commit();
  return path;
}

}  // namespace

TEST_CASE("a run writes checkpoints if it trains and --checkpoint is given") {
  CHECK(parse({"--checkpoint", "runs"}).writes_checkpoints());
  CHECK_FALSE(parse({}).writes_checkpoints());
  CHECK_FALSE(parse({"--checkpoint", "runs", "--eval-only"}).writes_checkpoints());
  CHECK_FALSE(parse({"--checkpoint", "runs", "--plan"}).writes_checkpoints());
}

TEST_CASE("every preset has consistent defaults") {
  for (const std::string& name : models::GptConfig::preset_names()) {
    const TrainOptions options = parse({"--preset", name.c_str()});
    REQUIRE(options.batch.micro_batches() >= 2);
    REQUIRE(options.min_lr == Catch::Approx(options.lr / 10));
    REQUIRE(options.warmup < options.steps);
    REQUIRE(options.model.width == models::GptConfig::preset(name).width);
  }
  const TrainOptions nano = parse({});
  REQUIRE(nano.preset == "nano");
  REQUIRE(nano.steps == 2000);
  REQUIRE(nano.batch.global == 12);
  REQUIRE(nano.lr == 1e-3f);
  REQUIRE(nano.beta1 == 0.9f);
  REQUIRE(nano.beta2 == 0.99f);
  REQUIRE(nano.weight_decay == 0.1f);
  REQUIRE(parse({"--optimizer", "sgd"}).weight_decay == 0);
  REQUIRE(parse({"--steps", "20"}).warmup == 2);
}

TEST_CASE("the default of --min-lr is a tenth of --lr to the last digit") {
  CHECK(parse({"--lr", "0.01"}).min_lr == 0.001f);
  CHECK(parse({"--lr", "0.003"}).min_lr == 0.0003f);
  CHECK(parse({"--preset", "gpt2-medium"}).min_lr == 3e-5f);
  CHECK(parse({"--lr", "0.01"}).earlier_min_lr == 0.0009999999f);
  CHECK_FALSE(parse({"--lr", "0.01", "--min-lr", "0.001"}).earlier_min_lr);
}

TEST_CASE("flags override the preset") {
  const TrainOptions options =
      parse({"--preset", "micro", "--layers", "2", "--heads", "3", "--width", "96", "--overlap",
             "off", "--reduction", "fast", "--stage", "0", "--lr", "0.5", "--min-lr", "0"});
  REQUIRE(options.model.layers == 2);
  REQUIRE(options.model.heads == 3);
  REQUIRE(options.model.width == 96);
  REQUIRE(options.model.context == 256);
  REQUIRE_FALSE(options.overlap);
  REQUIRE_FALSE(options.graph);
  REQUIRE(zero_options(parse({"--graph", "on"})).graph);
  REQUIRE(options.reduction == optim::Reduction::fast);
  REQUIRE(options.stage == 0);
  REQUIRE(options.lr == 0.5f);
  REQUIRE(options.min_lr == 0);
  REQUIRE(parse({"--optimizer", "sgd", "--beta1", "0.5"}).beta1 == 0.5f);
  REQUIRE(parse({"--optimizer", "adam", "--beta2", "0.5"}).beta2 == 0.5f);
}

TEST_CASE("train_gpt --eval-only takes a micro-batch that does not divide the global batch") {
  const auto options = parse({"--micro-batch", "7", "--checkpoint", "runs", "--eval-only"});
  CHECK(options.batch.micro == 7);
  CHECK_THAT(refusal({"--checkpoint", "runs", "--eval-only", "--plan"}),
             ContainsSubstring("--eval-only takes none; leave out"));
}

TEST_CASE("if a flag is given twice, the last value counts") {
  const auto options = parse({"--steps", "3", "--overlap", "off", "--steps", "4"});
  REQUIRE(options.steps == 4);
}

TEST_CASE("flags come from a file, and the command line overrides it") {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run.cfg", "# a run\nsteps = 7\nlr = 0.25\nwidth=64\n");
  const TrainOptions options = parse({"--config", path.c_str(), "--lr", "0.5"});
  REQUIRE(options.steps == 7);
  REQUIRE(options.lr == 0.5f);
  REQUIRE(options.model.width == 64);
  const std::string bad = folder.file("bad.cfg", "stepps = 7\n");
  REQUIRE_THAT(refusal({"--config", bad.c_str()}), ContainsSubstring("stepps"));
  REQUIRE_THAT(refusal({"--config", "/no/such"}), ContainsSubstring("/no/such"));
}

TEST_CASE("train_gpt refuses invalid flags in one line that says what is expected") {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases = {
      {{"--foo"}, "unknown flag --foo"},
      {{"stray"}, "unexpected argument 'stray'"},
      {{"--steps", "0"}, "--steps is 0, expected at least 1"},
      {{"--steps", "-5"}, "--steps is -5"},
      {{"--steps", "ten"}, "ten"},
      {{"--steps", "1.5"}, "1.5"},
      {{"--steps", "99999999999999999999"}, "which is too large"},
      {{"--steps"}, "--steps"},
      {{"--layers", "0"}, "--layers is 0, expected at least 1"},
      {{"--heads", "-1"}, "--heads is -1"},
      {{"--context", "0"}, "--context is 0"},
      {{"--vocab", "0"}, "--vocab is 0"},
      {{"--width", "130"}, "--width 130 is not divisible by the default heads (4)"},
      {{"--heads", "3"}, "the default width (128) is not divisible by --heads 3"},
      {{"--width", "18", "--heads", "4"}, "--width 18 is not divisible by --heads 4"},
      {{"--width", "1000000000000"}, "--width is 1000000000000, expected at most"},
      {{"--global-batch", "10", "--micro-batch", "4"},
       "--global-batch 10 is not a multiple of --micro-batch 4"},
      {{"--global-batch", "10"},
       "--global-batch 10 is not a multiple of the default micro-batch (6)"},
      {{"--global-batch", "0"}, "--global-batch is 0"},
      {{"--micro-batch", "-1"}, "--micro-batch is -1"},
      {{"--stage", "4"}, "--stage is 4, expected 0, 1, 2 or 3"},
      {{"--stage", "-1"}, "--stage is -1"},
      {{"--bucket-bytes", "0"}, "--bucket-bytes is '0', expected more than 0"},
      {{"--precision", "fp8"}, "--precision is 'fp8', expected one of fp32, bf16, fp16"},
      {{"--grad-shard", "bf16"}, "--grad-shard bf16 is for 16-bit gradients; --precision is fp32"},
      {{"--precision", "bf16", "--grad-shard", "fp16"},
       "--grad-shard is 'fp16', expected one of fp32, bf16"},
      {{"--offload", "disk"}, "--offload is 'disk', expected one of none, optimizer"},
      {{"--overlap", "maybe"}, "maybe"},
      {{"--reduction", "slow"}, "slow"},
      {{"--optimizer", "lion"}, "lion"},
      {{"--preset", "huge"}, "--preset is 'huge', expected one of nano, micro"},
      {{"--lr", "0"}, "--lr is 0"},
      {{"--lr", "nan"}, "--lr is nan"},
      {{"--lr", "inf"}, "--lr is inf"},
      {{"--min-lr", "1"}, "--min-lr is 1, expected from 0 to the learning rate"},
      {{"--beta1", "1"}, "--beta1 is 1, expected a number from 0 to below 1"},
      {{"--beta2", "-0.1"}, "--beta2 is -0.1"},
      {{"--optimizer", "adagrad", "--beta1", "0.5"},
       "--beta1 is for --optimizer adamw, adam or sgd, not adagrad"},
      {{"--optimizer", "sgd", "--beta2", "0.5"},
       "--beta2 is for --optimizer adamw or adam, not sgd"},
      {{"--clip", "-1"}, "--clip is -1, expected a finite number of at least 0"},
      {{"--loss-rows", "-1"}, "--loss-rows is -1, expected at least 0"},
      {{"--checkpoint-keep", "2"}, "--checkpoint-keep: give --checkpoint"},
      {{"--checkpoint-async", "on"}, "--checkpoint-async: give --checkpoint"},
      {{"--checkpoint-every", "2"}, "--checkpoint-every: give --checkpoint"},
      {{"--dropout", "1"}, "--dropout is 1"},
      {{"--warmup", "-1"}, "--warmup is -1"},
      {{"--warmup", "9223372036854775807"}, "--warmup is 9223372036854775807, expected at most"},
      {{"--steps", "1099511627776", "--global-batch", "12000000"}, "are more than 2^62 samples"},
      {{"--threads", "-1"}, "--threads is -1"},
      {{"--seed", "-1"}, "-1"},
      {{"--eval-every", "-1"}, "--eval-every is -1"},
      {{"--eval-batches", "-1"}, "--eval-batches is -1"},
      {{"--sample", "-1"}, "--sample is -1"},
  };
  for (const auto& [arguments, expected] : cases) {
    const std::string message = refusal(arguments);
    INFO(arguments[0] << " " << (arguments.size() > 1 ? arguments[1] : ""));
    REQUIRE_THAT(message, ContainsSubstring(expected));
    REQUIRE(message.find('\n') == std::string::npos);
  }
  const char* no_data[] = {"train_gpt"};
  REQUIRE_THAT(test::message_of<InputError>([&] { parse_command_line(1, no_data); }),
               ContainsSubstring("--data is required"));
}

TEST_CASE("--init uses the sizes in its file, and names all flags that contradict them") {
  const test::TemporaryFolder folder;
  const std::string path = saved(
      folder, {.layers = 2, .heads = 3, .width = 12, .context = 8, .vocab = 300, .epsilon = 1e-6f});
  for (const std::string& given : {path, folder.path("")}) {
    const TrainOptions options = parse({"--init", given.c_str(), "--steps", "3"});
    CHECK(options.init == path);
    CHECK(options.name == "gpt-2x12");
    CHECK(options.preset == "nano");
    CHECK(options.model.layers == 2);
    CHECK(options.model.heads == 3);
    CHECK(options.model.width == 12);
    CHECK(options.model.context == 8);
    CHECK(options.model.vocab == 300);
    CHECK(options.model.epsilon == 1e-6f);
    CHECK(parse({"--init", given.c_str(), "--layers", "2"}).model.width == 12);
  }
  CHECK(refusal({"--init", path.c_str(), "--layers", "4", "--heads", "3", "--vocab", "256"}) ==
        path +
            ": its model has layers 2, vocab 300, but the flags ask for --layers 4, --vocab 256; "
            "leave these flags out");
  CHECK(refusal({"--init", path.c_str(), "--preset", "micro", "--width", "12", "--context", "8",
                 "--vocab", "300"}) ==
        path +
            ": its model has layers 2, heads 3, but the flags ask for --preset micro (layers 6), "
            "--preset micro (heads 6); leave these flags out");

  std::filesystem::remove(folder.path("config.json"));
  CHECK(refusal({"--init", path.c_str()}) ==
        path +
            ": no config.json beside it gives the number of attention heads; give "
            "--heads");
  CHECK(parse({"--init", path.c_str(), "--heads", "2"}).model.heads == 2);
  CHECK(refusal({"--init", path.c_str(), "--heads", "5"}) ==
        path + ": its model has width 12, which is not divisible by --heads 5");

  const std::string pickle = folder.file("pytorch_model.bin", "PK\3\4 of torch.save");
  std::filesystem::remove(path);
  CHECK_THAT(refusal({"--init", folder.path("").c_str()}),
             ContainsSubstring("pytorch_model.bin: not a safetensors file, but a zip of pickles"));
  std::filesystem::remove(pickle);
  CHECK_THAT(refusal({"--init", folder.path("").c_str()}),
             ContainsSubstring("model.safetensors: cannot be opened: No such file"));
  // transformers has written safetensors files or, in older versions, pickles.
  for (const char* index : {"model.safetensors.index.json", "pytorch_model.bin.index.json"}) {
    const std::string file = folder.file(index, "{}");
    CHECK_THAT(refusal({"--init", folder.path("").c_str()}),
               ContainsSubstring("its weights are divided among several files") &&
                   ContainsSubstring("safe_serialization=True"));
    std::filesystem::remove(file);
  }
}

TEST_CASE("ranks compare what the model takes from the config.json of --init") {
  const test::TemporaryFolder folder;
  const test::TemporaryFolder other;
  models::GptConfig config{.layers = 1, .heads = 2, .width = 4, .context = 8, .vocab = 9};
  const std::string path = saved(folder, config);
  const auto settings = [](const std::string& init) {
    return init_settings(parse({"--init", init.c_str()}));
  };
  CHECK(settings(path) == dist::Settings{{"heads (--heads or config.json of --init)", "2"},
                                         {"epsilon (config.json of --init)", "1e-05"},
                                         {"preset (--preset or sizes of --init)", "nano"}});
  config.heads = 4;
  config.epsilon = 1e-6f;
  const dist::Settings differ = settings(saved(other, config));
  CHECK(differ[0].value == "4");
  CHECK(differ[1].value == "1e-06");
}

TEST_CASE("--init with the sizes of a preset takes the preset's defaults") {
  const test::TemporaryFolder folder;
  const std::string path = saved(folder, models::GptConfig::preset("micro"));
  const TrainOptions options = parse({"--init", path.c_str()});
  CHECK(options.preset == "micro");
  CHECK(options.name == "micro");
  CHECK(options.steps == 5000);
  CHECK(init_settings(options).back().value == "micro");
}

TEST_CASE("a model whose sizes differ from its preset's has another name") {
  CHECK(parse({}).name == "nano");
  CHECK(parse({"--preset", "gpt2", "--layers", "12", "--dropout", "0.1"}).name == "gpt2");
  CHECK(parse({"--layers", "2"}).name == "gpt-2x128");
  CHECK(parse({"--context", "32"}).name == "gpt-4x128");
}

TEST_CASE("sizes of buckets take units") {
  CHECK(parse({"--bucket-bytes", "1MiB"}).bucket_bytes == 1 << 20);
  CHECK(parse({"--bucket-bytes", "500kB"}).bucket_bytes == 500'000);
  CHECK(parse({"--bucket-bytes", "4096"}).bucket_bytes == 4096);
}

TEST_CASE("the size of a checkpoint's copy may be limited, even to 0") {
  const auto staging = [](const char* text) {
    return parse({"--checkpoint", "runs", "--checkpoint-staging", text})
        .checkpoints.options.staging;
  };
  CHECK_FALSE(parse({"--checkpoint", "runs"}).checkpoints.options.staging.has_value());
  CHECK(staging("0") == 0);
  CHECK(staging("512K") == 512'000);
  CHECK(staging("1MiB") == 1 << 20);
  CHECK(staging("0MiB") == 0);
  CHECK_THROWS_WITH(staging("-1"),
                    ContainsSubstring("--checkpoint-staging is '-1', expected at least 0"));
  CHECK_THROWS_WITH(parse({"--bucket-bytes", "0"}), ContainsSubstring("more than 0"));
}

TEST_CASE("weights saved during a run overwrite no input and no checkpoint") {
  const auto refused = [](const std::vector<const char*>& more) {
    std::vector<const char*> arguments = {"--save", "out/model.safetensors"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    try {
      parse(arguments);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const char* const best = "out/best/model.safetensors";
  CHECK(refused({"--save-best", "--val-data", best}).starts_with("--save-best out/best/"));
  CHECK(refused({"--val-data", best}).empty());
  CHECK(refused({"--save-best", "--log", best}).find("would write the same file") !=
        std::string::npos);
  CHECK(refused({"--save-best", "--trace", "out/best/config.json"}).find("the same file") !=
        std::string::npos);
  const char* const step = "out/step-000000050/model.safetensors";
  CHECK(refused({"--save-every", "25", "--val-data", step}).find("would be overwritten") !=
        std::string::npos);
  CHECK(refused({"--save-every", "20", "--val-data", step}).empty());
  CHECK(refused({"--save-every", "25", "--val-data", "out/step-50/model.safetensors"}).empty());
  CHECK(refused({"--save-every", "25", "--checkpoint", "out"})
            .find("writes folders of the same names") != std::string::npos);
  CHECK(refused({"--save-every", "25", "--checkpoint", "out/"})
            .find("writes folders of the same names") != std::string::npos);
  CHECK(refused({"--save-best", "--checkpoint", "out"}).empty());
  // An output is refused if its path is the folder of a save.
  for (const char* flag :
       {"--log", "--trace", "--report", "--csv", "--tensorboard", "--checkpoint", "--save"}) {
    CAPTURE(flag);
    CHECK(refused({"--save-best", flag, "out/best"})
              .starts_with(std::string(flag) + " out/best is the folder in which --save-best"));
  }
  CHECK(refused({"--log", "out/best"}).empty());
  CHECK(refused({"--save-best", "--log", "best"}).empty());
  CHECK(refused({"--save-every", "25", "--trace", "out/step-000000050"})
            .find("the folder in which --save-every writes") != std::string::npos);
  CHECK(refused({"--save-every", "20", "--trace", "out/step-000000050"}).empty());
  CHECK(refused({"--save-every", "25", "--checkpoint", "elsewhere"}).empty());
}

TEST_CASE("flags for precision and memory reach the model, the optimizer and the plan") {
  const TrainOptions plain = parse({});
  REQUIRE(parameter_dtype(plain.memory) == DType::f32);
  REQUIRE_FALSE(plain.model.recompute);
  REQUIRE(plain.model.loss_chunk_rows == 0);
  REQUIRE(parse({"--loss-rows", "512"}).model.loss_chunk_rows == 512);
  REQUIRE_THROWS_WITH(parse({"--loss-rows", "-1"}),
                      ContainsSubstring("--loss-rows is -1, expected at least 0"));
  REQUIRE(zero_options(plain).grad_shard == DType::f32);
  REQUIRE(zero_options(plain).offload == optim::Offload::none);
  const TrainOptions options = parse({"--precision", "bf16", "--grad-shard", "bf16", "--recompute",
                                      "--offload", "optimizer", "--stage", "3"});
  REQUIRE(parameter_dtype(options.memory) == DType::bf16);
  REQUIRE(options.model.recompute);
  REQUIRE(zero_options(options).stage == 3);
  REQUIRE(zero_options(options).grad_shard == DType::bf16);
  REQUIRE(zero_options(options).offload == optim::Offload::optimizer);
  REQUIRE(parameter_dtype(parse({"--precision", "fp16"}).memory) == DType::f16);
  models::Gpt model(options.model);
  model.to(parameter_dtype(options.memory));
  const train::TrainingRun run = training_run(options);
  const auto on = [&](Device device) {
    return train::plan_input(run, model, {.device = {.device = device}, .ranks = 2});
  };
  REQUIRE(on({}).stage == 3);
  REQUIRE(on({}).sum_dtype == DType::bf16);
  // On a CPU nothing is offloaded, because the optimizer state is on the host anyway.
  REQUIRE_FALSE(on({}).offload);
  REQUIRE(on({DeviceType::cuda, 0}).offload);
}

TEST_CASE("weight decay applies to matrices only") {
  const optim::ZeroOptions zero = zero_options(parse({}));
  const models::Gpt model(models::GptConfig::preset("nano"));
  for (const auto& named : model.named_parameters()) {
    const bool matrix =
        named.name.ends_with(".weight") && named.name.find("ln_") == std::string::npos;
    REQUIRE(zero.group_of(named) == (matrix ? 0 : 1));
  }
  REQUIRE(zero.groups.size() == 1);
  REQUIRE(zero.groups[0].weight_decay == 0.0f);
}

TEST_CASE("the plan's table has every stage, for this run's number of ranks and others") {
  const TrainOptions options = parse({});
  const models::Gpt model(options.model);
  const std::string table = train::plan_table(
      {.model_name = options.name, .optimizer = options.optimizer}, training_run(options),
      {.ranks = 3}, [&](const train::TrainingRun& run, const train::JobPlace& place) {
        return train::plan_run(run, model, place);
      });
  REQUIRE_THAT(table, ContainsSubstring("    2      3  "));
  REQUIRE_THAT(table, ContainsSubstring("    0     64  "));
  REQUIRE_THAT(table, ContainsSubstring("    3      3  "));
  REQUIRE_THAT(table, ContainsSubstring("gathered therein"));
}
