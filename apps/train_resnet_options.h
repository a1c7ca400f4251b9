// The command line of train_resnet. What was not given depends on the data, too, so it is completed
// when that is open.
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

struct ImageTrainOptions : RunOptions {  // without data: images that the program draws itself
  std::string model = "resnet20";
  int64_t image_size = 0;  // 0: the images' own; of folders 224
  double epochs = 0;       // as many as the steps are
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

/// Throws InputError, one line, for what cannot be done as asked.
ImageCommandLine parse_image_command_line(int argc, const char* const* argv);

/// Completes the options with the defaults for so many training images of a format
/// (image_data.h). Throws InputError.
void complete(ImageCommandLine& line, int64_t training_images, const std::string& format);

/// Throws InputError where so many ranks cannot do as asked, for images of `side` pixels.
void check_ranks(const ImageTrainOptions& options, int64_t side, int64_t ranks);

/// With schedule, and synchronized batch norms where asked for.
train::TrainingRun image_training_run(const ImageTrainOptions& options);

}  // namespace tessera::apps
