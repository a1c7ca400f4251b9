// A small language model with parameters of two dtypes. The token table and the blocks' linear
// layers are in 16 bits, the norms and the output head in f32. No weights are tied.
#pragma once

#include <memory>
#include <vector>

#include "nn/layers.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {

class MixedModel : public nn::Module {
 public:
  static constexpr int layers = 3;
  static constexpr int64_t vocab = 37;
  static constexpr int64_t width = 20;

  explicit MixedModel(DType half) : half_(half), table_(vocab, width), head_(width, vocab) {
    table_.to(half);
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(std::make_unique<Layer>(half));
      begin_block();
      if (i == 0) add("table", table_);
      add("up." + std::to_string(i), layers_.back()->up);
      add("norm." + std::to_string(i), layers_.back()->norm);
      add("down." + std::to_string(i), layers_.back()->down);
    }
    add("head", head_);
  }

  Tensor loss(const TinyBatch& batch) {
    Tensor x = table_(batch.tokens);
    for (const auto& layer : layers_) {
      const Tensor wide = layer->norm(ops::convert(layer->up(x), DType::f32));
      x = ops::add(x, layer->down(ops::gelu(ops::convert(wide, half_))));
    }
    return ops::cross_entropy(head_(ops::convert(x, DType::f32)), batch.targets);
  }

 private:
  struct Layer {
    explicit Layer(DType half) : up(width, 2 * width), norm(2 * width), down(2 * width, width) {
      up.to(half);
      down.to(half);
    }
    nn::Linear up;
    nn::LayerNorm norm;
    nn::Linear down;
  };

  DType half_;
  nn::Embedding table_;
  std::vector<std::unique_ptr<Layer>> layers_;
  nn::Linear head_;
};

}  // namespace tessera::test
