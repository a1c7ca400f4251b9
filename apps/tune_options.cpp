#include "apps/tune_options.h"

#include <optional>

#include "apps/cli/command_line.h"
#include "apps/console/flags.h"
#include "core/error.h"

namespace tessera::apps {

TuneCommandLine parse_tune_command_line(int argc, const char* const* argv) {
  TuneCommandLine result;
  TuneOptions& options = result.options;
  ModelOptions model;
  std::optional<int64_t> micro_batch;
  MemoryOptions memory;
  Flags app(
      "Measures cuBLASLt's algorithms for a GPT's matrix products, and writes a table of the "
      "fastest for train_gpt --tuned FILE",
      "tune");
  add_model_options(app, model);
  app.add_option("--micro-batch", micro_batch,
                 fmt::format("Sequences that a rank computes at once (default: {})",
                             gpt_default_texts().micro_batch))
      ->group("Model");
  app.add_option("--precision", memory.precision,
                 "Dtype of parameters and activations: fp32, bf16 or fp16")
      ->capture_default_str()
      ->one_of({"fp32", "bf16", "fp16"})
      ->group("Model");
  app.add_option("--out", options.out, "Write the table to FILE.json (required)")->group("Output");
  result.help = app.parse(argc, argv);
  if (!result.help.empty()) return result;
  if (options.out.empty()) fail_input("--out is required");
  options.model = model_config(model);
  options.micro_batch = micro_batch.value_or(train_defaults(preset_of(model)).micro_batch);
  at_least("--micro-batch", options.micro_batch, 1);
  at_most("--micro-batch", options.micro_batch, int64_t{1} << 30);
  options.dtype = parameter_dtype(memory);
  return result;
}

}  // namespace tessera::apps
