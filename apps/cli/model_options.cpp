#include "apps/cli/model_options.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/cli/command_line.h"
#include "apps/console/flags.h"
#include "core/error.h"
#include "models/gpt/gpt_sizes.h"

namespace tessera::apps {

namespace {

// Returns the text for a flag's default in --help. The text names the presets that have each value:
// "2000 for nano; 5000 for micro". If all presets have the same value, the text is this value
// alone. `text_of` takes the defaults of one preset, and returns the flag's default as text.
std::string by_preset(const std::function<std::string(const TrainDefaults&)>& text_of) {
  std::vector<std::pair<std::string, std::string>> groups;  // default, and presets that have it
  for (const std::string& preset : models::GptConfig::preset_names()) {
    const std::string text = text_of(train_defaults(preset));
    if (groups.empty() || groups.back().first != text) {
      groups.emplace_back(text, preset);
    } else {
      groups.back().second += ", " + preset;
    }
  }
  if (groups.size() == 1) return groups.front().first;
  std::string all;
  for (const auto& [text, presets] : groups) {
    all += fmt::format("{}{} for {}", all.empty() ? "" : "; ", text, presets);
  }
  return all;
}

template <class T>
std::string by_preset(T TrainDefaults::*member) {
  return by_preset(
      [=](const TrainDefaults& defaults) { return fmt::format("{}", defaults.*member); });
}

}  // namespace

DefaultTexts gpt_default_texts() {
  return {.steps = by_preset(&TrainDefaults::steps),
          .global_batch = by_preset(&TrainDefaults::global_batch),
          .micro_batch = by_preset(&TrainDefaults::micro_batch),
          .lr = by_preset(&TrainDefaults::lr) + "; with sgd 100 times as much",
          .min_lr = "a tenth of --lr",
          .warmup = by_preset(&TrainDefaults::warmup) + "; at most a tenth of --steps",
          .beta2 = by_preset(&TrainDefaults::beta2),
          .eval_every = by_preset(&TrainDefaults::eval_every),
          .bucket_bytes = by_preset([](const TrainDefaults& defaults) {
            return fmt::format("{}KiB", defaults.bucket_bytes / 1024);
          })};
}

void add_model_options(Flags& app, ModelOptions& options) {
  const char* group = "Model";
  app.add_option("--preset", options.preset,
                 "Named model, which sets the defaults of the flags below (default: nano)")
      ->one_of(models::GptConfig::preset_names())
      ->group(group);
  app.add_option("--layers", options.layers,
                 "Number of transformer blocks (default: that of --preset)")
      ->group(group);
  app.add_option("--heads", options.heads,
                 "Attention heads of each block, a divisor of --width (default: that of --preset)")
      ->group(group);
  app.add_option("--width", options.width,
                 "Width of the model: the length of a token's embedding (default: that of "
                 "--preset)")
      ->group(group);
  app.add_option("--context", options.context,
                 "Length of a sequence, in tokens (default: that of --preset)")
      ->group(group);
  app.add_option("--vocab", options.vocab,
                 "Size of the vocabulary; for text read as bytes 256, without which generate takes "
                 "no text (default: that of --preset)")
      ->group(group);
}

std::string preset_of(const ModelOptions& options) { return options.preset.value_or("nano"); }

namespace {

// Names a size for an error message: "--width 130" if the user gave the flag, otherwise "the
// default width (128)".
std::string flag_or_default(const std::string& name, bool given, int64_t value) {
  return given ? fmt::format("--{} {}", name, value)
               : fmt::format("the default {} ({})", name, value);
}

// Checks the sizes that flags set. GptConfig::validate refuses invalid sizes too, but its errors do
// not name the flags.
void check_size_flags(const ModelOptions& options, const models::GptConfig& config) {
  using models::GptLimits;
  const std::tuple<const char*, std::optional<int64_t>, int64_t> flags[] = {
      {"--layers", options.layers, GptLimits::layers},
      {"--heads", options.heads, GptLimits::width},
      {"--width", options.width, GptLimits::width},
      {"--context", options.context, GptLimits::context},
      {"--vocab", options.vocab, GptLimits::vocab}};
  for (const auto& [flag, value, most] : flags) {
    if (!value) continue;
    at_least(flag, *value, 1);
    at_most(flag, *value, most);
  }
  if (config.width % config.heads == 0) return;
  fail_input("{} is not divisible by {}",
             flag_or_default("width", options.width.has_value(), config.width),
             flag_or_default("heads", options.heads.has_value(), config.heads));
}

}  // namespace

models::GptConfig model_config(const ModelOptions& options) {
  models::GptConfig config = models::GptConfig::preset(preset_of(options));
  config.layers = options.layers.value_or(config.layers);
  config.heads = options.heads.value_or(config.heads);
  config.width = options.width.value_or(config.width);
  config.context = options.context.value_or(config.context);
  config.vocab = options.vocab.value_or(config.vocab);
  config.epsilon = options.epsilon.value_or(config.epsilon);
  if (!options.from_file) check_size_flags(options, config);
  config.validate();
  return config;
}

namespace {

struct Size {
  const char* name;
  std::optional<int64_t> ModelOptions::*given;
  int64_t models::GptConfig::*of_preset;
  std::optional<int64_t> in_file;
};

}  // namespace

ModelOptions with_sizes_of(const std::string& weights_path, const ModelOptions& options) {
  using models::GptConfig;
  const models::GptFileSizes file = models::read_gpt_file_sizes(weights_path);
  if (!file.heads && !options.heads && !options.preset) {
    fail_input(
        "{}: no config.json beside it gives the number of attention heads; give "
        "--heads",
        weights_path);
  }
  const Size sizes[] = {{"layers", &ModelOptions::layers, &GptConfig::layers, file.layers},
                        {"heads", &ModelOptions::heads, &GptConfig::heads, file.heads},
                        {"width", &ModelOptions::width, &GptConfig::width, file.width},
                        {"context", &ModelOptions::context, &GptConfig::context, file.context},
                        {"vocab", &ModelOptions::vocab, &GptConfig::vocab, file.vocab}};
  ModelOptions result = options;
  std::vector<std::string> asked;
  std::vector<std::string> held;
  for (const Size& size : sizes) {
    if (!size.in_file) continue;
    const auto given = options.*size.given;
    const int64_t of_preset =
        options.preset ? GptConfig::preset(*options.preset).*size.of_preset : *size.in_file;
    result.*size.given = size.in_file;
    if (given.value_or(of_preset) == *size.in_file) continue;
    asked.push_back(
        given ? fmt::format("--{} {}", size.name, *given)
              : fmt::format("--preset {} ({} {})", *options.preset, size.name, of_preset));
    held.push_back(fmt::format("{} {}", size.name, *size.in_file));
  }
  if (!asked.empty()) {
    fail_input("{}: its model has {}, but the flags ask for {}; leave these flags out",
               weights_path, fmt::join(held, ", "), fmt::join(asked, ", "));
  }
  if (!file.heads && options.heads) {
    at_least("--heads", *options.heads, 1);
    if (file.width % *options.heads != 0) {
      fail_input("{}: its model has width {}, which is not divisible by --heads {}", weights_path,
                 file.width, *options.heads);
    }
  }
  const std::string like = models::preset_like(file);
  if (!options.preset && !like.empty()) result.preset = like;
  result.epsilon = file.epsilon;
  result.from_file = true;
  return result;
}

void add_batch_options(Flags& app, BatchOptions& options, const std::string& group,
                       const DefaultTexts& defaults, const std::string& samples) {
  app.add_option("--global-batch,--batch", options.global,
                 fmt::format("{} in one optimizer step, over all ranks (default: {})", samples,
                             defaults.global_batch))
      ->group(group);
  app.add_option("--micro-batch", options.micro,
                 fmt::format("{} that a rank computes at once, a divisor of the global batch "
                             "(default: {}; the global batch if that is smaller)",
                             samples, defaults.micro_batch))
      ->group(group);
}

namespace {

constexpr int64_t most_in_batch = int64_t{1} << 30;

}  // namespace

Batch batch_sizes(const BatchOptions& options, const TrainDefaults& defaults) {
  // A small --global-batch needs no --micro-batch, because the default is at most the global batch.
  const int64_t global = options.global.value_or(defaults.global_batch);
  const Batch batch{.global = global,
                    .micro = options.micro.value_or(std::min(defaults.micro_batch, global))};
  at_least("--global-batch", batch.global, 1);
  at_least("--micro-batch", batch.micro, 1);
  if (batch.global % batch.micro != 0) {
    fail_input("{} is not a multiple of {}",
               flag_or_default("global-batch", options.global.has_value(), batch.global),
               flag_or_default("micro-batch", options.micro.has_value(), batch.micro));
  }
  at_most("--global-batch", batch.global, most_in_batch);
  return batch;
}

BatchOptions evaluation_batch(const BatchOptions& options, const TrainDefaults& defaults,
                              int64_t samples) {
  const int64_t micro = options.micro.value_or(defaults.micro_batch);
  at_least("--global-batch", options.global.value_or(1), 1);
  at_least("--micro-batch", micro, 1);
  at_most("--micro-batch", micro, most_in_batch);
  const int64_t size = std::min(micro, samples);
  return {.global = size, .micro = size};
}

FlagOption add_optimizer_option(Flags& app, std::string& optimizer, const std::string& group) {
  return app.add_option("--optimizer", optimizer, "Optimizer: adamw, adam, sgd or adagrad")
      ->capture_default_str()
      ->one_of({"adamw", "adam", "sgd", "adagrad"})
      ->group(group);
}

void add_bucket_options(Flags& app, BucketOptions& options, const DefaultTexts& defaults) {
  const char* group = "Distribution";
  app.add_bytes("--bucket-bytes", options.bytes,
                "Size, such as 1MiB, up to which parameters share a bucket, the part of the "
                "parameters or gradients that is sent at once (default: " +
                    defaults.bucket_bytes + ")")
      ->group(group);
  app.add_option("--reduction", options.reduction,
                 "How gradients are summed: ordered gives the same bits for any number of ranks, "
                 "fast does not")
      ->capture_default_str()
      ->one_of({"ordered", "fast"})
      ->group(group);
}

FlagOption add_device_option(Flags& app, std::string& device) {
  return app
      .add_option("--device", device,
                  "Device to compute on: cpu, cuda, or auto, which is cuda if a GPU is usable")
      ->capture_default_str()
      ->one_of({"cpu", "cuda", "auto"});
}

void add_device_options(Flags& app, dist::DeviceOptions& options) {
  const char* group = "Distribution";
  add_device_option(app, options.device)->group(group);
  app.add_option("--comm", options.comm,
                 "With CUDA, how ranks communicate: nccl, with a GPU for each rank; mpi, through "
                 "host memory; or auto")
      ->capture_default_str()
      ->one_of({"auto", "nccl", "mpi"})
      ->group(group);
  app.add_option("--comm-timeout", options.timeout_s,
                 "Seconds without progress, in a collective or at the start, after which the job "
                 "ends; at the start at least 10, and read only from the command line; at the end "
                 "ten times as many")
      ->capture_default_str()
      ->group(group);
}

void add_overlap_option(Flags& app, std::string& overlap) {
  app.add_option("--overlap", overlap, "Communicate while computing: on or off")
      ->capture_default_str()
      ->one_of({"on", "off"})
      ->group("Distribution");
}

void add_graph_option(Flags& app, std::string& graph) {
  app.add_option("--graph", graph, "With CUDA, launch micro-steps as CUDA graphs: on or off")
      ->capture_default_str()
      ->one_of({"on", "off"})
      ->group("Distribution");
}

int64_t bucket_bytes(const BucketOptions& options, const TrainDefaults& defaults) {
  return options.bytes.value_or(defaults.bucket_bytes);
}

optim::Reduction reduction(const BucketOptions& options) {
  return options.reduction == "ordered" ? optim::Reduction::ordered : optim::Reduction::fast;
}

void add_memory_options(Flags& app, MemoryOptions& options) {
  const char* group = "Memory";
  app.add_option("--precision", options.precision,
                 "Dtype of parameters, activations and gradients: fp32, bf16 or fp16")
      ->capture_default_str()
      ->one_of({"fp32", "bf16", "fp16"})
      ->group(group);
  app.add_option(
         "--grad-shard", options.grad_shard,
         "Dtype in which 16-bit gradients are summed: fp32, or bf16, rounded after each addition")
      ->capture_default_str()
      ->one_of({"fp32", "bf16"})
      ->group(group);
  app.add_option("--offload", options.offload,
                 "What is kept and updated on the host: optimizer (master weights and optimizer "
                 "state), or none")
      ->capture_default_str()
      ->one_of({"none", "optimizer"})
      ->group(group);
}

void add_recompute_option(Flags& app, MemoryOptions& options) {
  app.add_flag(
         "--recompute", options.recompute,
         "Compute each block's activations again in the backward pass, instead of keeping them")
      ->group("Memory");
}

void add_loss_rows_option(Flags& app, MemoryOptions& options) {
  app.add_option("--loss-rows", options.loss_rows,
                 "Rows of logits that the loss computes at once; results with different numbers "
                 "differ in their bits; 0: as many as suit the device")
      ->capture_default_str()
      ->group("Memory");
}

void check_loss_rows(const MemoryOptions& options) {
  at_least("--loss-rows", options.loss_rows, 0);
}

DType parameter_dtype(const MemoryOptions& options) {
  if (options.precision == "bf16") return DType::bf16;
  return options.precision == "fp16" ? DType::f16 : DType::f32;
}

DType sum_dtype(const MemoryOptions& options) {
  if (options.grad_shard == "fp32") return DType::f32;
  if (options.precision == "fp32") {
    fail_input(
        "--grad-shard bf16 is for 16-bit gradients; --precision is fp32, expected bf16 or "
        "fp16");
  }
  return DType::bf16;
}

optim::Offload offload(const MemoryOptions& options) {
  return options.offload == "optimizer" ? optim::Offload::optimizer : optim::Offload::none;
}

}  // namespace tessera::apps
