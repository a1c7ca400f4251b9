// The weights of a classifier of images: a safetensors file with torchvision's names and layout,
// running statistics included, and in its metadata what predict needs to know: model, sizes,
// normalisation and classes (docs/formats.md).
//
//   ImageWeights weights("model.safetensors", model);       // checks every tensor
//   optimizer.set_parameters(weights.source());
//   weights.load_statistics(model);
//
//   ImageWriter writer("out.safetensors", model, description);   // on one rank
//   ... writer.write(named, values) for every parameter, in any order ...
//   writer.commit(model, batches);
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/images/augment.h"
#include "models/image/image_sizes.h"
#include "nn/module.h"
#include "nn/safetensors.h"
#include "optim/zero/partition.h"

namespace tessera::apps {

/// What a file says about its model.
struct ImageModel {
  std::string name;  // "resnet20"
  models::ImageSizes sizes;
  data::ChannelStatistics norm;
  std::vector<std::string> class_names;
};

/// A file of weights that fits a model.
class ImageWeights {
 public:
  /// Checks that the file has every parameter and running statistic, in its shape and as F32, BF16
  /// or F16, and nothing else. Throws InputError.
  ImageWeights(const std::string& path, const nn::Module& model);

  /// For ZeroOptimizer::set_parameters; throws InputError as read_weights does.
  optim::ParameterSource source() const;
  /// Overwrites the model's running statistics, which have memory.
  void load_statistics(const nn::Module& model) const;
  /// Both, for inference; what has no memory gets it.
  void load(nn::Module& model) const;

 private:
  void expect(const std::string& name, const Shape& shape);

  nn::SafetensorsReader file_;
  std::map<std::string, nn::SafetensorsEntry> entries_;
};

/// The description in a file that train_resnet wrote. Throws InputError where there is none.
ImageModel read_image_model(const std::string& path);

/// Writes a model's weights as F32, as a whole or not at all.
class ImageWriter {
 public:
  /// Of the model only names and shapes are used. Throws InputError where nothing can be written.
  ImageWriter(const std::string& path, const nn::Module& model, const ImageModel& description);

  /// A whole parameter.
  void write(const nn::NamedParameter& named, std::span<const float> values);
  /// Writes the running statistics, which are of so many batches, and makes the file appear.
  void commit(const nn::Module& model, int64_t batches);

 private:
  nn::SafetensorsWriter file_;
};

}  // namespace tessera::apps
