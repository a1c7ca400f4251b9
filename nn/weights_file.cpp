#include "nn/weights_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/assign.h"
#include "core/autograd.h"
#include "core/ops.h"

namespace tessera::nn {
namespace {

/// The range of a 16-bit dtype.
struct Range {
  float largest;           // the largest finite value
  float becomes_infinity;  // the least value that rounds to infinity: halfway from `largest` to
                           // the next power of two
  const char* wider;       // precisions that hold larger values
};
constexpr Range f16_range{65504, 65520, "fp32 or bf16"};
constexpr Range bf16_range{0x1.FEp127f, 0x1.FFp127f, "fp32"};

// Refuses a parameter that save_weights cannot read in this process.
void check_in_memory(const NamedParameter& named) {
  TESSERA_CHECK(!named.parameter.leaf().look_up,
                "save_weights: '{}' is a row-sparse table of an optimizer; use train::save_weights",
                named.name);
  TESSERA_CHECK(named.parameter.tensor().allocated(),
                "save_weights: parameter '{}' has no values here; under ZeRO stage 3 use "
                "train::save_weights",
                named.name);
}

// Refuses a finite weight that would become infinity in the parameter's dtype.
void check_fits(const std::string& path, const NamedParameter& named, int64_t begin,
                std::span<const float> values) {
  const DType dtype = named.parameter.dtype();
  if (dtype != DType::f16 && dtype != DType::bf16) return;
  const Range& range = dtype == DType::f16 ? f16_range : bf16_range;
  for (size_t i = 0; i < values.size(); ++i) {
    const float size = std::abs(values[i]);
    if (size >= range.becomes_infinity && std::isfinite(size)) {
      fail_input("{}: tensor {}: element {} is {}, but {} holds at most {}; use {}", path,
                 named.name, begin + static_cast<int64_t>(i), values[i], dtype_name(dtype),
                 range.largest, range.wider);
    }
  }
}

}  // namespace

std::string statistics_name(const std::string& batch_norm, const std::string& tensor) {
  return batch_norm.empty() ? tensor : batch_norm + "." + tensor;
}

std::vector<SafetensorsSpec> weights_specs(const Module& model,
                                           const std::vector<NamedTensor>& others) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : others) specs.push_back({name, tensor.dtype(), tensor.shape()});
  for (const NamedParameter& named : model.named_parameters()) {
    specs.push_back({named.name, DType::f32, named.parameter.shape()});
  }
  for (const auto& [name, statistics] : model.named_statistics()) {
    specs.push_back(
        {statistics_name(name, running_mean_name), DType::f32, statistics->mean.shape()});
    specs.push_back(
        {statistics_name(name, running_variance_name), DType::f32, statistics->variance.shape()});
    specs.push_back({statistics_name(name, batches_name), DType::i64, {}});
  }
  return specs;
}

void check_weights(const std::string& path, const SafetensorsEntry& entry, const Shape& shape) {
  if (entry.dtype != "F32" && entry.dtype != "BF16" && entry.dtype != "F16") {
    fail_input("{}: tensor {}: dtype is {}, expected F32, BF16 or F16", path, printable(entry.name),
               entry.dtype);
  }
  if (!std::equal(entry.shape.begin(), entry.shape.end(), shape.begin(), shape.end())) {
    fail_input("{}: tensor {}: shape is [{}], expected [{}]", path, printable(entry.name),
               fmt::join(entry.shape, ", "), fmt::join(shape, ", "));
  }
}

bool same_weights(const SafetensorsReader& file, const SafetensorsEntry& a,
                  const SafetensorsEntry& b) {
  constexpr int64_t piece = int64_t{1} << 18;  // elements compared at a time
  const auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  const int64_t elements = a.elements();
  std::vector<float> left(static_cast<size_t>(std::min(piece, elements)));
  std::vector<float> right(left.size());
  for (int64_t begin = 0; begin < elements; begin += piece) {
    const auto count = static_cast<size_t>(std::min(piece, elements - begin));
    const std::span<float> x = std::span(left).first(count);
    const std::span<float> y = std::span(right).first(count);
    file.read_as_f32(a, begin, x);
    file.read_as_f32(b, begin, y);
    if (!std::equal(x.begin(), x.end(), y.begin(), same)) return false;
  }
  return true;
}

void read_weights(const SafetensorsReader& file, const SafetensorsEntry& entry,
                  const NamedParameter& named, int64_t begin, std::span<float> out) {
  file.read_as_f32(entry, begin, out);
  check_fits(file.path(), named, begin, out);
}

void load_parameter(const NamedParameter& named, const ParameterSource& source) {
  Tensor tensor = named.parameter.tensor();
  // Every optimizer sets gradient_buffer for its parameters. An optimizer with master weights would
  // not see the loaded values, and its next update would overwrite them with values that it
  // computes from the master weights. So the parameters of all optimizers are refused.
  TESSERA_CHECK(!named.parameter.leaf().gradient_buffer,
                "load_weights: parameter '{}' belongs to an optimizer; use its set_parameters, or "
                "train::load_weights",
                named.name);
  const bool is_new = !tensor.allocated();
  if (is_new) {
    named.parameter.leaf().name = named.name;
    tensor.attach(allocate(tensor.bytes(), Category::parameters, default_device()), 0);
  }
  try {
    assign(tensor, [&](int64_t begin, std::span<float> out) { source(named, begin, out); });
  } catch (...) {
    // Takes the memory away again. A parameter with memory would count as one that has values, and
    // materialize() would not draw initial values for it.
    if (is_new) tensor.attach(nullptr, 0);
    throw;
  }
}

WeightsFile::WeightsFile(const std::string& path, const Module& model,
                         const std::vector<std::string>& others)
    : file_(path) {
  for (const SafetensorsEntry& entry : file_.entries()) entries_.emplace(entry.name, entry);
  std::set<std::string> known(others.begin(), others.end());
  for (const SafetensorsSpec& spec : weights_specs(model)) {
    known.insert(spec.name);
    if (spec.dtype == DType::f32) expect(spec.name, spec.shape);
  }
  for (const auto& [name, first] : model.further_names()) {
    if (known.insert(name).second && entries_.contains(name)) check_further(name, first);
  }
  for (const auto& [name, entry] : entries_) {
    if (known.contains(name)) continue;
    fail_input("{}: tensor {} is unknown: the model has none of this name", path, printable(name));
  }
}

const SafetensorsEntry& WeightsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_input("{}: it has no tensor \"{}\"", file_.path(), name);
  return found->second;
}

void WeightsFile::expect(const std::string& name, const Shape& shape) {
  check_weights(file_.path(), entry(name), shape);
}

void WeightsFile::check_further(const std::string& name, const std::string& first) const {
  const SafetensorsEntry& original = entry(first);
  check_weights(file_.path(), entry(name), Shape(std::span<const int64_t>(original.shape)));
  // Ignoring other values would give wrong results without a word.
  if (!same_weights(file_, entry(name), original)) {
    fail_input("{}: tensor {} differs from {}, but they are one parameter of the model",
               file_.path(), printable(name), printable(first));
  }
}

ParameterSource WeightsFile::source() const {
  return [this](const NamedParameter& named, int64_t begin, std::span<float> out) {
    read_weights(file_, entry(named.name), named, begin, out);
  };
}

std::vector<Tensor> WeightsFile::read_statistics(const Module& model) const {
  std::vector<Tensor> all;
  const auto read = [&](const Shape& shape, const std::string& name, float least) {
    all.push_back(Tensor::empty(shape, DType::f32, Device{}));
    const std::span<float> values = all.back().values<float>();
    file_.read_as_f32(entries_.at(name), 0, values);
    for (const float value : values) {
      if (std::isfinite(value) && value >= least) continue;
      fail_input(
          "{}: tensor {} has the value {}, expected a finite value, for a variance at least 0",
          file_.path(), name, value);
    }
  };
  for (const auto& [name, statistics] : model.named_statistics()) {
    read(statistics->mean.shape(), statistics_name(name, running_mean_name),
         std::numeric_limits<float>::lowest());
    read(statistics->variance.shape(), statistics_name(name, running_variance_name), 0);
  }
  return all;
}

void WeightsFile::load_statistics(const Module& model) const {
  copy_statistics(read_statistics(model), model);
}

void WeightsFile::copy_statistics(const std::vector<Tensor>& values, const Module& model) {
  size_t next = 0;
  for (const auto& [name, statistics] : model.named_statistics()) {
    statistics->mean.copy_from(values[next++]);
    statistics->variance.copy_from(values[next++]);
  }
}

void WeightsFile::load(Module& model) const {
  // Statistics are checked first, so that invalid ones leave the model as it was.
  const std::vector<Tensor> statistics = read_statistics(model);
  for (const NamedParameter& named : model.named_parameters()) load_parameter(named, source());
  materialize(model);  // allocates missing running statistics
  copy_statistics(statistics, model);
}

WeightsWriter::WeightsWriter(const std::string& path, const Module& model,
                             const SafetensorsMetadata& metadata,
                             const std::vector<NamedTensor>& others)
    : file_(path, weights_specs(model, others), metadata) {
  for (const auto& [name, tensor] : others) file_.write(name, tensor);
}

void WeightsWriter::write(const NamedParameter& named, std::span<const float> values) {
  file_.write(named.name, 0, values);
}

void WeightsWriter::commit(const Module& model, int64_t batches) {
  for (const auto& [name, statistics] : model.named_statistics()) {
    file_.write(statistics_name(name, running_mean_name), statistics->mean.to_host());
    file_.write(statistics_name(name, running_variance_name), statistics->variance.to_host());
    file_.write<int64_t>(statistics_name(name, batches_name), 0, std::span(&batches, 1));
  }
  file_.commit();
}

void save_weights(const std::string& path, const Module& model) {
  const NoGrad no_grad;
  const std::vector<NamedParameter> list = model.named_parameters();
  // At ZeRO stage 3, an InUse of a parameter without memory gathers the parameter from all
  // processes, and would hang if only one process calls save_weights. An InUse may also gather or
  // free other parameters. So all parameters are checked before the first InUse, and each parameter
  // again before its own InUse.
  for (const NamedParameter& named : list) check_in_memory(named);
  WeightsWriter writer(path, model);
  for (const NamedParameter& named : list) {
    check_in_memory(named);
    const Tensor& tensor = named.parameter.tensor();
    const InUse in_use({&tensor});  // waits if an optimizer is still gathering the values
    writer.write(named, ops::convert(tensor, DType::f32).to_host().values<float>());
  }
  writer.commit(model, 0);
}

void load_weights(const std::string& path, Module& model) { WeightsFile(path, model).load(model); }

}  // namespace tessera::nn
