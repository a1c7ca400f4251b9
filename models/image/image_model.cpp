#include "models/image/image_model.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "core/text/json_read.h"
#include "models/image/image_classifier.h"

namespace tessera::models {
namespace {

constexpr const char* description_key = "tessera_image_model";

void check_norm(const ImageModel::Norm& norm) {
  for (const float mean : norm.mean) {
    if (!std::isfinite(mean)) fail_input("a mean of {}, expected a finite number", mean);
  }
  for (const float std : norm.std) {
    if (!(std::isfinite(std) && std > 0)) {
      fail_input("a standard deviation of {}, expected above 0 and finite", std);
    }
  }
}

ImageModel parse_description(const std::string& text) {
  const nlohmann::json json = parse_json("its JSON", text);
  ImageModel model{.name = json.at("model"),
                   .sizes = {.side = json_integer("image_size", json.at("image_size")),
                             .channels = json_integer("channels", json.at("channels"))},
                   .norm = {.mean = json.at("mean"), .std = json.at("std")},
                   .class_names = json.at("classes")};
  if (json.contains("resizes")) model.resizes = json.at("resizes").get<bool>();
  model.sizes.classes = std::ssize(model.class_names);
  model.sizes.validate();
  const auto channels = static_cast<size_t>(model.sizes.channels);
  if (model.norm.mean.size() != channels || model.norm.std.size() != channels) {
    fail_input("{} means and {} standard deviations, expected {} each", model.norm.mean.size(),
               model.norm.std.size(), channels);
  }
  check_norm(model.norm);
  image_config(model.name, model.sizes);  // throws if there is no such model
  return model;
}

}  // namespace

nn::SafetensorsMetadata image_metadata(const ImageModel& model) {
  nlohmann::ordered_json json = {
      {"model", model.name},
      {"image_size", model.sizes.side},
      {"channels", model.sizes.channels},
      {"mean", model.norm.mean},
      {"std", model.norm.std},
      {"classes", model.class_names},
  };
  if (model.resizes) json["resizes"] = *model.resizes;
  // Class names can be names of folders, which need not be valid UTF-8. Without `replace`, dump()
  // would throw for such names.
  using Handler = nlohmann::json::error_handler_t;
  return {{"format", "pt"}, {description_key, json.dump(-1, ' ', false, Handler::replace)}};
}

bool describes_image_model(const nn::SafetensorsMetadata& metadata) {
  return metadata.contains(description_key);
}

ImageModel parse_image_model(const std::string& where, const nn::SafetensorsMetadata& metadata) {
  const auto found = metadata.find(description_key);
  if (found == metadata.end()) {
    fail_input(
        "{}: its metadata do not describe a model, expected a file that train_resnet --save "
        "wrote",
        where);
  }
  try {
    return parse_description(found->second);
  } catch (const std::exception& error) {
    fail_input("{}: its description of the model cannot be used: {}", where, error.what());
  }
}

ImageModel read_image_model(const std::string& path) {
  return parse_image_model(path, nn::SafetensorsReader(path).metadata());
}

}  // namespace tessera::models
