#include "models/gpt/gpt_sizes.h"

#include <charconv>
#include <filesystem>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/text/input_file.h"
#include "models/gpt/gpt_config_file.h"
#include "models/gpt/gpt_weights.h"
#include "nn/safetensors.h"

namespace tessera::models {
namespace {

constexpr const char* index_name = "model.safetensors.index.json";

// Refuses divided weights. `what` is the subject of the sentence: "its weights are".
[[noreturn]] void fail_divided(const std::string& path, const char* what) {
  fail_input(
      "{}: {} divided among several files, expected one, model.safetensors: save the model again "
      "with save_pretrained(..., safe_serialization=True, max_shard_size=\"1000GB\")",
      path, what);
}

// True for a file such as model-00001-of-00002.safetensors with transformers' index beside it.
// False if the count is 1, because such a file has all the weights.
bool is_one_of_several(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  std::string_view rest = name;
  const auto skip = [&](std::string_view text) {
    if (!rest.starts_with(text)) return false;
    rest.remove_prefix(text.size());
    return true;
  };
  const auto read = [&](uint64_t& number) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return error == std::errc();
  };
  uint64_t number = 0;
  uint64_t count = 0;
  return skip("model-") && read(number) && skip("-of-") && read(count) && rest == ".safetensors" &&
         count > 1 && has_name(path.parent_path() / index_name);
}

// Returns the numbers of rows and columns of an embedding table.
std::pair<int64_t, int64_t> table_sizes(const nn::SafetensorsReader& file, const char* name) {
  for (const nn::SafetensorsEntry& entry : file.entries()) {
    if (without_gpt_prefix(entry.name) != name) continue;
    if (entry.shape.size() == 2) return {entry.shape[0], entry.shape[1]};
    fail_input("{}: tensor {}: shape is [{}], expected two sizes", file.path(),
               nn::printable(entry.name), fmt::join(entry.shape, ", "));
  }
  fail_input("{}: it has no tensor \"{}\", so it does not have the weights of a GPT", file.path(),
             name);
}

int64_t count_layers(const nn::SafetensorsReader& file) {
  constexpr std::string_view one_of_each = ".ln_1.weight";
  int64_t layers = 0;
  for (const nn::SafetensorsEntry& entry : file.entries()) {
    const std::string_view name = without_gpt_prefix(entry.name);
    if (name.starts_with("h.") && name.ends_with(one_of_each)) ++layers;
  }
  return layers;
}

void check_agreement(const std::string& weights_path, const GptFileSizes& tensors,
                     const std::string& config_path, const GptConfig& config) {
  std::vector<std::string> said;
  std::vector<std::string> held;
  const auto compare = [&](const char* name, int64_t in_config, int64_t in_tensors) {
    if (in_config == in_tensors) return;
    said.push_back(fmt::format("{} {}", name, in_config));
    held.push_back(std::to_string(in_tensors));
  };
  compare("n_layer", config.layers, tensors.layers);
  compare("n_embd", config.width, tensors.width);
  compare("n_positions", config.context, tensors.context);
  compare("vocab_size", config.vocab, tensors.vocab);
  if (said.empty()) return;
  fail_input("{}: says {}, but the tensors of {} have {}", config_path, fmt::join(said, ", "),
             weights_path, fmt::join(held, ", "));
}

}  // namespace

std::string gpt_weights_path(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path folder = path;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return path;
  const fs::path whole = folder / "model.safetensors";
  if (has_name(whole)) return whole.string();
  const fs::path pickle = folder / "pytorch_model.bin";
  const bool has_pickle = has_name(pickle);
  // transformers writes an index beside divided weights: of safetensors files, or of pickles.
  if (has_name(folder / index_name) ||
      (!has_pickle && has_name(folder / "pytorch_model.bin.index.json"))) {
    fail_divided(path, "its weights are");
  }
  // The reader of weights refuses pytorch_model.bin with an error that says how to convert the
  // file.
  return (has_pickle ? pickle : whole).string();
}

GptFileSizes read_gpt_file_sizes(const std::string& weights_path) {
  const nn::SafetensorsReader file(weights_path);
  // Errors about missing tensors or the number of layers would mislead for a part of the weights.
  if (is_one_of_several(weights_path)) {
    fail_divided(weights_path, "it has a part of weights that are");
  }
  GptFileSizes sizes;
  std::tie(sizes.vocab, sizes.width) = table_sizes(file, "wte.weight");
  sizes.context = table_sizes(file, "wpe.weight").first;
  sizes.layers = count_layers(file);
  const std::string config_path = config_path_beside(weights_path);
  const std::optional<GptConfig> config = find_gpt_config(config_path);
  if (!config) return sizes;
  check_agreement(weights_path, sizes, config_path, *config);
  sizes.heads = config->heads;
  sizes.epsilon = config->epsilon;
  return sizes;
}

std::string gpt_name(const GptConfig& config) {
  const auto key = [](const GptConfig& c) {
    return std::tuple(c.layers, c.heads, c.width, c.context, c.vocab, c.initializer_range);
  };
  for (const std::string& name : GptConfig::preset_names()) {
    if (key(GptConfig::preset(name)) == key(config)) return name;
  }
  return fmt::format("gpt-{}x{}", config.layers, config.width);
}

std::string preset_like(const GptFileSizes& sizes) {
  for (const std::string& name : GptConfig::preset_names()) {
    const GptConfig c = GptConfig::preset(name);
    const bool like = c.layers == sizes.layers && c.width == sizes.width &&
                      c.context == sizes.context && c.vocab == sizes.vocab;
    if (like && sizes.heads.value_or(c.heads) == c.heads) return name;
  }
  return "";
}

GptConfig read_gpt_config_of(const std::string& weights_path) {
  // The weights come first: if they are missing or not a GPT's, an error about config.json would
  // mislead.
  const GptFileSizes sizes = read_gpt_file_sizes(weights_path);
  const std::string config_path = config_path_beside(weights_path);
  const GptConfig config = read_gpt_config(config_path);
  // read_gpt_file_sizes has not compared the sizes of a config.json without model_type.
  check_agreement(weights_path, sizes, config_path, config);
  return config;
}

}  // namespace tessera::models
