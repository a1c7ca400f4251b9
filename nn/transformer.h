// The layers of a pre-norm decoder (Radford et al., "Language models are unsupervised multitask
// learners", 2019), with the names of Hugging Face's GPT-2.
//
// Letters: B batch, T tokens, C width, H heads.
#pragma once

#include "nn/layers.h"

namespace tessera::nn {

struct TransformerOptions {
  int64_t width = 0;    // C
  int64_t heads = 0;    // H, divides C
  float dropout = 0;    // probability of the dropout after each sub-layer
  float epsilon = 1e-5f;
  float deviation = 0.02f;           // standard deviation of the initial weights of c_attn and c_fc
  float residual_deviation = 0.02f;  // standard deviation for c_proj, which adds to the residual
  uint64_t index = 0;  // index of the block in the model; gives `layer` of the block's Dropouts
};

class CausalSelfAttention : public Module {
 public:
  explicit CausalSelfAttention(const TransformerOptions& options);
  Tensor forward(const Tensor& x) override;  // (B, T, C) -> (B, T, C)

 private:
  int64_t heads_;
  Linear c_attn_;  // C -> 3C: query, key, value
  Linear c_proj_;
};

class Mlp : public Module {
 public:
  explicit Mlp(const TransformerOptions& options);
  Tensor forward(const Tensor& x) override;  // (B, T, C) -> (B, T, C)

 private:
  Linear c_fc_;  // C -> 4C, with GELU
  Linear c_proj_;
};

/// The residual stream between two sub-layers. The stream is residual + update. The next layer norm
/// computes this sum and the normalised sum in one pass.
struct ResidualStream {
  Tensor residual;
  Tensor update;  // undefined before the first sub-layer
};

/// Returns two tensors: residual + update, which becomes the next residual, and the layer norm of
/// this sum.
ops::ResidualNorm normalize(LayerNorm& norm, const ResidualStream& stream);

class TransformerBlock : public Module {
 public:
  explicit TransformerBlock(const TransformerOptions& options);
  /// Frees the stream's tensors as soon as the block no longer reads them, unless the caller or
  /// backward keeps them.
  ResidualStream forward(ResidualStream stream);
  /// Runs the block as a stand-alone layer: (B, T, C) -> (B, T, C).
  Tensor forward(const Tensor& x) override;

 private:
  LayerNorm ln_1_;
  CausalSelfAttention attn_;
  LayerNorm ln_2_;
  Mlp mlp_;
  Dropout attn_dropout_;
  Dropout mlp_dropout_;
};

}  // namespace tessera::nn
