// Describes an image classifier in the metadata of its file of weights: name, sizes, how images are
// prepared, and classes (docs/formats.md). `predict` builds the model from this description. The
// weights themselves have torchvision's names and layout (nn/weights_file.h).
//
//   nn::WeightsWriter writer("out.safetensors", *model, models::image_metadata(description));
//   const models::ImageModel description = models::read_image_model("out.safetensors");
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/image/image_sizes.h"
#include "nn/safetensors.h"

namespace tessera::models {

struct ImageModel {
  std::string name;  // "resnet20"
  ImageSizes sizes;
  /// The normalisation of each channel: the input is (value / 255 - mean) / std.
  struct Norm {
    std::vector<float> mean;
    std::vector<float> std;
  };
  Norm norm;
  /// True if the training images came from a folder: such images have any size and are resized for
  /// the model. False if all images had the model's size. nullopt if the file of weights was
  /// written before this field existed.
  std::optional<bool> resizes = {};
  std::vector<std::string> class_names;
};

/// Returns the metadata that describe the model.
nn::SafetensorsMetadata image_metadata(const ImageModel& model);

/// True if the metadata describe an image model.
bool describes_image_model(const nn::SafetensorsMetadata& metadata);
/// Returns the model that the metadata describe. Throws InputError if the description is absent or
/// cannot be used. The error's message begins with `where`.
ImageModel parse_image_model(const std::string& where, const nn::SafetensorsMetadata& metadata);
/// Reads the description in a file that train_resnet wrote. Throws InputError if the file has none.
ImageModel read_image_model(const std::string& path);

}  // namespace tessera::models
