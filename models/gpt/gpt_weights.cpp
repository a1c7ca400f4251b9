#include "models/gpt/gpt_weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/text/input_file.h"
#include "core/text/output_file.h"
#include "models/gpt/gpt_config_file.h"
#include "nn/weights_file.h"

namespace tessera::models {
namespace {

constexpr std::string_view prefix = "transformer.";
constexpr std::string_view head_name = "lm_head.weight";
constexpr std::string_view table_name = "wte.weight";
// Every GPT-2 has these tensors, and they distinguish its weights from those of other models.
constexpr std::string_view telling_names[] = {table_name, "wpe.weight", "ln_f.weight"};

// Returns the part after "h.N." of the name of a transformer layer's tensor, where N is a number.
// Returns an empty string for any other name.
std::string_view name_in_layer(std::string_view name) {
  if (!name.starts_with("h.")) return {};
  const size_t end = name.find_first_not_of("0123456789", 2);
  if (end == 2 || end == std::string_view::npos || name[end] != '.') return {};
  return name.substr(end + 1);
}

// True if `name` is a transformer layer's causal mask or the mask's fill value. Old versions of
// Hugging Face's library transformers stored both.
bool is_mask_buffer(std::string_view name) {
  const std::string_view in_layer = name_in_layer(name);
  return in_layer == "attn.bias" || in_layer == "attn.masked_bias";
}

void check_same(const std::string& path, const char* what, auto in_file, auto in_model) {
  if (in_file != in_model)
    fail_input("{}: {} is {}, the model's is {}", path, what, in_file, in_model);
}

// Throws InputError if a config.json describes another model. Returns false if there is none, or if
// it has no model_type.
bool check_config(const std::string& path, const GptConfig& model) {
  const std::optional<GptConfig> file = find_gpt_config(path);
  if (!file) return false;
  check_same(path, "n_layer", file->layers, model.layers);
  check_same(path, "n_head", file->heads, model.heads);
  check_same(path, "n_embd", file->width, model.width);
  check_same(path, "n_positions", file->context, model.context);
  check_same(path, "vocab_size", file->vocab, model.vocab);
  check_same(path, "layer_norm_epsilon", file->epsilon, model.epsilon);
  return true;
}

// True if a config.json has the sizes and the epsilon of `model`.
bool describes(const std::string& path, const GptConfig& model) {
  try {
    return check_config(path, model);
  } catch (const InputError&) {
    return false;
  }
}

bool has_tensor(const nn::SafetensorsReader& file, std::string_view name) {
  return std::ranges::any_of(file.entries(), [&](const nn::SafetensorsEntry& entry) {
    return without_gpt_prefix(entry.name) == name;
  });
}

// True if a file has the weights of a GPT or a part of them. One of the telling tensors is enough,
// because weights may be divided among several files.
bool has_part_of_gpt(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  // transformers gives these names to weights that it saves by torch.save. Such a file counts
  // without a look at its tensors.
  if (name.starts_with("pytorch_model") && name.ends_with(".bin")) return true;
  if (path.extension() != ".safetensors") return false;
  try {
    const nn::SafetensorsReader file(path.string());
    return std::ranges::any_of(telling_names,
                               [&](std::string_view tensor) { return has_tensor(file, tensor); });
  } catch (const InputError&) {
    return false;
  }
}

// Returns the name of another file of GPT weights in the folder of `path`; "" if there is none.
// Throws if the folder cannot be read, because it may then have such a file.
std::string other_weights_beside(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path parent = fs::path(path).parent_path();
  const fs::path folder = parent.empty() ? "." : parent;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path name = entry->path().filename();
    if (name != fs::path(path).filename() && has_part_of_gpt(entry->path())) return name.string();
  }
  if (error) fail_with_reason(error.value(), folder.string() + ": cannot be read");
  return "";
}

std::vector<nn::SafetensorsSpec> specs_of(const Gpt& model) {
  std::vector<nn::SafetensorsSpec> specs;
  for (const nn::NamedParameter& named : model.named_parameters()) {
    specs.push_back({std::string(prefix) + named.name, DType::f32, named.parameter.shape()});
  }
  return specs;
}

}  // namespace

std::string_view without_gpt_prefix(std::string_view name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

bool has_gpt_tensors(const nn::SafetensorsReader& file) {
  return std::ranges::all_of(telling_names,
                             [&](std::string_view tensor) { return has_tensor(file, tensor); });
}

bool has_names_of_gpt(const nn::SafetensorsReader& file) {
  return std::ranges::any_of(file.entries(), [](const nn::SafetensorsEntry& entry) {
    const std::string_view name = without_gpt_prefix(entry.name);
    return std::ranges::find(telling_names, name) != std::end(telling_names) ||
           !name_in_layer(name).empty();
  });
}

GptWeights::GptWeights(const std::string& path, const Gpt& model) : file_(path) {
  std::map<std::string_view, const nn::SafetensorsEntry*> by_name;
  std::optional<nn::SafetensorsEntry> head;
  for (const nn::SafetensorsEntry& entry : file_.entries()) {
    const std::string_view name = without_gpt_prefix(entry.name);
    if (name == head_name) {
      head = entry;
    } else if (!is_mask_buffer(name) && !by_name.emplace(name, &entry).second) {
      fail_input("{}: tensor {} occurs with and without the prefix {}", path,
                 nn::printable(name), prefix);
    }
  }
  check_config(config_path_beside(path), model.config());
  for (const nn::NamedParameter& named : model.named_parameters()) {
    const auto found = by_name.find(named.name);
    if (found == by_name.end()) fail_input("{}: it has no tensor \"{}\"", path, named.name);
    nn::check_weights(path, *found->second, named.parameter.shape());
    if (head && named.name == table_name) check_head(*head, *found->second);
    matches_.emplace(named.name, Match{named, *found->second});
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    fail_input("{}: tensor {} is unknown: the model has no such parameter", path,
               nn::printable(by_name.begin()->first));
  }
}

// Refuses an output head that differs from the token table. Ignoring such a head would give wrong
// results.
void GptWeights::check_head(const nn::SafetensorsEntry& head,
                            const nn::SafetensorsEntry& table) const {
  nn::check_weights(file_.path(), head, Shape(std::span<const int64_t>(table.shape)));
  if (!nn::same_weights(file_, head, table)) {
    fail_input("{}: {} differs from {}; only models with a tied head are supported", file_.path(),
               head.name, table.name);
  }
}

void GptWeights::load() const {
  for (const auto& [name, match] : matches_) nn::load_parameter(match.named, source());
}

nn::ParameterSource GptWeights::source() const {
  return [this](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
    read(named, begin, out);
  };
}

void GptWeights::read(const nn::NamedParameter& named, int64_t begin, std::span<float> out) const {
  const auto found = matches_.find(named.name);
  TESSERA_CHECK(found != matches_.end(), "weights: the model has no parameter '{}'", named.name);
  nn::read_weights(file_, found->second.entry, named, begin, out);
}

GptWriter::GptWriter(const std::string& path, const Gpt& model)
    : config_path_(config_path_beside(path)),
      config_(model.config()),
      file_(path, specs_of(model)) {}

void GptWriter::write(const nn::NamedParameter& named, std::span<const float> values,
                      int64_t begin) {
  file_.write(std::string(prefix) + named.name, begin, values);
}

void GptWriter::commit() {
  file_.check_complete();
  std::optional<std::string> text = gpt_config_text(config_);
  // The run may have read this config.json, and other programs may need members that Tessera does
  // not write.
  if (describes(config_path_, config_)) text = f32_config_text(config_path_);
  if (!text) {
    file_.commit();
    return;
  }
  // A full disk makes a flush fail. So both files are flushed before the first rename: sync()
  // flushes the weights, then config.commit() flushes and renames config.json. The weights are
  // renamed last. So if the weights exist, config.json exists too, even if the process is killed
  // between the two renames.
  OutputFile config(config_path_);
  config.write(*text);
  file_.sync();
  config.commit();
  file_.commit();
}

void check_gpt_config_beside(const std::string& path, const Gpt& model) {
  check_config(config_path_beside(path), model.config());
}

void check_gpt_destination(const std::string& path, const GptConfig& config) {
  const std::string config_path = config_path_beside(path);
  // Compared as paths, so that out//config.json is out/config.json.
  if (std::filesystem::path(path) == config_path) {
    fail_input("{}: a weights file cannot be called config.json", path);
  }
  check_writable(path);
  check_writable(config_path);
  const auto is_gpt = [&] {
    try {
      return is_gpt_config(config_path);
    } catch (const InputError&) {
      return false;
    }
  };
  std::error_code error;
  if (std::filesystem::exists(config_path, error) && !is_gpt()) {
    fail_input("{}: already exists and does not describe a GPT-2; write the weights to another "
               "folder",
               config_path);
  }
  try {
    check_config(config_path, config);
  } catch (const InputError& different) {
    const std::string other = other_weights_beside(path);
    if (other.empty()) return;
    fail_input("{}: {} would be left without its sizes, because the new ones differ ({}); write "
               "the weights to another folder",
               config_path, other, different.what());
  }
}

}  // namespace tessera::models
