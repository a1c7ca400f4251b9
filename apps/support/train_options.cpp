#include "apps/support/train_options.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/support/train_defaults.h"

namespace tessera::apps {
namespace {

// As given; what is empty comes from the preset.
struct Given {
  std::optional<int64_t> layers, heads, width, context, vocab;
  std::optional<int64_t> steps, global_batch, micro_batch, warmup, eval_every, bucket_bytes;
  std::optional<float> lr, min_lr, weight_decay, beta2;
  float beta1 = 0.9f;
  std::string preset = "nano";
  std::string overlap = "on";
  std::string reduction = "ordered";
  int64_t stage = 2;
  int64_t threads = 0;
  int64_t seed = 1;  // signed, because CLI11 takes -1 for a large unsigned number
};

void add_data_and_model(CLI::App& app, Given& given, TrainOptions& options) {
  const char* group = "Data";
  app.add_option("--data", options.data,
                 "Text, read as bytes, or uint16 tokens in a .bin of nanoGPT or llm.c")
      ->group(group);
  app.add_option("--val-data", options.val_data, "Validation data (default: the last 10 %)")
      ->group(group);

  group = "Model";
  app.add_option("--preset", given.preset,
                 "nano, micro, gpt2, gpt2-medium, gpt2-large or gpt2-xl; sets the defaults below")
      ->capture_default_str()
      ->group(group);
  app.add_option("--layers", given.layers, "Blocks")->group(group);
  app.add_option("--heads", given.heads, "Heads of attention, a divisor of the width")
      ->group(group);
  app.add_option("--width", given.width, "Channels")->group(group);
  app.add_option("--context", given.context, "Tokens of a sequence")->group(group);
  app.add_option("--vocab", given.vocab, "Tokens that there are; 256 for text")->group(group);
  app.add_option("--dropout", options.model.dropout, "Probability, in [0, 1)")
      ->capture_default_str()
      ->group(group);
}

void add_training(CLI::App& app, Given& given, TrainOptions& options) {
  const char* group = "Training";
  app.add_option("--steps", given.steps, "Optimizer steps")->group(group);
  app.add_option("--global-batch", given.global_batch, "Sequences of a step")->group(group);
  app.add_option("--micro-batch", given.micro_batch,
                 "Sequences that a rank computes at once, a divisor of the global batch")
      ->group(group);
  app.add_option("--optimizer", options.optimizer, "adamw, adam or sgd")
      ->default_val("adamw")
      ->check(CLI::IsMember({"adamw", "adam", "sgd"}))
      ->group(group);
  app.add_option("--lr", given.lr, "Learning rate after the warm-up")->group(group);
  app.add_option("--min-lr", given.min_lr, "Learning rate at the end of the cosine")->group(group);
  app.add_option("--warmup", given.warmup, "Steps of the linear warm-up")->group(group);
  app.add_option("--weight-decay", given.weight_decay, "Of matrices (adamw: 0.1, else 0)")
      ->group(group);
  app.add_option("--beta1", given.beta1, "Adam's first; sgd's momentum")
      ->capture_default_str()
      ->group(group);
  app.add_option("--beta2", given.beta2, "Adam's second")->group(group);
  app.add_option("--clip", options.clip, "Largest global norm of the gradient; 0: no clipping")
      ->default_val(1.0f)
      ->group(group);
  app.add_option("--seed", given.seed, "Of weights, order of data, dropout and samples")
      ->capture_default_str()
      ->group(group);
}

void add_distribution(CLI::App& app, Given& given) {
  const char* group = "Distribution";
  app.add_option("--stage", given.stage, "ZeRO stage: 0, 1 or 2")
      ->capture_default_str()
      ->group(group);
  app.add_option("--bucket-bytes", given.bucket_bytes, "Size at which a bucket is sent")
      ->group(group);
  app.add_option("--overlap", given.overlap, "on: communicate while computing; off")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}))
      ->group(group);
  app.add_option("--reduction", given.reduction,
                 "ordered: the same bits for any number of ranks; fast")
      ->capture_default_str()
      ->check(CLI::IsMember({"ordered", "fast"}))
      ->group(group);
  app.add_option("--threads", given.threads,
                 "Threads of a rank (default: OMP_NUM_THREADS, or the host's cores / its ranks)")
      ->group(group);
}

void add_output(CLI::App& app, Given& given, TrainOptions& options) {
  const char* group = "Output";
  app.add_option("--eval-every", given.eval_every, "Steps between evaluations; 0: none")
      ->group(group);
  app.add_option("--eval-batches", options.eval_batches,
                 "Micro-batches of an evaluation; 0: the whole validation part")
      ->default_val(20)
      ->group(group);
  app.add_option("--sample", options.sample, "Tokens to sample at the end")
      ->default_val(0)
      ->group(group);
  app.add_option("--save", options.save, "Write the weights, FILE.safetensors, and config.json")
      ->group(group);
  app.add_option("--init", options.init, "Begin with the weights of FILE.safetensors")
      ->group(group);
  app.add_option("--log", options.log, "Write JSON lines to FILE.jsonl")->group(group);
  app.add_option("--trace", options.trace, "Write a Chrome/Perfetto trace to FILE.json")
      ->group(group);
  app.add_flag("--plan", options.plan, "Print memory and traffic for any number of ranks, and end")
      ->group(group);
}

template <class T>
void at_least(const char* flag, T value, T minimum) {
  if (value >= minimum) return;
  fail_input("{} is {}, expected at least {}", flag, value, minimum);
}

void at_most(const char* what, int64_t value, int64_t maximum) {
  if (value > maximum) fail_input("{} is {}, expected at most {}", what, value, maximum);
}

void positive(const char* flag, float value) {
  if (std::isfinite(value) && value > 0) return;
  fail_input("{} is {}, expected a number greater than 0", flag, value);
}

void within(const char* flag, float value, float minimum, float below) {
  if (value >= minimum && value < below) return;
  fail_input("{} is {}, expected a number from {} to below {}", flag, value, minimum, below);
}

void fill_model(const Given& given, TrainOptions& options) {
  const float dropout = options.model.dropout;
  options.preset = given.preset;
  options.model = models::GptConfig::preset(given.preset);
  options.model.layers = given.layers.value_or(options.model.layers);
  options.model.heads = given.heads.value_or(options.model.heads);
  options.model.width = given.width.value_or(options.model.width);
  options.model.context = given.context.value_or(options.model.context);
  options.model.vocab = given.vocab.value_or(options.model.vocab);
  options.model.dropout = dropout;
  options.model.validate();
  // So that no product of sizes overflows.
  at_most("layers", options.model.layers, int64_t{1} << 14);
  at_most("width", options.model.width, int64_t{1} << 20);
  at_most("context", options.model.context, int64_t{1} << 24);
  at_most("vocab", options.model.vocab, int64_t{1} << 24);
}

void fill_training(const Given& given, TrainOptions& options) {
  const TrainDefaults defaults = train_defaults(given.preset);
  const bool sgd = options.optimizer == "sgd";
  const bool decoupled = options.optimizer == "adamw";
  options.steps = given.steps.value_or(defaults.steps);
  options.batch = {.global = given.global_batch.value_or(defaults.global_batch),
                   .micro = given.micro_batch.value_or(defaults.micro_batch)};
  // Without Adam's normalisation, steps of a useful length need a larger rate.
  options.lr = given.lr.value_or(sgd ? 100 * defaults.lr : defaults.lr);
  options.min_lr = given.min_lr.value_or(given.lr ? options.lr / 10
                                                  : options.lr * (defaults.min_lr / defaults.lr));
  options.warmup = given.warmup.value_or(std::min(defaults.warmup, options.steps / 10));
  options.weight_decay = given.weight_decay.value_or(decoupled ? 0.1f : 0.0f);
  options.beta1 = given.beta1;
  options.beta2 = given.beta2.value_or(defaults.beta2);
  options.eval_every = given.eval_every.value_or(defaults.eval_every);
  options.bucket_bytes = given.bucket_bytes.value_or(defaults.bucket_bytes);
  at_least<int64_t>("--seed", given.seed, 0);
  options.seed = static_cast<uint64_t>(given.seed);
  options.overlap = given.overlap == "on";
  options.reduction =
      given.reduction == "ordered" ? optim::Reduction::ordered : optim::Reduction::fast;
}

void check_training(const TrainOptions& options) {
  at_least<int64_t>("--steps", options.steps, 1);
  at_most("--steps", options.steps, int64_t{1} << 40);
  at_least<int64_t>("--warmup", options.warmup, 0);
  at_least<int64_t>("--bucket-bytes", options.bucket_bytes, 1);
  at_least<int64_t>("--eval-every", options.eval_every, 0);
  at_least<int64_t>("--eval-batches", options.eval_batches, 0);
  at_least<int64_t>("--sample", options.sample, 0);
  positive("--lr", options.lr);
  within("--beta1", options.beta1, 0, 1);
  within("--beta2", options.beta2, 0, 1);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  within("--weight-decay", options.weight_decay, 0, infinity);
  within("--clip", options.clip, 0, infinity);
  if (!(options.min_lr >= 0 && options.min_lr <= options.lr)) {
    fail_input("--min-lr is {}, expected from 0 to the learning rate, {}", options.min_lr,
               options.lr);
  }
  options.batch.validate();
  at_most("global batch", options.batch.global, int64_t{1} << 30);
  at_most("--eval-batches", options.eval_batches, int64_t{1} << 30);
}

void check_distribution(const Given& given, TrainOptions& options) {
  if (given.stage == 3) fail_input("stage 3 is not available yet; 0, 1 and 2 are");
  if (given.stage < 0 || given.stage > 3) {
    fail_input("stage is {}, expected 0, 1 or 2", given.stage);
  }
  options.stage = static_cast<int>(given.stage);
  if (given.threads < 0 || given.threads > 4096) {
    fail_input("--threads is {}, expected from 1 to 4096, or 0 for the default", given.threads);
  }
  options.threads = static_cast<int>(given.threads);
}

// CLI11's message without line ends, because an error is one line.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine result;
  Given given;
  CLI::App app("Trains a GPT with ZeRO on any number of ranks: mpirun -n N train_gpt --data FILE",
               "train_gpt");
  // A script's flags can be overridden by those that follow them.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_config("--config", "", "Read flags from a file: lines such as steps = 100");
  app.allow_config_extras(CLI::config_extras_mode::error);
  add_data_and_model(app, given, result.options);
  add_training(app, given, result.options);
  add_distribution(app, given);
  add_output(app, given, result.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    result.help = app.help();
    return result;
  } catch (const CLI::ParseError& error) {
    throw InputError(one_line(error.what()));
  }
  check_distribution(given, result.options);
  fill_model(given, result.options);
  fill_training(given, result.options);
  check_training(result.options);
  if (result.options.data.empty() && !result.options.plan) fail_input("--data is required");
  return result;
}

optim::UpdateRule update_rule(const TrainOptions& options) {
  if (options.optimizer == "sgd") {
    return optim::Sgd{.learning_rate = options.lr,
                      .momentum = options.beta1,
                      .weight_decay = options.weight_decay};
  }
  if (options.optimizer == "adam") {
    return optim::Adam{.learning_rate = options.lr,
                       .beta1 = options.beta1,
                       .beta2 = options.beta2,
                       .weight_decay = options.weight_decay};
  }
  return optim::AdamW{.learning_rate = options.lr,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .weight_decay = options.weight_decay};
}

optim::ZeroOptions zero_options(const TrainOptions& options) {
  return {.stage = options.stage,
          .bucket_bytes = options.bucket_bytes,
          .overlap = options.overlap,
          .reduction = options.reduction,
          .clip = options.clip,
          .schedule = optim::warmup_cosine(options.warmup, options.steps,
                                           options.min_lr / options.lr),
          .seed = options.seed,
          .group_of = [](const nn::NamedParameter& named) {
            return named.parameter.shape().rank() >= 2 ? 0 : 1;
          },
          .groups = {{.weight_decay = 0.0f}}};
}

const char* reduction_name(optim::Reduction reduction) {
  return reduction == optim::Reduction::ordered ? "ordered" : "fast";
}

int threads_per_rank(int asked, int ranks_on_this_host) {
  if (asked > 0) return asked;
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return std::max(1, omp_get_max_threads());
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, ranks_on_this_host));
}

}  // namespace tessera::apps
