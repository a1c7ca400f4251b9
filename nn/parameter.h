// A Parameter is declared with name, shape, dtype and initialiser, and has no memory until someone
// lays it out: an optimizer, or `materialize` for inference. So a model can be built that is larger
// than the memory of one process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/autograd.h"
#include "core/tensor.h"

namespace tessera::nn {

/// How a parameter's first values are drawn: a function of (seed, name, element) alone.
struct Initializer {
  enum class Kind : uint8_t { constant, normal, uniform };
  Kind kind = Kind::constant;
  float value = 0;  // the constant, the standard deviation, or the bound of (-value, value]

  static Initializer constant(float value) { return {Kind::constant, value}; }
  static Initializer zeros() { return constant(0); }
  static Initializer ones() { return constant(1); }
  static Initializer normal(float standard_deviation) { return {Kind::normal, standard_deviation}; }
  static Initializer uniform(float bound) { return {Kind::uniform, bound}; }
  /// Uniform within sqrt(6 / (in + out)) (Glorot and Bengio, AISTATS 2010).
  static Initializer xavier_uniform(int64_t in, int64_t out);
  /// Normal with deviation sqrt(2 / in) (He et al., arXiv:1502.01852).
  static Initializer he_normal(int64_t in);
};

/// Writes the initial values of elements [begin, begin + out.size()) of the parameter `name`.
void initialize(const Initializer& initializer, uint64_t seed, std::string_view name, int64_t begin,
                std::span<float> out);

/// When the gradients of the operations that use a parameter read its values. Whoever keeps
/// parameters elsewhere brings them back for that.
enum class BackwardReads : uint8_t {
  always,
  for_input_gradient,  // where the input of its product has a gradient
  never,               // a bias, a table of embeddings
};

/// A handle; copies are the same parameter.
class Parameter {
 public:
  Parameter() = default;  // no parameter, as the bias of a layer without one
  Parameter(const Shape& shape, const Initializer& initializer, DType dtype = DType::f32);

  bool defined() const { return state_ != nullptr; }
  const Shape& shape() const { return tensor().shape(); }
  int64_t elements() const { return shape().elements(); }
  DType dtype() const { return tensor().dtype(); }
  const Initializer& initializer() const { return state_->initializer; }

  /// The value, for operations. Undefined for no parameter.
  const Tensor& tensor() const;
  operator const Tensor&() const { return tensor(); }  // NOLINT: a parameter is used as a tensor

  /// Another element type (f32, bf16 or f16), while there is no memory yet; throws afterwards.
  void set_dtype(DType dtype) const;
  /// A frozen parameter takes no gradient and no update. Throws once an optimizer has it.
  void set_trainable(bool on) const;
  bool trainable() const { return leaf().trainable; }

  /// What a layer knows of its own parameter, and a plan asks for; nothing is computed by it.
  void set_backward_reads(BackwardReads reads) const { state_->backward_reads = reads; }
  BackwardReads backward_reads() const { return state_->backward_reads; }

  Leaf& leaf() const { return *tensor().leaf(); }
  /// The gradient of the last backward that reached the parameter; undefined before. Under an
  /// optimizer a view of its bucket, whose memory the next buckets and the step use again.
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
