#include "nn/parameter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/context.h"
#include "core/random.h"

namespace tessera::nn {
namespace {

// Computes two normal values from the first two random words (Box and Muller, 1958). The arithmetic
// is in double, because rounding to float then hides nearly all differences between math libraries.
std::array<float, 2> normal_pair(const PhiloxCounter& words, float deviation) {
  const double radius = std::sqrt(-2.0 * std::log((words[0] + 1.0) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * (words[1] * 0x1p-32);
  return {static_cast<float>(radius * std::cos(angle) * deviation),
          static_cast<float>(radius * std::sin(angle) * deviation)};
}

/// Draws the elements 2 * pair and 2 * pair + 1. Both elements share a Philox counter.
std::array<float, 2> draw_pair(const Initializer& initializer, PhiloxKey key, uint64_t pair) {
  const PhiloxCounter words =
      philox({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 1}, key);
  if (initializer.kind == Initializer::Kind::uniform) {
    return {(2 * uniform_float(words[0]) - 1) * initializer.value,
            (2 * uniform_float(words[1]) - 1) * initializer.value};
  }
  return normal_pair(words, initializer.value);
}

}  // namespace

Initializer Initializer::xavier_uniform(int64_t in, int64_t out) {
  TESSERA_CHECK(in + out > 0,
                "xavier_uniform: {} inputs and {} outputs, expected at least one in all", in, out);
  return uniform(std::sqrt(6.0f / static_cast<float>(in + out)));
}

Initializer Initializer::he_normal(int64_t in) {
  TESSERA_CHECK(in > 0, "he_normal: {} inputs, expected at least 1", in);
  return normal(std::sqrt(2.0f / static_cast<float>(in)));
}

void initialize(const Initializer& initializer, uint64_t seed, std::string_view name, int64_t begin,
                std::span<float> out) {
  if (initializer.kind == Initializer::Kind::constant) {
    std::fill(out.begin(), out.end(), initializer.value);
    return;
  }
  const PhiloxKey key = philox_key(seed ^ stable_hash(name));
  constexpr int64_t cost = 64;
  parallel_ranges(static_cast<int64_t>(out.size()), cost, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const int64_t element = begin + i;
      const auto pair = draw_pair(initializer, key, static_cast<uint64_t>(element) / 2);
      if (element % 2 == 0) out[static_cast<size_t>(i++)] = pair[0];
      if (i < last) out[static_cast<size_t>(i++)] = pair[1];
    }
  });
}

Parameter::Parameter(const Shape& shape, const Initializer& initializer, DType dtype)
    : state_(std::make_shared<State>()) {
  state_->tensor = Tensor::unallocated(shape, dtype);
  state_->tensor.set_leaf(std::make_shared<Leaf>());
  state_->initializer = initializer;
}

void Parameter::set_dtype(DType dtype) const {
  TESSERA_CHECK(is_float(dtype), "set_dtype: dtype is {}, expected f32, bf16 or f16",
                dtype_name(dtype));
  if (dtype == this->dtype()) return;
  // Under ZeRO stage 3 an optimizer's parameter may have no memory at this moment. So the check
  // also looks at gradient_buffer, which every optimizer sets.
  TESSERA_CHECK(!tensor().allocated() && !leaf().gradient_buffer,
                "set_dtype: the parameter of shape {} and dtype {} already has memory or an "
                "optimizer; call set_dtype before materialize and before creating an optimizer",
                shape(), dtype_name(this->dtype()));
  state_->tensor.set_dtype(dtype);
}

void Parameter::set_row_sparse(int64_t distinct) const {
  TESSERA_CHECK(shape().rank() == 2, "parameter: shape {} cannot be row-sparse, expected (V, C)",
                shape());
  TESSERA_CHECK(distinct >= 1 && distinct <= shape()[0],
                "parameter: {} distinct rows of a table of {} rows, expected from 1 to all",
                distinct, shape()[0]);
  TESSERA_CHECK(!leaf().gradient_buffer,
                "parameter '{}': already belongs to an optimizer; make it row-sparse before that",
                leaf().name);
  state_->distinct_rows = distinct;
  state_->lookups = std::max<int64_t>(1, state_->lookups);
}

void Parameter::set_trainable(bool on) const {
  TESSERA_CHECK(!leaf().gradient_buffer,
                "set_trainable: parameter '{}' is already optimised; call set_trainable before "
                "creating the optimizer",
                leaf().name);
  leaf().trainable = on;
}

const Tensor& Parameter::tensor() const {
  static const Tensor none;
  return state_ ? state_->tensor : none;
}

}  // namespace tessera::nn
