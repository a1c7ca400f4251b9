#include "apps/predict_options.h"

#include "apps/cli/command_line.h"
#include "apps/console/flags.h"
#include "apps/cli/model_options.h"
#include "core/error.h"

namespace tessera::apps {

PredictCommandLine parse_predict_command_line(int argc, const char* const* argv) {
  PredictCommandLine result;
  PredictOptions& options = result.options;
  int64_t threads = 0;
  Flags app("Labels images with a model that train_resnet saved", "predict");
  app.add_option("model,--model", options.model,
                 "Weights, FILE.safetensors, that train_resnet --save wrote");
  app.add_option("images,--images", options.images, "Images to label: JPEG or PNG files");
  app.add_option("--top", options.top, "How many of the likeliest classes to print for each image")
      ->capture_default_str();
  add_device_option(app, options.device);
  app.add_option("--threads", threads,
                 "CPU threads; 0: OMP_NUM_THREADS, else all cores (default: 0)");
  result.help = app.parse(argc, argv);
  if (!result.help.empty()) return result;
  if (options.model.empty() || options.images.empty()) {
    fail_input("a model and images are required: predict FILE.safetensors IMAGE...");
  }
  at_least("--top", options.top, 1);
  at_least("--threads", threads, 0);
  at_most("--threads", threads, 4096);
  options.threads = static_cast<int>(threads);
  return result;
}

}  // namespace tessera::apps
