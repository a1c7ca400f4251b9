// The basic layers. Their forward functions call operations of core/ops.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ops.h"
#include "nn/module.h"

namespace tessera::nn {

/// y = activation(x W + b). W is stored as [in, out] or, as in torch, as [out, in].
class Linear : public Module {
 public:
  struct Options {
    bool bias = true;
    WeightLayout layout = WeightLayout::out_in;
    Activation activation = Activation::none;
    /// If set, initializes the weight, and the bias begins at zero. If nullopt, weight and bias are
    /// uniform in (-r, r] with r = 1 / sqrt(in), as in torch.nn.Linear.
    std::optional<Initializer> initializer = std::nullopt;
  };
  Linear(int64_t in, int64_t out) : Linear(in, out, Options{}) {}
  Linear(int64_t in, int64_t out, const Options& options);
  Tensor forward(const Tensor& x) override;  // (..., in) -> (..., out)

  Parameter weight;
  Parameter bias;

 private:
  ops::LinearOptions options_;
};

/// Looks up rows of a table [entries, width].
///
///   nn::Embedding users(1'000'000, 64, {.sparse = true, .distinct = 4096});
class Embedding : public Module {
 public:
  struct Options {
    Initializer initializer = Initializer::normal(1);
    /// If true, an optimizer sends and updates only the rows that are looked up, unless its options
    /// say otherwise (Parameter::set_row_sparse).
    bool sparse = false;
    /// If sparse: the largest number of distinct rows that a micro-batch looks up.
    int64_t distinct = 0;
  };
  Embedding(int64_t entries, int64_t width, const Options& options);
  Embedding(int64_t entries, int64_t width,
            const Initializer& initializer = Initializer::normal(1));
  Tensor forward(const Tensor& tokens) override;  // i32 (...) -> (..., width)

  Parameter weight;
};

class LayerNorm : public Module {
 public:
  explicit LayerNorm(int64_t width, float epsilon = 1e-5f);
  Tensor forward(const Tensor& x) override;  // (..., width) -> (..., width)
  /// Returns x + residual and the layer norm of this sum, computed in one operation.
  ops::ResidualNorm add_and_norm(const Tensor& x, const Tensor& residual);

  Parameter weight;
  Parameter bias;

 private:
  float epsilon_;
};

/// In training, zeroes elements with the given probability, and scales the other elements by
/// 1 / (1 - probability). In evaluation, returns x. Each dropout of a model needs its own number
/// `layer`, so that no two dropouts draw the same mask.
class Dropout : public Module {
 public:
  Dropout(float probability, uint64_t layer);
  Tensor forward(const Tensor& x) override;

 private:
  float probability_;
  uint64_t layer_;
};

class Gelu : public Module {
 public:
  Tensor forward(const Tensor& x) override { return ops::gelu(x); }
};

/// Runs modules in order. Each module gets the output of the previous module. The modules are named
/// "0", "1", ...
class Sequential : public Module {
 public:
  template <class M, class... Args>
  M& emplace(Args&&... args) {
    auto module = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *module;
    add(std::to_string(modules_.size()), reference);
    modules_.push_back(std::move(module));
    return reference;
  }
  Tensor forward(const Tensor& x) override;

 private:
  std::vector<std::unique_ptr<Module>> modules_;
};

}  // namespace tessera::nn
