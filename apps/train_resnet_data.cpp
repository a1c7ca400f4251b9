#include "apps/train_resnet_data.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "apps/cli/saved_weights.h"
#include "apps/console/flag_value.h"
#include "data/images/image_digest.h"
#include "dist/agreement.h"

namespace tessera::apps {

data::ImageData open_data(const ImageTrainOptions& options) {
  data::ImageData data =
      data::open_image_data({.path = options.data, .image_size = options.image_size});
  const data::ImageShape& shape = data.transform.shape;
  if (shape.height != shape.width) {
    fail_input("{}: its images have {} x {} pixels, expected square images", options.data,
               shape.height, shape.width);
  }
  data.transform.augments = options.augment;
  data.transform.seed = options.seed;
  data.transform.dtype = parameter_dtype(options.memory);
  return data;
}

void check_data(const dist::World& world, const ImageTrainOptions& options,
                const data::ImageData& data) {
  if (world.size == 1 && !options.verify_data) return;  // no other rank to compare with
  const uint64_t digest = data::digest_of_images(data, options.verify_data);
  dist::check_agreement(world, {{"--data", fmt::format("{}: {}, with digest {:016x}", data.format,
                                                       data.description(), digest)}});
}

void take_size_of_init(const ImageTrainOptions& options, data::ImageData& data) {
  std::error_code error;
  if (options.image_size != 0 || !data.transform.resizes) return;
  if (!std::filesystem::exists(options.init, error)) return;
  const nn::SafetensorsMetadata metadata = nn::SafetensorsReader(options.init).metadata();
  if (!models::describes_image_model(metadata)) return;
  const models::ImageModel model = models::parse_image_model(options.init, metadata);
  data.transform.shape.height = data.transform.shape.width = model.sizes.side;
}

models::ImageSizes sizes_of(const data::ImageData& data) {
  const data::ImageShape& shape = data.transform.shape;
  return {.side = shape.height, .channels = shape.channels, .classes = data.classes()};
}

models::ImageModel description_of(const ImageTrainOptions& options, const data::ImageData& data) {
  return {.name = options.model,
          .sizes = sizes_of(data),
          .norm = {.mean = data.transform.norm.mean, .std = data.transform.norm.std},
          .resizes = data.transform.resizes,
          .class_names = data.class_names};
}

void prepare_data(const ImageTrainOptions& options, const Resumed& resumed, data::ImageData& data) {
  const bool takes_size = options.image_size == 0 && data.transform.resizes;
  if (!options.eval_only && !(resumed.found() && takes_size)) return;
  const SavedWeights saved = saved_weights(options, resumed);
  if (!models::describes_image_model(saved.metadata)) return;
  const models::ImageModel model = models::parse_image_model(saved.path, saved.metadata);
  if (takes_size) data.transform.shape.height = data.transform.shape.width = model.sizes.side;
  if (!options.eval_only) return;
  // The saved class names were written as metadata, and writing metadata replaces invalid UTF-8. So
  // the data's class names are converted to metadata and back before they are compared.
  const models::ImageModel own = models::parse_image_model(
      options.data, models::image_metadata(description_of(options, data)));
  if (model.sizes.classes == own.sizes.classes) {
    const auto [theirs, ours] = std::ranges::mismatch(model.class_names, own.class_names);
    if (theirs != model.class_names.end()) {
      fail_input("--eval-only: class {} of {} is {}, but {} in the data",
                 theirs - model.class_names.begin() + 1, saved.path, quoted(*theirs),
                 quoted(*ours));
    }
  }
  if (model.sizes.channels == own.sizes.channels) {
    data.transform.norm.mean = model.norm.mean;
    data.transform.norm.std = model.norm.std;
  }
}

}  // namespace tessera::apps
