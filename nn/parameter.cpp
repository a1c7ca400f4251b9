#include "nn/parameter.h"

#include <cmath>
#include <numbers>

#include "core/random.h"

namespace tessera::nn {
namespace {

// Two normal values from four random words (Box and Muller, 1958), in double so that rounding to
// float is the only place where mathematics libraries could differ.
void normal_pair(const PhiloxCounter& words, float deviation, float* first, float* second) {
  const double radius = std::sqrt(-2.0 * std::log((words[0] + 1.0) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * (words[1] * 0x1p-32);
  *first = static_cast<float>(radius * std::cos(angle) * deviation);
  *second = static_cast<float>(radius * std::sin(angle) * deviation);
}

float draw(const Initializer& initializer, PhiloxKey key, int64_t element) {
  // Elements 2i and 2i + 1 share a counter.
  const auto pair = static_cast<uint64_t>(element) / 2;
  const PhiloxCounter words =
      philox({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 1}, key);
  const bool odd = element % 2 != 0;
  if (initializer.kind == Initializer::Kind::uniform) {
    return (2 * uniform_float(words[odd ? 1 : 0]) - 1) * initializer.value;
  }
  float first = 0;
  float second = 0;
  normal_pair(words, initializer.value, &first, &second);
  return odd ? second : first;
}

}  // namespace

Initializer Initializer::xavier_uniform(int64_t in, int64_t out) {
  TESSERA_CHECK(in + out > 0, "xavier_uniform: {} inputs and {} outputs", in, out);
  return uniform(std::sqrt(6.0f / static_cast<float>(in + out)));
}

Initializer Initializer::he_normal(int64_t in) {
  TESSERA_CHECK(in > 0, "he_normal: {} inputs", in);
  return normal(std::sqrt(2.0f / static_cast<float>(in)));
}

void initialize(const Initializer& initializer, uint64_t seed, std::string_view name, int64_t begin,
                std::span<float> out) {
  if (initializer.kind == Initializer::Kind::constant) {
    std::fill(out.begin(), out.end(), initializer.value);
    return;
  }
  const PhiloxKey key = philox_key(seed ^ stable_hash(name));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = draw(initializer, key, begin + static_cast<int64_t>(i));
  }
}

Parameter::Parameter(const Shape& shape, const Initializer& initializer, DType dtype)
    : state_(std::make_shared<State>()) {
  state_->tensor = Tensor::unallocated(shape, dtype);
  state_->tensor.set_leaf(std::make_shared<Leaf>());
  state_->initializer = initializer;
}

const Tensor& Parameter::tensor() const {
  static const Tensor none;
  return state_ ? state_->tensor : none;
}

}  // namespace tessera::nn
