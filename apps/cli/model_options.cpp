#include "apps/cli/model_options.h"

#include "apps/cli/command_line.h"
#include "apps/cli/flags.h"
#include "core/error.h"
#include "train/plan/plan_stage.h"

namespace tessera::apps {

void add_model_options(Flags& app, ModelOptions& options) {
  const char* group = "Model";
  app.add_option("--preset", options.preset,
                 "nano, micro, gpt2, gpt2-medium, gpt2-large or gpt2-xl; sets the defaults below")
      ->capture_default_str()
      ->group(group);
  app.add_option("--layers", options.layers, "Blocks")->group(group);
  app.add_option("--heads", options.heads, "Heads of attention, a divisor of the width")
      ->group(group);
  app.add_option("--width", options.width, "Channels")->group(group);
  app.add_option("--context", options.context, "Tokens of a sequence")->group(group);
  app.add_option("--vocab", options.vocab, "Tokens that there are; 256 for text")->group(group);
}

models::GptConfig model_config(const ModelOptions& options) {
  models::GptConfig config = models::GptConfig::preset(options.preset);
  config.layers = options.layers.value_or(config.layers);
  config.heads = options.heads.value_or(config.heads);
  config.width = options.width.value_or(config.width);
  config.context = options.context.value_or(config.context);
  config.vocab = options.vocab.value_or(config.vocab);
  config.validate();
  // So that no product of sizes overflows.
  at_most("layers", config.layers, train::most_layers);
  at_most("width", config.width, int64_t{1} << 20);
  at_most("context", config.context, int64_t{1} << 24);
  at_most("vocab", config.vocab, int64_t{1} << 24);
  return config;
}

void add_batch_options(Flags& app, BatchOptions& options, const std::string& group,
                       const std::string& samples) {
  app.add_option("--global-batch,--batch", options.global, samples + " of a step")->group(group);
  app.add_option("--micro-batch", options.micro,
                 samples + " that a rank computes at once, a divisor of the global batch")
      ->group(group);
}

Batch batch_sizes(const BatchOptions& options, const TrainDefaults& defaults) {
  const Batch batch{.global = options.global.value_or(defaults.global_batch),
                    .micro = options.micro.value_or(defaults.micro_batch)};
  batch.validate();
  at_most("global batch", batch.global, int64_t{1} << 30);
  return batch;
}

FlagOption add_optimizer_option(Flags& app, std::string& optimizer, const std::string& group) {
  return app.add_option("--optimizer", optimizer, "adamw, adam or sgd")
      ->capture_default_str()
      ->one_of({"adamw", "adam", "sgd"})
      ->group(group);
}

void add_bucket_options(Flags& app, BucketOptions& options) {
  const char* group = "Distribution";
  app.add_option("--bucket-bytes", options.bytes, "Size at which a bucket is sent")->group(group);
  app.add_option("--reduction", options.reduction,
                 "ordered: the same bits for any number of ranks; fast")
      ->capture_default_str()
      ->one_of({"ordered", "fast"})
      ->group(group);
}

FlagOption add_device_option(Flags& app, std::string& device) {
  return app.add_option("--device", device, "cpu, cuda, or auto: CUDA where a GPU is usable")
      ->capture_default_str()
      ->one_of({"cpu", "cuda", "auto"});
}

void add_device_options(Flags& app, dist::DeviceOptions& options) {
  const char* group = "Distribution";
  add_device_option(app, options.device)->group(group);
  app.add_option("--comm", options.comm,
                 "With CUDA: nccl, a GPU for each rank; mpi, through host memory; auto")
      ->capture_default_str()
      ->one_of({"auto", "nccl", "mpi"})
      ->group(group);
  app.add_option("--comm-timeout", options.timeout_s,
                 "Seconds after which a collective over NCCL ends the job")
      ->capture_default_str()
      ->group(group);
}

void add_overlap_option(Flags& app, std::string& overlap) {
  app.add_option("--overlap", overlap, "on: communicate while computing; off")
      ->capture_default_str()
      ->one_of({"on", "off"})
      ->group("Distribution");
}

void add_graph_option(Flags& app, std::string& graph) {
  app.add_option("--graph", graph, "With CUDA: on: launch micro-steps as graphs; off")
      ->capture_default_str()
      ->one_of({"on", "off"})
      ->group("Distribution");
}

int64_t bucket_bytes(const BucketOptions& options, const TrainDefaults& defaults) {
  const int64_t bytes = options.bytes.value_or(defaults.bucket_bytes);
  at_least("--bucket-bytes", bytes, 1);
  return bytes;
}

optim::Reduction reduction(const BucketOptions& options) {
  return options.reduction == "ordered" ? optim::Reduction::ordered : optim::Reduction::fast;
}

void add_memory_options(Flags& app, MemoryOptions& options) {
  const char* group = "Memory";
  app.add_option("--precision", options.precision,
                 "Of parameters, activations and gradients: fp32, bf16 or fp16")
      ->capture_default_str()
      ->one_of({"fp32", "bf16", "fp16"})
      ->group(group);
  app.add_option("--grad-shard", options.grad_shard,
                 "Of the sums of 16-bit gradients: fp32, or bf16, rounded after each addition")
      ->capture_default_str()
      ->one_of({"fp32", "bf16"})
      ->group(group);
  app.add_option("--offload", options.offload,
                 "optimizer: master weights and state on the host, updated there; none")
      ->capture_default_str()
      ->one_of({"none", "optimizer"})
      ->group(group);
}

void add_recompute_option(Flags& app, MemoryOptions& options) {
  app.add_flag("--recompute", options.recompute,
               "Compute each block's activations again in backward, in place of keeping them")
      ->group("Memory");
}

void add_loss_rows_option(Flags& app, MemoryOptions& options) {
  app.add_option("--loss-rows", options.loss_rows,
                 "Rows of logits that the loss computes at once, each number with bits of its own; "
                 "0: as many as suit the device")
      ->capture_default_str()
      ->group("Memory");
}

DType parameter_dtype(const MemoryOptions& options) {
  if (options.precision == "bf16") return DType::bf16;
  return options.precision == "fp16" ? DType::f16 : DType::f32;
}

DType sum_dtype(const MemoryOptions& options) {
  if (options.grad_shard == "fp32") return DType::f32;
  if (options.precision == "fp32") {
    fail_input("--grad-shard bf16 is for 16-bit gradients; --precision is fp32, expected bf16 or "
               "fp16");
  }
  return DType::bf16;
}

optim::Offload offload(const MemoryOptions& options) {
  return options.offload == "optimizer" ? optim::Offload::optimizer : optim::Offload::none;
}

}  // namespace tessera::apps
