#include "nn/layers.h"

#include <cmath>

namespace tessera::nn {
namespace {

Shape weight_shape(int64_t in, int64_t out, WeightLayout layout) {
  return layout == WeightLayout::in_out ? Shape{in, out} : Shape{out, in};
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, const Options& options)
    : options_{options.layout, options.activation} {
  TESSERA_CHECK(in >= 1 && out >= 1, "Linear: {} inputs and {} outputs, expected at least 1 each",
                in, out);
  const auto standard = Initializer::uniform(1.0f / std::sqrt(static_cast<float>(in)));
  weight = add("weight", Parameter(weight_shape(in, out, options.layout),
                                   options.initializer.value_or(standard)));
  weight.set_backward_reads(BackwardReads::for_input_gradient);
  if (options.bias) {
    const auto initializer = options.initializer ? Initializer::zeros() : standard;
    bias = add("bias", Parameter({out}, initializer));
    bias.set_backward_reads(BackwardReads::never);
  }
}

Tensor Linear::forward(const Tensor& x) { return ops::linear(x, weight, bias, options_); }

Embedding::Embedding(int64_t entries, int64_t width, const Options& options) {
  TESSERA_CHECK(entries >= 1 && width >= 1, "Embedding: table [{}, {}], expected at least [1, 1]",
                entries, width);
  TESSERA_CHECK(options.sparse || options.distinct == 0,
                "Embedding: distinct is {}, but the table is dense; expected sparse = true",
                options.distinct);
  weight = add("weight", Parameter({entries, width}, options.initializer));
  weight.set_backward_reads(BackwardReads::never);
  weight.set_lookups(1);
  if (options.sparse) weight.set_row_sparse(options.distinct);
}

Embedding::Embedding(int64_t entries, int64_t width, const Initializer& initializer)
    : Embedding(entries, width, Options{.initializer = initializer}) {}

Tensor Embedding::forward(const Tensor& tokens) { return ops::embedding(tokens, weight); }

LayerNorm::LayerNorm(int64_t width, float epsilon) : epsilon_(epsilon) {
  TESSERA_CHECK(width >= 1, "LayerNorm: width {}, expected at least 1", width);
  weight = add("weight", Parameter({width}, Initializer::ones()));
  bias = add("bias", Parameter({width}, Initializer::zeros()));
}

Tensor LayerNorm::forward(const Tensor& x) { return ops::layer_norm(x, weight, bias, epsilon_); }

ops::ResidualNorm LayerNorm::add_and_norm(const Tensor& x, const Tensor& residual) {
  const trace::LayerScope scope(name());
  return ops::residual_layer_norm(x, residual, weight, bias, epsilon_);
}

Dropout::Dropout(float probability, uint64_t layer) : probability_(probability), layer_(layer) {
  TESSERA_CHECK(probability >= 0 && probability < 1, "Dropout: probability {}, expected in [0, 1)",
                probability);
}

Tensor Dropout::forward(const Tensor& x) {
  return training() ? ops::dropout(x, probability_, layer_) : x;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& module : modules_) y = (*module)(y);
  return y;
}

}  // namespace tessera::nn
