// A Parameter has a shape, a dtype and an initialiser, but no memory until an optimizer, or
// `materialize` for inference, allocates it. So a model can be larger than the memory of one
// process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/autograd.h"
#include "core/tensor.h"

namespace tessera::nn {

/// How a parameter's initial values are drawn. Each value is a function of the seed, the
/// parameter's name and the index of the element alone.
struct Initializer {
  enum class Kind : uint8_t { constant, normal, uniform };
  Kind kind = Kind::constant;
  float value = 0;  // the constant, the standard deviation, or the bound of (-value, value]

  static Initializer constant(float value) { return {Kind::constant, value}; }
  static Initializer zeros() { return constant(0); }
  static Initializer ones() { return constant(1); }
  static Initializer normal(float standard_deviation) { return {Kind::normal, standard_deviation}; }
  static Initializer uniform(float bound) { return {Kind::uniform, bound}; }
  /// Uniform in (-b, b] with b = sqrt(6 / (in + out)) (Glorot and Bengio, AISTATS 2010).
  static Initializer xavier_uniform(int64_t in, int64_t out);
  /// Normal with standard deviation sqrt(2 / in) (He et al., arXiv:1502.01852).
  static Initializer he_normal(int64_t in);
};

/// Writes the initial values of elements [begin, begin + out.size()) of the parameter `name` to
/// `out`.
void initialize(const Initializer& initializer, uint64_t seed, std::string_view name, int64_t begin,
                std::span<float> out);

/// When backward reads the values of a parameter. ZeRO stage 3 must gather the parameter again for
/// such a read.
enum class BackwardReads : uint8_t {
  always,
  for_input_gradient,  // only if the layer's input needs a gradient
  never,               // for a bias or an embedding table
};

/// A handle: its copies refer to the same parameter.
class Parameter {
 public:
  Parameter() = default;  // undefined, as the bias of a layer without bias
  Parameter(const Shape& shape, const Initializer& initializer, DType dtype = DType::f32);

  bool defined() const { return state_ != nullptr; }
  const Shape& shape() const { return tensor().shape(); }
  int64_t elements() const { return shape().elements(); }
  DType dtype() const { return tensor().dtype(); }
  const Initializer& initializer() const { return state_->initializer; }

  /// Returns the value, for use in operations. Returns an undefined tensor if the parameter is
  /// undefined.
  const Tensor& tensor() const;
  operator const Tensor&() const { return tensor(); }  // NOLINT: a parameter is used as a tensor

  /// Sets the element type. Throws if `dtype` is not f32, bf16 or f16, or if the parameter has
  /// memory already in another type.
  void set_dtype(DType dtype) const;
  /// A frozen parameter gets no gradient and no update. Throws if an optimizer has the parameter.
  void set_trainable(bool on) const;
  bool trainable() const { return leaf().trainable; }

  /// Called by the layer that owns the parameter. Only optim/plan reads the setting, to predict the
  /// memory and traffic of a run; the setting does not change what is computed.
  void set_backward_reads(BackwardReads reads) const { state_->backward_reads = reads; }
  BackwardReads backward_reads() const { return state_->backward_reads; }

  Leaf& leaf() const { return *tensor().leaf(); }
  /// The gradient from the last backward that reached the parameter; undefined before the first
  /// one. Under an optimizer the gradient is a view of the parameter's bucket, and later buckets
  /// and the step reuse the bucket's memory.
  const Tensor& gradient() const { return leaf().gradient; }

  bool same(const Parameter& other) const { return state_ == other.state_; }

 private:
  struct State {
    Tensor tensor;
    Initializer initializer;
    BackwardReads backward_reads = BackwardReads::always;
  };
  std::shared_ptr<State> state_;
};

}  // namespace tessera::nn
