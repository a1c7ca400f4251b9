// Reads the state of a PyTorch optimizer as tensors of a checkpoint.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/text/number_text.h"
#include "models/gpt/gpt_weights.h"
#include "nn/weights_file.h"
#include "optim/rules/update_rule.h"
#include "train/checkpoint/imported_tensor.h"

namespace tessera::train {
namespace {

constexpr const char* step_kind = "step";  // PyTorch's name for the count of updates
constexpr int64_t most_updates = int64_t{1} << 40;

/// The tensors of a file, found by parameter and kind, such as "wte.weight" and "exp_avg".
class StateFile {
 public:
  StateFile(const std::string& path, const ImportedWeights& weights) : file_(path) {
    std::set<std::string> parameters;
    for (const ImportedTensor& value : weights.values) parameters.insert(value.of.name);
    for (const nn::SafetensorsEntry& entry : file_.entries()) {
      const std::string_view whole =
          weights.is_gpt ? models::without_gpt_prefix(entry.name) : std::string_view(entry.name);
      const size_t dot = std::min(whole.rfind('.'), whole.size());
      const std::string name(whole.substr(0, dot));
      const std::string kind(whole.substr(std::min(dot + 1, whole.size())));
      if (!known_kinds().contains(kind)) {
        fail_input("{}: tensor {} is not a state of Adam, AdamW or SGD, expected NAME.{}", path,
                   nn::printable(entry.name), fmt::join(known_kinds(), ", NAME."));
      }
      if (!parameters.contains(name)) {
        fail_input("{}: tensor {} is of a parameter that {} does not have", path,
                   nn::printable(entry.name), weights.path);
      }
      if (!entries_.emplace(std::pair(name, kind), entry).second) {
        fail_input("{}: tensor {} is there with and without the prefix of a GPT", path,
                   nn::printable(entry.name));
      }
      kinds_.insert(kind);
    }
  }

  const nn::SafetensorsReader& file() const { return file_; }
  const std::string& path() const { return file_.path(); }

  /// Finds out whether the file has the state of Adam (or AdamW) or of SGD, and returns the kinds
  /// of this state, without "step". Throws InputError if the file has both or neither.
  std::vector<std::string> rule_kinds() const {
    const std::vector<std::string> adam = optim::AdamW().state_names();
    const std::vector<std::string> sgd = optim::Sgd{.momentum = 1}.state_names();
    const auto has_one_of = [&](const std::vector<std::string>& kinds) {
      return std::ranges::any_of(kinds, [&](const auto& kind) { return kinds_.contains(kind); });
    };
    if (has_one_of(adam) && has_one_of(sgd)) {
      fail_input("{}: it has {} of Adam and {} of SGD, expected the state of one optimizer", path(),
                 fmt::join(adam, ", "), fmt::join(sgd, ", "));
    }
    if (has_one_of(adam)) return adam;
    if (has_one_of(sgd)) return sgd;
    fail_input("{}: it has neither {} of Adam nor {} of SGD", path(), fmt::join(adam, ", "),
               fmt::join(sgd, ", "));
  }

  const nn::SafetensorsEntry* find(const std::string& name, const std::string& kind) const {
    const auto found = entries_.find(std::pair(name, kind));
    return found == entries_.end() ? nullptr : &found->second;
  }
  const nn::SafetensorsEntry& at(const std::string& name, const std::string& kind) const {
    const nn::SafetensorsEntry* const entry = find(name, kind);
    if (entry != nullptr) return *entry;
    fail_input("{}: it has no tensor {}, but the weights have this parameter", path(),
               nn::printable(name + "." + kind));
  }

 private:
  static const std::set<std::string>& known_kinds() {
    static const std::set<std::string> kinds = [] {
      std::set<std::string> all{step_kind};
      for (const auto& names :
           {optim::AdamW().state_names(), optim::Sgd{.momentum = 1}.state_names()}) {
        all.insert(names.begin(), names.end());
      }
      return all;
    }();
    return kinds;
  }

  nn::SafetensorsReader file_;
  std::map<std::pair<std::string, std::string>, nn::SafetensorsEntry> entries_;
  std::set<std::string> kinds_;
};

template <class T>
double read_number(const nn::SafetensorsReader& file, const nn::SafetensorsEntry& entry) {
  T value{};
  file.read<T>(entry, 0, std::span(&value, 1));
  return static_cast<double>(value);
}

// Reads a count of updates. PyTorch stores the count as a float, so it may be any number and must
// be checked.
int64_t read_updates(const nn::SafetensorsReader& file, const nn::SafetensorsEntry& entry) {
  if (entry.elements() != 1) {
    fail_input("{}: tensor {}: shape is [{}], expected one number", file.path(),
               nn::printable(entry.name), fmt::join(entry.shape, ", "));
  }
  const double number = entry.dtype == "I64"   ? read_number<int64_t>(file, entry)
                        : entry.dtype == "I32" ? read_number<int32_t>(file, entry)
                                               : read_number<float>(file, entry);
  if (number >= 0 && number <= static_cast<double>(most_updates) && number == std::floor(number)) {
    return static_cast<int64_t>(number);
  }
  fail_input("{}: tensor {} is {}, expected a whole number of updates from 0 to 2^40", file.path(),
             nn::printable(entry.name), number);
}

ImportedTensor moment(const std::shared_ptr<const StateFile>& state,
                      const optim::StateTensor& value, const std::string& kind) {
  const nn::SafetensorsEntry& entry = state->at(value.name, kind);
  nn::check_weights(state->path(), entry, value.shape);
  ImportedTensor tensor{.of = {value.name, kind, DType::f32, value.shape}};
  const bool is_square = kind == "exp_avg_sq";
  tensor.read = [state, entry, is_square](int64_t begin, std::span<float> out) {
    state->file().read_as_f32(entry, begin, out);
    for (size_t i = 0; i < out.size(); ++i) {
      if (std::isfinite(out[i]) && (!is_square || out[i] >= 0)) continue;
      fail_input("{}: tensor {}: element {} is {}", state->path(), nn::printable(entry.name),
                 begin + static_cast<int64_t>(i), without_nan_sign(out[i]));
    }
  };
  return tensor;
}

}  // namespace

ImportedMoments open_imported_moments(const std::string& path, const ImportedWeights& weights) {
  const auto state = std::make_shared<const StateFile>(path, weights);
  ImportedMoments moments{.kinds = state->rule_kinds()};
  const bool counts = moments.kinds == optim::AdamW().state_names();
  for (const ImportedTensor& value : weights.values) {
    for (const std::string& kind : moments.kinds) {
      moments.tensors.push_back(moment(state, value.of, kind));
    }
    const nn::SafetensorsEntry* const step =
        counts ? &state->at(value.of.name, step_kind) : state->find(value.of.name, step_kind);
    moments.updates.push_back(step == nullptr ? std::nullopt
                                              : std::optional(read_updates(state->file(), *step)));
  }
  return moments;
}

}  // namespace tessera::train
