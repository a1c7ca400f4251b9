#include "train/checkpoint/export_weights.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "core/error.h"
#include "models/gpt/gpt_metadata.h"
#include "models/gpt/gpt_weights.h"
#include "models/image/image_classifier.h"
#include "models/image/image_model.h"
#include "models/recommender/recommender_file.h"
#include "nn/weights_file.h"

namespace tessera::train {
namespace {

constexpr int64_t piece_elements = int64_t{1} << 18;

/// A tensor of a weights file.
struct Weight {
  /// StateTensor::path(). Empty for num_batches_tracked, which is not a tensor of the checkpoint.
  std::string path;
  Shape shape;
};
using Weights = std::map<std::string, Weight>;  // key: the tensor's name in the file

std::string manifest_path(const CheckpointReader& checkpoint) {
  return (std::filesystem::path(checkpoint.folder()) / manifest_name).string();
}

// Returns the list of the tensors to export, and adds these tensors to `weights`. In the list, the
// parameters come first, then the running statistics, each in the order of the manifest.
std::vector<nn::SafetensorsSpec> list_weights(const CheckpointReader& checkpoint,
                                              Weights& weights) {
  std::vector<nn::SafetensorsSpec> parameters;
  std::vector<nn::SafetensorsSpec> statistics;
  const auto add = [&](std::vector<nn::SafetensorsSpec>& list, const std::string& name,
                       const optim::StateTensor& tensor) {
    if (!is_float(tensor.dtype)) {
      fail_input("{}: {} is {}, and only floats can be exported", manifest_path(checkpoint),
                 nn::printable(tensor.path()), dtype_name(tensor.dtype));
    }
    if (!weights.emplace(name, Weight{tensor.path(), tensor.shape}).second) {
      fail_input("{}: two of its tensors would be exported as {}", manifest_path(checkpoint),
                 nn::printable(name));
    }
    list.push_back({name, DType::f32, tensor.shape});
  };
  for (const optim::StateTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.kind == optim::value_kind) {
      add(parameters, tensor.name, tensor);
    } else if (tensor.kind == optim::running_mean_kind) {
      add(statistics, nn::statistics_name(tensor.name, nn::running_mean_name), tensor);
    } else if (tensor.kind == optim::running_variance_kind) {
      const std::string batches = nn::statistics_name(tensor.name, nn::batches_name);
      add(statistics, nn::statistics_name(tensor.name, nn::running_variance_name), tensor);
      weights.emplace(batches, Weight{});
      statistics.push_back({batches, DType::i64, {}});
    }
  }
  parameters.insert(parameters.end(), statistics.begin(), statistics.end());
  return parameters;
}

std::unique_ptr<nn::Module> described_model(const CheckpointReader& checkpoint) {
  const auto& metadata = checkpoint.manifest().weights;
  if (models::describes_gpt(metadata)) {
    const models::GptConfig config =
        models::parse_gpt_metadata(manifest_path(checkpoint), metadata);
    // Every layer has at least one tensor. This check prevents an invalid manifest from making the
    // program build a huge model.
    if (config.layers > std::ssize(checkpoint.manifest().tensors)) {
      fail_input("{}: it describes a GPT of {} layers, but has only {} tensors",
                 manifest_path(checkpoint), config.layers, checkpoint.manifest().tensors.size());
    }
    return std::make_unique<models::Gpt>(config);
  }
  if (models::describes_image_model(metadata)) {
    const models::ImageModel image = models::parse_image_model(manifest_path(checkpoint), metadata);
    return models::image_classifier(image.name, image.sizes);
  }
  if (models::describes_recommender(metadata)) {
    return models::recommender(
        models::parse_recommender(manifest_path(checkpoint), metadata).config);
  }
  return nullptr;
}

// Lists the model's tensors in the model's order. Throws unless the checkpoint has exactly these
// tensors.
std::vector<nn::SafetensorsSpec> model_weights(const CheckpointReader& checkpoint,
                                               const nn::Module& model, const Weights& weights) {
  std::vector<nn::SafetensorsSpec> specs = nn::weights_specs(model);
  const std::string where = manifest_path(checkpoint) + ": the model that it describes";
  for (const nn::SafetensorsSpec& spec : specs) {
    const auto found = weights.find(spec.name);
    if (found == weights.end()) {
      fail_input("{} has {}, but the checkpoint does not", where, spec.name);
    }
    if (found->second.shape != spec.shape) {
      fail_input("{} has {} with the shape {}, but the checkpoint has the shape {}", where,
                 spec.name, spec.shape, found->second.shape);
    }
  }
  if (specs.size() != weights.size()) {
    fail_input("{} has {} tensors of weights, but the checkpoint has {}", where, specs.size(),
               weights.size());
  }
  return specs;
}

// Reads a tensor in pieces, and calls write(begin, piece) for each piece.
template <class Write>
void copy_pieces(const CheckpointReader& checkpoint, const Weight& weight, const Write& write) {
  const int64_t elements = weight.shape.elements();
  std::vector<float> values(static_cast<size_t>(std::min(piece_elements, elements)));
  for (int64_t begin = 0; begin < elements; begin += piece_elements) {
    const auto count = static_cast<size_t>(std::min(piece_elements, elements - begin));
    const std::span<float> piece = std::span(values).first(count);
    checkpoint.read(weight.path, begin, piece);
    write(begin, std::span<const float>(piece));
  }
}

void export_gpt(const CheckpointReader& checkpoint, const models::Gpt& gpt, const Weights& weights,
                const std::string& path) {
  // This call only checks the tensors. GptWriter determines their order in the file.
  model_weights(checkpoint, gpt, weights);
  models::check_gpt_destination(path, gpt.config());
  models::GptWriter writer(path, gpt);
  for (const nn::NamedParameter& named : gpt.named_parameters()) {
    copy_pieces(
        checkpoint, weights.at(named.name),
        [&](int64_t begin, std::span<const float> piece) { writer.write(named, piece, begin); });
  }
  writer.commit();
}

nn::SafetensorsMetadata file_metadata(const Manifest& manifest) {
  nn::SafetensorsMetadata metadata = manifest.weights;
  metadata.erase(imported_batches_key);
  metadata.emplace("format", "pt");
  return metadata;
}

// Parses a whole number that is not negative. Returns nullopt for any other text.
std::optional<int64_t> whole_number(const std::string& text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || last != end || value < 0) return std::nullopt;
  return value;
}

std::optional<int64_t> setting(const Manifest& manifest, const char* name) {
  const auto found = std::ranges::find(manifest.run, name, &dist::Setting::name);
  return found == manifest.run.end() ? std::nullopt : whole_number(found->value);
}

}  // namespace

int64_t batches_tracked(const Manifest& manifest) {
  const auto imported = manifest.weights.find(imported_batches_key);
  if (imported != manifest.weights.end()) return whole_number(imported->second).value_or(0);
  const int64_t global = setting(manifest, "global_batch").value_or(0);
  const int64_t micro = setting(manifest, "micro_batch").value_or(0);
  int64_t batches = 0;
  const bool known = micro > 0 && !__builtin_mul_overflow(manifest.step - manifest.skipped,
                                                          global / micro, &batches);
  return known ? batches : 0;
}

void export_weights(const CheckpointReader& checkpoint, const std::string& path) {
  Weights weights;
  std::vector<nn::SafetensorsSpec> specs = list_weights(checkpoint, weights);
  const std::unique_ptr<nn::Module> model = described_model(checkpoint);
  if (const auto* gpt = dynamic_cast<const models::Gpt*>(model.get())) {
    return export_gpt(checkpoint, *gpt, weights, path);
  }
  if (model) specs = model_weights(checkpoint, *model, weights);
  const int64_t batches = batches_tracked(checkpoint.manifest());
  nn::SafetensorsWriter file(path, specs, file_metadata(checkpoint.manifest()));
  for (const nn::SafetensorsSpec& spec : specs) {
    const Weight& weight = weights.at(spec.name);
    if (weight.path.empty()) {
      file.write<int64_t>(spec.name, 0, std::span(&batches, 1));
    } else {
      copy_pieces(checkpoint, weight, [&](int64_t begin, std::span<const float> piece) {
        file.write<float>(spec.name, begin, piece);
      });
    }
  }
  file.commit();
}

}  // namespace tessera::train
