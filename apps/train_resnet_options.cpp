#include "apps/train_resnet_options.h"

#include <algorithm>
#include <cmath>

#include "apps/cli/command_line.h"
#include "apps/cli/repeated_inputs.h"
#include "apps/console/flags.h"
#include "core/image_side.h"
#include "core/text/number_text.h"
#include "models/image/image_classifier.h"

namespace tessera::apps {
namespace {

struct Given {
  std::string augment = "on";
  int64_t workers = 1;
};

void add_data_and_model(Flags& app, ImageCommandLine& line, Given& given) {
  ImageTrainOptions& options = line.options;
  app.add_option("--data", options.data,
                 "Images: CIFAR-10 or CIFAR-100 (binary), MNIST (IDX), or a folder of class "
                 "folders of JPEG and PNG files (default: shapes that the program draws)")
      ->compare(Compared::presence)
      ->group("Data");
  app.add_option("--augment", given.augment,
                 "Crop training images at random and, except MNIST's, mirror them: on or off")
      ->capture_default_str()
      ->one_of({"on", "off"})
      ->group("Data");
  app.add_option("--workers", given.workers, "Threads of each rank that read and prepare images")
      ->capture_default_str()
      ->compare(Compared::nothing)  // the number of threads does not change the images
      ->group("Data");
  const std::vector<std::string> names = models::image_classifier_names();
  app.add_option("--model", options.model, fmt::format("Model: {}", fmt::join(names, ", ")))
      ->capture_default_str()
      ->one_of(names)
      ->group("Model");
  app.add_option("--image-size", options.image_size,
                 fmt::format("Pixels of each side of the model's input, at most {}; 0: for folders "
                             "of images the size of the weights of the checkpoint or of --init, "
                             "else 224; for other data the images' own size, which cannot change",
                             most_image_side))
      ->capture_default_str()
      ->group("Model");
  app.add_flag("--sync-bn", options.sync_bn,
               "Compute batch norms over the whole batch of a step, which needs one micro-batch on "
               "each rank")
      ->group("Model");
}

void add_image_training(Flags& app, ImageCommandLine& line) {
  const char* group = "Training";
  ImageTrainOptions& options = line.options;
  app.add_option(
         "--epochs", line.epochs,
         "Passes over the training images, instead of --steps (default: 15, for drawn images 6)")
      ->group(group);
  app.add_option("--label-smoothing", options.label_smoothing,
                 "Label smoothing of the loss, in [0, 1)")
      ->capture_default_str()
      ->group(group);
  app.add_option("--schedule", options.schedule,
                 "Schedule of the learning rate: cosine, a decay after a linear warm-up; or "
                 "onecycle, up and down")
      ->capture_default_str()
      ->one_of({"cosine", "onecycle"})
      ->group(group);
}

TrainDefaults defaults_for(const ImageTrainOptions& options) {
  TrainDefaults defaults{.steps = 0,  // `complete` computes the steps from the epochs
                         .global_batch = 128,
                         .micro_batch = 64,
                         .lr = 1e-3f,
                         .min_lr = 0,
                         .warmup = 100,
                         .beta2 = 0.999f,
                         .eval_every = options.steps_per_epoch,
                         .bucket_bytes = int64_t{1} << 19,
                         .weight_decay = 0};
  if (options.optimizer == "adamw") defaults.weight_decay = 0.05f;
  if (options.optimizer == "sgd") {
    // VGG has no normalisation that would keep training stable at larger learning rates.
    defaults.lr = options.model.starts_with("vgg") ? 0.01f : 0.1f;
    defaults.weight_decay = 5e-4f;
  }
  return defaults;
}

// Returns the help's texts for the defaults that defaults_for chooses.
DefaultTexts default_texts() {
  return {.steps = "those of --epochs",
          .global_batch = "128",
          .micro_batch = "64",
          .lr = "0.001; with sgd 0.1, but 0.01 for vgg",
          .min_lr = "0",
          .warmup = "100; at most a tenth of all steps",
          .beta2 = "0.999",
          .eval_every = "the steps of an epoch",
          .bucket_bytes = "512KiB"};
}

}  // namespace

ImageCommandLine parse_image_command_line(int argc, const char* const* argv) {
  ImageCommandLine line;
  Given given;
  Flags app(
      "Trains a classifier of images with ZeRO on any number of ranks: "
      "mpirun -n N train_resnet --data FOLDER",
      "train_resnet");
  app.add_config("Read flags from a file with lines such as epochs = 30");
  add_data_and_model(app, line, given);
  add_image_training(app, line);
  add_run_options(
      app, line.given, line.options,
      {.samples = "Images",
       .optimizer = "sgd",
       .decay = "Weight decay of filters and matrices (default: sgd 0.0005, adamw 0.05, others 0)",
       .save = "Write the weights at the end to FILE.safetensors, which predict reads",
       .init = "Begin with the weights in FILE.safetensors",
       .verify = "Read every image before the first step, and let ranks compare all images and all "
                 "bytes of the file of --init, instead of samples at 64 places",
       .clip = 0,
       .defaults = default_texts()});
  line.help = app.parse(argc, argv);
  line.settings = app.settings();
  if (!line.help.empty()) return line;
  ImageTrainOptions& options = line.options;
  options.augment = given.augment == "on";
  at_least("--workers", given.workers, 1);
  at_most("--workers", given.workers, 256);
  options.workers = static_cast<int>(given.workers);
  at_least("--image-size", options.image_size, 0);
  at_most("--image-size", options.image_size, most_image_side);
  within("--label-smoothing", options.label_smoothing, 0, 1);
  fill_before_data(line.given, options);
  check_paths(paths_of(options, app.config_file()));
  if (line.epochs && line.given.steps) {
    fail_input("--epochs and --steps are both given, expected one of them");
  }
  if (line.epochs && !(*line.epochs > 0 && *line.epochs <= 1e6)) {
    fail_input("--epochs is {}, expected a number above 0 and at most 1000000", *line.epochs);
  }
  warn_of_repeated_inputs(app);
  return line;
}

void complete(ImageCommandLine& line, int64_t training_images, const std::string& format) {
  ImageTrainOptions& options = line.options;
  TrainDefaults defaults = defaults_for(options);
  if (options.eval_only) {
    line.given.batch = evaluation_batch(line.given.batch, defaults, training_images);
  }
  const Batch batch = batch_sizes(line.given.batch, defaults);
  if (batch.global > training_images) {
    fail_input("a step has {} images, but there are only {} to train on; give a smaller --batch",
               batch.global, training_images);
  }
  options.steps_per_epoch = training_images / batch.global;
  const double epochs = line.epochs.value_or(format == "drawn" ? 6 : 15);
  const auto per_epoch = static_cast<double>(options.steps_per_epoch);
  defaults.steps = std::max<int64_t>(1, std::llround(epochs * per_epoch));
  defaults.eval_every = options.steps_per_epoch;
  fill_run(line.given, defaults, options);
  options.epochs = static_cast<double>(options.steps) / per_epoch;
  options.nesterov = options.optimizer == "sgd" && options.beta1 > 0;
  if (options.schedule == "onecycle" && (line.given.warmup || line.given.min_lr)) {
    fail_input("--schedule onecycle has a rise and an end of its own, expected no --warmup and no "
               "--min-lr");
  }
}

namespace {

// Refuses batch norms over a single value, because the variance of one value is 0.
void check_norms(const ImageTrainOptions& options, int64_t side, int64_t ranks) {
  const models::ImageConfig config = models::image_config(options.model, {.side = side});
  const auto* const resnet = std::get_if<models::ResNetConfig>(&config);
  const int64_t images = options.batch.micro * (options.sync_bn ? ranks : 1);
  if (resnet == nullptr || images * resnet->last_side() > 1) return;
  fail_input(
      "{}: the last batch norms of a micro-batch of one image of {} x {} have only one value per "
      "channel; give a larger --micro-batch or --image-size",
      options.model, side, side);
}

}  // namespace

void check_ranks(const ImageTrainOptions& options, int64_t side, int64_t ranks) {
  if (options.eval_only) return;  // an evaluation uses the running statistics
  check_norms(options, side, ranks);
  const auto [global, micro] = options.batch;
  if (!options.sync_bn || global == micro * ranks) return;
  const std::string way = global % ranks == 0
                              ? fmt::format("give --micro-batch {}", global / ranks)
                              : fmt::format("give a --batch that is a multiple of {}", ranks);
  fail_input("--sync-bn needs one micro-batch on each rank, but there are {} on {}: {}",
             counted(options.batch.micro_batches(), "micro-batch", "micro-batches"),
             counted(ranks, "rank"), way);
}

train::TrainingRun image_training_run(const ImageTrainOptions& options) {
  train::TrainingRun run = training_run(options);
  if (options.schedule == "onecycle") run.zero.schedule = optim::one_cycle(options.steps);
  run.zero.sync_batch_norm = options.sync_bn;
  return run;
}

}  // namespace tessera::apps
