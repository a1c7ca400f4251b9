// Reads a weights file as tensors of a checkpoint.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/text/input_file.h"
#include "core/text/number_text.h"
#include "models/gpt/gpt_config_file.h"
#include "models/gpt/gpt_metadata.h"
#include "models/gpt/gpt_sizes.h"
#include "models/gpt/gpt_weights.h"
#include "models/image/image_classifier.h"
#include "models/image/image_model.h"
#include "models/recommender/recommender_file.h"
#include "nn/weights_file.h"
#include "train/checkpoint/export_weights.h"
#include "train/checkpoint/imported_tensor.h"

namespace tessera::train {
namespace {

constexpr int64_t most_elements = int64_t{1} << 48;  // the limit that manifests set for a tensor

ImportedTensor value_of(const std::string& name, const Shape& shape) {
  return {.of = {name, optim::value_kind, DType::f32, shape}};
}

// Returns the settings of train_gpt that follow from the config of an imported GPT. A run must have
// the same settings to resume from the import. The number of heads and the norms' epsilon must be
// among the settings, because the tensors' shapes do not show them. But the default epsilon is left
// out, because train_gpt leaves it out, too.
dist::Settings gpt_settings(const models::GptConfig& config) {
  const auto text = [](auto value) { return fmt::format("{}", value); };
  dist::Settings settings{{"model.layers", text(config.layers)},
                          {"model.heads", text(config.heads)},
                          {"model.width", text(config.width)},
                          {"model.context", text(config.context)},
                          {"model.vocab", text(config.vocab)}};
  if (config.epsilon != models::GptConfig().epsilon) {
    settings.push_back({"model.epsilon", text(config.epsilon)});
  }
  return settings;
}

// True if the file's tensors must be those of a GPT: it has all the tensors by which a GPT is
// recognised, or it has one of a GPT's names and is beside the config.json of a GPT. In the second
// case tensors may be missing. add_gpt then refuses the file, because no run could resume from its
// import.
bool is_gpt(const nn::SafetensorsReader& file) {
  if (models::has_gpt_tensors(file)) return true;
  if (!models::has_names_of_gpt(file)) return false;
  try {
    return models::is_gpt_config(models::config_path_beside(file.path()));
  } catch (const InputError&) {
    return false;  // A config.json that cannot be read as JSON belongs to another program.
  }
}

void add_gpt(ImportedWeights& weights) {
  if (!has_name(models::config_path_beside(weights.path))) {
    fail_input(
        "{}: it has the tensors of a GPT-2, but {} is missing, which gives the number of attention "
        "heads",
        weights.path, models::config_path_beside(weights.path));
  }
  const auto model = std::make_shared<models::Gpt>(models::read_gpt_config_of(weights.path));
  const auto file = std::make_shared<models::GptWeights>(weights.path, *model);
  weights.is_gpt = true;
  weights.metadata = models::gpt_metadata(model->config());
  weights.run = gpt_settings(model->config());
  for (const nn::NamedParameter& named : model->named_parameters()) {
    ImportedTensor tensor = value_of(named.name, named.parameter.shape());
    tensor.read = [model, file, named](int64_t begin, std::span<float> out) {
      file->read(named, begin, out);
    };
    weights.values.push_back(std::move(tensor));
  }
}

// For a file without the tensors of a GPT. If the metadata describe a model, sets weights.run, and
// throws InputError unless the file's tensors fit that model. Returns the names of tensors that are
// not weights: a recommender's ids and histories.
std::set<std::string> check_description(ImportedWeights& weights,
                                        const nn::SafetensorsReader& reader) {
  const nn::SafetensorsMetadata& metadata = reader.metadata();
  if (models::describes_gpt(metadata)) {
    // The checkpoint would have these metadata, and an export of it would look for a GPT's sizes.
    fail_input(
        "{}: its metadata describe a GPT (model_type is gpt2), but it lacks at least one of "
        "wte.weight, wpe.weight and ln_f.weight, which every GPT has",
        weights.path);
  }
  if (models::describes_image_model(metadata)) {
    const models::ImageModel image = models::parse_image_model(weights.path, metadata);
    nn::WeightsFile(weights.path, *models::image_classifier(image.name, image.sizes));
    weights.run = {{"model.name", image.name}};
  } else if (models::describes_recommender(metadata)) {
    const models::RecommenderFile file = models::parse_recommender(weights.path, metadata);
    const std::vector<std::string> others = models::recommender_tensor_names();
    nn::WeightsFile(weights.path, *models::recommender(file.config), others);
    weights.run = {{"model.name", file.config.name}};
    // Without the ids, a run with different users or items could resume, because the tensors'
    // shapes do not show to which users and items the rows belong.
    if (const auto ids = models::read_digest_of_ids(reader, file.config)) {
      weights.run.push_back({"ids", *ids});
    }
    return {others.begin(), others.end()};
  }
  return {};
}

// Throws InputError unless all values are finite and, for a variance, not negative.
void check_statistics(const std::string& where, std::span<const float> values, bool variance) {
  for (const float value : values) {
    if (!std::isfinite(value) || (variance && value < 0)) {
      fail_input("{} has the value {}, expected a finite number{}", where, without_nan_sign(value),
                 variance ? " of at least 0" : "");
    }
  }
}

int64_t read_batches(const nn::SafetensorsReader& file, const nn::SafetensorsEntry& entry) {
  int64_t batches = 0;
  if (entry.elements() != 1) {
    fail_input("{}: tensor {}: shape is [{}], expected one number", file.path(),
               nn::printable(entry.name), fmt::join(entry.shape, ", "));
  }
  file.read<int64_t>(entry, 0, std::span(&batches, 1));
  if (batches < 0) {
    fail_input("{}: tensor {} is {}, expected at least 0", file.path(), nn::printable(entry.name),
               batches);
  }
  return batches;
}

// The inverse of nn::statistics_name: returns the batch norm's name "bn1" if `name` is
// "bn1.running_mean" and `tensor` is "running_mean". Returns nullopt if `name` does not name such a
// tensor of a batch norm.
std::optional<std::string> norm_of(const std::string& name, const std::string& tensor) {
  if (name == tensor) return "";
  if (!name.ends_with("." + tensor)) return std::nullopt;
  return name.substr(0, name.size() - tensor.size() - 1);
}

/// Sorts the tensors of a file into parameters and statistics.
class Sorter {
 public:
  Sorter(std::shared_ptr<const nn::SafetensorsReader> file, ImportedWeights& weights)
      : file_(std::move(file)), weights_(weights) {}

  void add(const nn::SafetensorsEntry& entry) {
    const std::string& name = entry.name;
    if (norm_of(name, nn::batches_name)) {
      // Each norm may have a different number of batches. Keeps the largest, because a checkpoint
      // records one number for all norms.
      batches_ = std::max(batches_, read_batches(*file_, entry));
    } else if (const auto of_mean = norm_of(name, nn::running_mean_name)) {
      add_statistics(entry, *of_mean, optim::running_mean_kind);
    } else if (const auto of_variance = norm_of(name, nn::running_variance_name)) {
      add_statistics(entry, *of_variance, optim::running_variance_kind);
    } else {
      ImportedTensor tensor = value_of(name, shape_of(entry));
      tensor.read = [file = file_, entry](int64_t begin, std::span<float> out) {
        file->read_as_f32(entry, begin, out);
      };
      weights_.values.push_back(std::move(tensor));
    }
  }

  void finish() const {
    for (const ImportedTensor& one : weights_.statistics) {
      const bool mean = one.of.kind == optim::running_mean_kind;
      const char* const other = mean ? optim::running_variance_kind : optim::running_mean_kind;
      const bool paired = std::ranges::any_of(weights_.statistics, [&](const ImportedTensor& two) {
        return two.of.name == one.of.name && two.of.kind == other && two.of.shape == one.of.shape;
      });
      if (!paired) {
        fail_input("{}: {} has a {}, but no {} of the same shape", file_->path(),
                   nn::printable(one.of.name), one.of.kind, other);
      }
    }
    if (!weights_.statistics.empty()) {
      weights_.metadata[imported_batches_key] = std::to_string(batches_);
    }
  }

 private:
  Shape shape_of(const nn::SafetensorsEntry& entry) const {
    int64_t elements = 1;  // an extent of 0 counts as 1, so that the other extents are checked, too
    bool fits = entry.shape.size() <= Shape::max_rank;
    for (const int64_t extent : entry.shape) {
      fits = fits && extent <= most_elements / elements;
      elements *= fits ? std::max(extent, int64_t{1}) : 1;
    }
    if (!fits) {
      fail_input("{}: tensor {}: shape is [{}], expected at most {} dimensions and 2^48 elements",
                 file_->path(), nn::printable(entry.name), fmt::join(entry.shape, ", "),
                 Shape::max_rank);
    }
    const Shape shape{std::span<const int64_t>(entry.shape)};
    nn::check_weights(file_->path(), entry, shape);
    return shape;
  }

  void add_statistics(const nn::SafetensorsEntry& entry, const std::string& norm,
                      const char* kind) {
    ImportedTensor tensor{.of = {norm, kind, DType::f32, shape_of(entry)}};
    const bool variance = kind == optim::running_variance_kind;
    tensor.read = [file = file_, entry, variance](int64_t begin, std::span<float> out) {
      file->read_as_f32(entry, begin, out);
      check_statistics(file->path() + ": tensor " + nn::printable(entry.name), out, variance);
    };
    weights_.statistics.push_back(std::move(tensor));
  }

  std::shared_ptr<const nn::SafetensorsReader> file_;
  ImportedWeights& weights_;
  int64_t batches_ = 0;
};

}  // namespace

ImportedWeights open_imported_weights(const std::string& path) {
  ImportedWeights weights{.path = models::gpt_weights_path(path)};
  const auto file = std::make_shared<const nn::SafetensorsReader>(weights.path);
  if (is_gpt(*file)) {
    add_gpt(weights);
  } else {
    const std::set<std::string> others = check_description(weights, *file);
    weights.metadata = file->metadata();
    Sorter sorter(file, weights);
    for (const nn::SafetensorsEntry& entry : file->entries()) {
      if (!others.contains(entry.name)) sorter.add(entry);
    }
    sorter.finish();
  }
  if (weights.values.empty()) fail_input("{}: it has no weights", weights.path);
  return weights;
}

}  // namespace tessera::train
