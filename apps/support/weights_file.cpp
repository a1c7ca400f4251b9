#include "apps/support/weights_file.h"

#include <algorithm>
#include <cmath>

#include "core/assign.h"

namespace tessera::apps {

void check_weights(const std::string& path, const nn::SafetensorsEntry& entry, const Shape& shape) {
  if (entry.dtype != "F32" && entry.dtype != "BF16" && entry.dtype != "F16") {
    fail_input("{}: tensor {}: dtype is {}, expected F32, BF16 or F16", path,
               nn::printable(entry.name), entry.dtype);
  }
  if (!std::equal(entry.shape.begin(), entry.shape.end(), shape.begin(), shape.end())) {
    fail_input("{}: tensor {}: shape is [{}], expected [{}]", path, nn::printable(entry.name),
               fmt::join(entry.shape, ", "), fmt::join(shape, ", "));
  }
}

namespace {

// A finite weight that would become infinity is refused.
void check_fits_f16(const std::string& path, const std::string& name, int64_t begin,
                    std::span<const float> values) {
  constexpr float becomes_infinity = 65520;
  for (size_t i = 0; i < values.size(); ++i) {
    const float size = std::abs(values[i]);
    if (size >= becomes_infinity && std::isfinite(size)) {
      fail_input("{}: tensor {}: element {} is {}, an f16 holds at most 65504; use fp32 or bf16",
                 path, name, begin + static_cast<int64_t>(i), values[i]);
    }
  }
}

}  // namespace

void read_weights(const nn::SafetensorsReader& file, const nn::SafetensorsEntry& entry,
                  const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
  file.read_as_f32(entry, begin, out);
  if (named.parameter.dtype() == DType::f16) check_fits_f16(file.path(), named.name, begin, out);
}

void load_weights(const nn::NamedParameter& named, const optim::ParameterSource& source) {
  Tensor tensor = named.parameter.tensor();
  if (!tensor.allocated()) {
    named.parameter.leaf().name = named.name;
    tensor.attach(allocate(tensor.bytes(), Category::parameters, default_device()), 0);
  }
  assign(tensor, [&](int64_t begin, std::span<float> out) { source(named, begin, out); });
}

}  // namespace tessera::apps
