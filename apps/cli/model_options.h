// Flags for the sizes of a GPT, and flags that training programs share: batch, optimizer, buckets,
// memory and device. train_gpt trains the GPT, and zero_plan estimates the memory and traffic of
// that training. Sizes that are not given are those of the preset.
//
//   ModelOptions model;
//   add_model_options(app, model);
//   ... parse ...
//   models::GptConfig config = model_config(model);       // checked
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/console/flags.h"
#include "apps/cli/train_defaults.h"
#include "core/micro_batch.h"
#include "dist/device_choice.h"
#include "models/gpt/gpt.h"
#include "optim/zero_optimizer.h"

namespace tessera::apps {

/// Flags of the group "Model" in --help: --preset, --layers, --heads, --width, --context, --vocab.
struct ModelOptions {
  std::optional<std::string> preset;  // not given: nano
  std::optional<int64_t> layers, heads, width, context, vocab;
  std::optional<float> epsilon;  // layer norms' epsilon in config.json; no flag sets it
  bool from_file = false;        // true: with_sizes_of has set the sizes to those of a file
};
void add_model_options(Flags& app, ModelOptions& options);
/// Returns the name of the preset; "nano" if none was given.
std::string preset_of(const ModelOptions& options);
/// Returns the model's sizes. Throws InputError if the sizes are invalid. The message names the
/// flags, unless with_sizes_of has set the sizes.
models::GptConfig model_config(const ModelOptions& options);
/// Returns what --help says about the defaults of GPT training. Where a default depends on the
/// preset, its text has the value of each preset.
DefaultTexts gpt_default_texts();
/// Returns `options` with the sizes of the model in a safetensors file of weights, so that the user
/// need not give the sizes. The number of attention heads and the norms' epsilon come from
/// config.json beside that file. If no preset is given, sets the preset that has these sizes, if
/// there is one. Throws InputError in these cases:
///
///   - A size that is given by its flag or by --preset differs from the size in the files. The
///     message lists all such sizes.
///   - None of config.json, --heads and --preset gives the number of heads.
///   - --heads does not divide the width in the weights file.
ModelOptions with_sizes_of(const std::string& weights_path, const ModelOptions& options);

/// --global-batch (or --batch) and --micro-batch.
struct BatchOptions {
  std::optional<int64_t> global, micro;
};
/// Adds both flags. `samples` is the word for samples in their help, such as "Images".
void add_batch_options(Flags& app, BatchOptions& options, const std::string& group,
                       const DefaultTexts& defaults, const std::string& samples = "Sequences");
/// Returns the sizes. The micro-batch is by default TrainDefaults::micro_batch, but at most the
/// global batch. Throws InputError, naming the flags, if the sizes are invalid.
Batch batch_sizes(const BatchOptions& options, const TrainDefaults& defaults);
/// Returns batch sizes for an evaluation. Global batch and micro-batch get the same size: that of
/// --micro-batch or its default, but at most `samples`, the number of training samples. The size of
/// --global-batch is not used, because an evaluation takes no step. Throws InputError if a given
/// size is not positive, or if --micro-batch is above 2^30.
BatchOptions evaluation_batch(const BatchOptions& options, const TrainDefaults& defaults,
                              int64_t samples);

/// Adds --optimizer adamw|adam|sgd|adagrad.
FlagOption add_optimizer_option(Flags& app, std::string& optimizer, const std::string& group);

/// Flags of the group "Distribution" in --help: --bucket-bytes, --reduction.
struct BucketOptions {
  std::optional<int64_t> bytes;
  std::string reduction = "ordered";
};
void add_bucket_options(Flags& app, BucketOptions& options, const DefaultTexts& defaults);
int64_t bucket_bytes(const BucketOptions& options, const TrainDefaults& defaults);
optim::Reduction reduction(const BucketOptions& options);

/// Adds --overlap on|off to the group "Distribution".
void add_overlap_option(Flags& app, std::string& overlap);
/// Adds --graph on|off to the group "Distribution".
void add_graph_option(Flags& app, std::string& graph);

/// Flags of the group "Memory" in --help: --precision, --grad-shard and --offload; for a GPT also
/// --recompute and --loss-rows.
struct MemoryOptions {
  std::string precision = "fp32";
  std::string grad_shard = "fp32";
  bool recompute = false;
  std::string offload = "none";
  int64_t loss_rows = 0;
};
void add_memory_options(Flags& app, MemoryOptions& options);
void add_recompute_option(Flags& app, MemoryOptions& options);
void add_loss_rows_option(Flags& app, MemoryOptions& options);
/// Throws InputError, naming --loss-rows, if the number of rows is negative.
void check_loss_rows(const MemoryOptions& options);
/// Adds --device cpu|cuda|auto.
FlagOption add_device_option(Flags& app, std::string& device);
/// Adds --device, --comm and --comm-timeout to the group "Distribution".
void add_device_options(Flags& app, dist::DeviceOptions& options);

DType parameter_dtype(const MemoryOptions& options);
DType sum_dtype(const MemoryOptions& options);
optim::Offload offload(const MemoryOptions& options);

}  // namespace tessera::apps
