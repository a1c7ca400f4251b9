#include "nn/transformer.h"

#include <utility>

namespace tessera::nn {
namespace {

Linear::Options gpt2_linear(float deviation, Activation activation = Activation::none) {
  return {.layout = WeightLayout::in_out,
          .activation = activation,
          .initializer = Initializer::normal(deviation)};
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(const TransformerOptions& options)
    : heads_(options.heads),
      c_attn_(options.width, 3 * options.width, gpt2_linear(options.deviation)),
      c_proj_(options.width, options.width, gpt2_linear(options.residual_deviation)) {
  TESSERA_CHECK(options.heads >= 1 && options.width % options.heads == 0,
                "CausalSelfAttention: width {} is not divisible by {} heads", options.width,
                options.heads);
  add("c_attn", c_attn_);
  add("c_proj", c_proj_);
}

Tensor CausalSelfAttention::forward(const Tensor& x) {
  const Tensor qkv = c_attn_(x);                         // (B, T, 3C)
  return c_proj_(ops::causal_attention(qkv, heads_));    // (B, T, C)
}

Mlp::Mlp(const TransformerOptions& options)
    : c_fc_(options.width, 4 * options.width, gpt2_linear(options.deviation, Activation::gelu)),
      c_proj_(4 * options.width, options.width, gpt2_linear(options.residual_deviation)) {
  add("c_fc", c_fc_);
  add("c_proj", c_proj_);
}

Tensor Mlp::forward(const Tensor& x) { return c_proj_(c_fc_(x)); }

ops::ResidualNorm normalize(LayerNorm& norm, const ResidualStream& stream) {
  if (!stream.update.defined()) return {stream.residual, norm(stream.residual)};
  return norm.add_and_norm(stream.update, stream.residual);
}

TransformerBlock::TransformerBlock(const TransformerOptions& options)
    : ln_1_(options.width, options.epsilon),
      attn_(options),
      ln_2_(options.width, options.epsilon),
      mlp_(options),
      attn_dropout_(options.dropout, 2 * options.index + 1),  // layer 0 is the embedding's dropout
      mlp_dropout_(options.dropout, 2 * options.index + 2) {
  add("ln_1", ln_1_);
  add("attn", attn_);
  add("ln_2", ln_2_);
  add("mlp", mlp_);
  add("attn_dropout", attn_dropout_);
  add("mlp_dropout", mlp_dropout_);
}

// The variables stream, x, h and attended are moved into the statements that read them last. Their
// tensors are freed when these statements end, unless the caller or backward keeps the tensors. The
// freed tensors take no memory during the MLP, the part of the block that needs the most memory.
ResidualStream TransformerBlock::forward(ResidualStream stream) {
  const trace::LayerScope scope(name());
  auto [x, h] = normalize(ln_1_, std::exchange(stream, {}));
  Tensor attended = attn_dropout_(attn_(std::exchange(h, {})));
  const auto [y, g] = ln_2_.add_and_norm(std::exchange(attended, {}), std::exchange(x, {}));
  return {y, mlp_dropout_(mlp_(g))};
}

Tensor TransformerBlock::forward(const Tensor& x) {
  const ResidualStream out = forward(ResidualStream{x, {}});
  return ops::add(out.residual, out.update);
}

}  // namespace tessera::nn
