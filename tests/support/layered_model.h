// A chain of linear layers with biases. A test chooses the dtypes, whether each layer is a block of
// the model, and the order in which a forward pass uses the layers. Parameters are called
// "0.weight", "0.bias", "1.weight" and so on.
#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "nn/layers.h"
#include "tests/support/tensors.h"
#include "tests/support/training.h"

namespace tessera::test {

struct LayeredOptions {
  int layers = 3;
  int64_t width = 24;
  bool blocks = true;               // true: each layer is a block (Module::begin_block)
  std::vector<DType> dtypes = {};   // dtypes of the first layers; later layers are f32
};

class LayeredModel : public nn::Module {
 public:
  /// The layers that a forward pass uses, in order.
  using Way = std::vector<int>;

  explicit LayeredModel(const LayeredOptions& options = {}) : width_(options.width) {
    for (int i = 0; i < options.layers; ++i) {
      layers_.push_back(std::make_unique<nn::Linear>(width_, width_));
      const auto at = static_cast<size_t>(i);
      if (at < options.dtypes.size()) layers_.back()->to(options.dtypes[at]);
      if (options.blocks) begin_block();
      add(std::to_string(i), *layers_.back());
    }
  }

  nn::Linear& layer(int index) { return *layers_[static_cast<size_t>(index)]; }

  /// Returns the mean of the squared outputs of a micro-batch's samples.
  Tensor loss(const MicroBatch& micro, const Way& way) {
    const auto seed = static_cast<uint64_t>(micro.step * 1000 + micro.first_sample);
    Tensor x = random_tensor({micro.samples, width_}, seed);
    for (const int index : way) {
      x = ops::gelu(layer(index)(ops::convert(x, layer(index).weight.dtype())));
    }
    return ops::mean(ops::mul(x, x));
  }
  Tensor loss(const MicroBatch& micro) {
    Way all(layers_.size());
    std::iota(all.begin(), all.end(), 0);
    return loss(micro, all);
  }

 private:
  int64_t width_;
  std::vector<std::unique_ptr<nn::Linear>> layers_;
};

}  // namespace tessera::test
