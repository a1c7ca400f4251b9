// Parses and checks the command line of train_resnet. Some defaults depend on the data, so
// `complete` fills them in once the data is open.
//
//   ImageCommandLine line = parse_image_command_line(argc, argv);
//   ImageData data = open_image_data(...);
//   complete(line, data.train->size(), data.format);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/cli/run_options.h"

namespace tessera::apps {

// If `data` is empty, the program draws its images itself (data/images/drawn_images.h).
struct ImageTrainOptions : RunOptions {
  std::string model = "resnet20";
  // Side of the model's input in pixels. 0: the images' own size. The images of a folder may differ
  // in size. For them, 0 means the size for which the weights of the checkpoint or of --init were
  // trained, or 224 if there are no such weights.
  int64_t image_size = 0;
  double epochs = 0;  // length of the run in epochs
  float label_smoothing = 0;
  bool augment = true;
  std::string schedule = "cosine";
  bool sync_bn = false;
  int workers = 1;  // threads that prepare images

  int64_t steps_per_epoch = 1;
};

struct ImageCommandLine {
  ImageTrainOptions options;
  std::string help;
  dist::Settings settings;  // for ranks to compare
  GivenRun given;
  std::optional<double> epochs;
};

/// Throws InputError, with a one-line message, if a flag is invalid.
ImageCommandLine parse_image_command_line(int argc, const char* const* argv);

/// Fills in the defaults for this number of training images and this format of data (image_data.h),
/// and checks the options. Throws InputError if an option is invalid or does not fit the data.
void complete(ImageCommandLine& line, int64_t training_images, const std::string& format);

/// Throws InputError if no step can be taken with the options on this number of ranks, or with
/// images of `side` x `side` pixels. Accepts all options of an evaluation, which takes no step.
void check_ranks(const ImageTrainOptions& options, int64_t side, int64_t ranks);

/// Returns training_run(options) with the schedule that --schedule names and, if --sync-bn was
/// given, with synchronized batch norms.
train::TrainingRun image_training_run(const ImageTrainOptions& options);

}  // namespace tessera::apps
