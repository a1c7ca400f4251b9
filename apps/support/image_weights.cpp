#include "apps/support/image_weights.h"

#include <cmath>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "apps/support/weights_file.h"

namespace tessera::apps {
namespace {

constexpr const char* description_key = "tessera_image_model";
constexpr const char* mean_suffix = ".running_mean";
constexpr const char* variance_suffix = ".running_var";
constexpr const char* batches_suffix = ".num_batches_tracked";

std::vector<nn::SafetensorsSpec> specs_of(const nn::Module& model) {
  std::vector<nn::SafetensorsSpec> specs;
  for (const nn::NamedParameter& named : model.named_parameters()) {
    specs.push_back({named.name, DType::f32, named.parameter.shape()});
  }
  for (const auto& [name, statistics] : model.named_statistics()) {
    specs.push_back({name + mean_suffix, DType::f32, statistics->mean.shape()});
    specs.push_back({name + variance_suffix, DType::f32, statistics->variance.shape()});
    specs.push_back({name + batches_suffix, DType::i64, {}});
  }
  return specs;
}

nn::SafetensorsMetadata metadata_of(const ImageModel& model) {
  const nlohmann::ordered_json json = {
      {"model", model.name},
      {"image_size", model.sizes.side},
      {"channels", model.sizes.channels},
      {"mean", model.norm.mean},
      {"std", model.norm.std},
      {"classes", model.class_names},
  };
  using Handler = nlohmann::json::error_handler_t;  // names of folders may be any bytes
  return {{"format", "pt"}, {description_key, json.dump(-1, ' ', false, Handler::replace)}};
}

int64_t integer(const nlohmann::json& value) {
  if (!value.is_number_integer()) fail_input("{}: expected a whole number", value.dump());
  return value;
}

void check_norm(const data::ChannelStatistics& norm) {
  for (const float mean : norm.mean) {
    if (!std::isfinite(mean)) fail_input("a mean of {}", mean);
  }
  for (const float std : norm.std) {
    if (!(std::isfinite(std) && std > 0)) fail_input("a deviation of {}, expected above 0", std);
  }
}

ImageModel parse_description(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  ImageModel model{.name = json.at("model"),
                   .sizes = {.side = integer(json.at("image_size")),
                             .channels = integer(json.at("channels"))},
                   .norm = {.mean = json.at("mean"), .std = json.at("std")},
                   .class_names = json.at("classes")};
  model.sizes.classes = std::ssize(model.class_names);
  model.sizes.validate();
  const auto channels = static_cast<size_t>(model.sizes.channels);
  if (model.norm.mean.size() != channels || model.norm.std.size() != channels) {
    fail_input("{} means and {} deviations, expected {} each", model.norm.mean.size(),
               model.norm.std.size(), channels);
  }
  check_norm(model.norm);
  return model;
}

}  // namespace

ImageWeights::ImageWeights(const std::string& path, const nn::Module& model) : file_(path) {
  for (const nn::SafetensorsEntry& entry : file_.entries()) entries_.emplace(entry.name, entry);
  std::set<std::string> known;
  for (const nn::SafetensorsSpec& spec : specs_of(model)) {
    known.insert(spec.name);
    if (spec.dtype == DType::f32) expect(spec.name, spec.shape);
  }
  for (const auto& [name, entry] : entries_) {
    if (known.contains(name)) continue;
    fail_input("{}: tensor {} is unknown, the model has none of this name", path,
               nn::printable(name));
  }
}

void ImageWeights::expect(const std::string& name, const Shape& shape) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_input("{}: it has no tensor \"{}\"", file_.path(), name);
  check_weights(file_.path(), found->second, shape);
}

optim::ParameterSource ImageWeights::source() const {
  return [this](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
    read_weights(file_, entries_.at(named.name), named, begin, out);
  };
}

void ImageWeights::load_statistics(const nn::Module& model) const {
  const auto read = [this](const Tensor& to, const std::string& name, float least) {
    Tensor values = Tensor::empty(to.shape(), DType::f32, Device{});
    file_.read_as_f32(entries_.at(name), 0, values.values<float>());
    for (const float value : values.values<float>()) {
      if (std::isfinite(value) && value >= least) continue;
      fail_input("{}: tensor {} has the value {}", file_.path(), name, value);
    }
    to.copy_from(values);
  };
  for (const auto& [name, statistics] : model.named_statistics()) {
    read(statistics->mean, name + mean_suffix, std::numeric_limits<float>::lowest());
    read(statistics->variance, name + variance_suffix, 0);
  }
}

void ImageWeights::load(nn::Module& model) const {
  for (const nn::NamedParameter& named : model.named_parameters()) load_weights(named, source());
  nn::materialize(model);  // the statistics
  load_statistics(model);
}

ImageModel read_image_model(const std::string& path) {
  const nn::SafetensorsReader file(path);
  const auto found = file.metadata().find(description_key);
  if (found == file.metadata().end()) {
    fail_input("{}: it does not say what model it is of, expected a file that train_resnet --save "
               "wrote", path);
  }
  try {
    return parse_description(found->second);
  } catch (const std::exception& error) {
    fail_input("{}: its description of the model cannot be used: {}", path, error.what());
  }
}

ImageWriter::ImageWriter(const std::string& path, const nn::Module& model,
                         const ImageModel& description)
    : file_(path, specs_of(model), metadata_of(description)) {}

void ImageWriter::write(const nn::NamedParameter& named, std::span<const float> values) {
  file_.write(named.name, 0, values);
}

void ImageWriter::commit(const nn::Module& model, int64_t batches) {
  for (const auto& [name, statistics] : model.named_statistics()) {
    file_.write(name + mean_suffix, statistics->mean.to_host());
    file_.write(name + variance_suffix, statistics->variance.to_host());
    file_.write<int64_t>(name + batches_suffix, 0, std::span(&batches, 1));
  }
  file_.commit();
}

}  // namespace tessera::apps
