// A Parameter has a shape, a dtype and an initialiser, but at first no memory. An optimizer can
// allocate a part of the parameters in each process, so a model can be larger than the memory of
// one process. Without an optimizer, `materialize` or `load_weights` allocates the memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/autograd.h"
#include "core/tensor.h"

namespace tessera::nn {

/// How a parameter's initial values are drawn. A value depends only on the seed, the parameter's
/// name and the element's index, and not on the sharding.
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

/// The cases in which backward reads a parameter's values. For such a read, ZeRO stage 3 must
/// gather the parameter again.
enum class BackwardReads : uint8_t {
  always,
  for_input_gradient,  // only if the layer's input needs a gradient
  never,               // for a bias or an embedding table
};

/// A handle: copies refer to the same parameter.
class Parameter {
 public:
  Parameter() = default;  // undefined, for example the bias of a layer without bias
  Parameter(const Shape& shape, const Initializer& initializer, DType dtype = DType::f32);

  bool defined() const { return state_ != nullptr; }
  const Shape& shape() const { return tensor().shape(); }
  int64_t elements() const { return shape().elements(); }
  DType dtype() const { return tensor().dtype(); }
  const Initializer& initializer() const { return state_->initializer; }

  /// Returns the value, for use in operations. The value of an undefined parameter is an undefined
  /// tensor.
  const Tensor& tensor() const;
  operator const Tensor&() const { return tensor(); }  // NOLINT: a parameter is used as a tensor

  /// Sets the element type. Throws if `dtype` is not f32, bf16 or f16. Also throws if this call
  /// would change the type of a parameter that already has memory or belongs to an optimizer.
  void set_dtype(DType dtype) const;
  /// If `on` is false, the parameter is frozen: it gets no gradient and no update. Throws if the
  /// parameter already belongs to an optimizer.
  void set_trainable(bool on) const;
  bool trainable() const { return leaf().trainable; }

  /// Sets the cases in which backward reads the values. The parameter's layer calls this function,
  /// and so does a model that uses the parameter in another way than the layer (docs/train.md).
  /// Only optim/plan reads the setting, to predict the memory and traffic of a run. The setting
  /// changes no computation.
  void set_backward_reads(BackwardReads reads) const { state_->backward_reads = reads; }
  BackwardReads backward_reads() const { return state_->backward_reads; }

  /// Makes a table (V, C) row-sparse: an optimizer then sends and updates only the rows that a
  /// micro-batch looks up. (With ZeroOptions::update_all_rows it updates all rows.) A micro-batch
  /// may look up at most `distinct` different rows. Without an optimizer the setting has no effect.
  /// Throws if the parameter is not two-dimensional, if `distinct` is not in [1, V], or if the
  /// parameter already belongs to an optimizer.
  void set_row_sparse(int64_t distinct) const;
  /// The largest number of distinct rows that a micro-batch looks up; 0 for a dense parameter.
  int64_t distinct_rows() const { return state_->distinct_rows; }

  /// Sets how many operations of a micro-batch look up rows of this table; 0 if the parameter is
  /// not a table. Only optim/plan reads the setting, mainly to predict traffic: at ZeRO stage 3,
  /// each of these operations fetches rows of a row-sparse table from their owners.
  void set_lookups(int64_t lookups) const { state_->lookups = lookups; }
  int64_t lookups() const { return state_->lookups; }

  Leaf& leaf() const { return *tensor().leaf(); }
  /// Returns the gradient from the last backward that reached the parameter. Returns an undefined
  /// tensor if no backward has reached the parameter, or if the last one whose graph has the
  /// parameter passed it no gradient. Under an optimizer, the gradient is a view of
  /// the parameter's bucket until the bucket is sent, and then undefined: call
  /// ZeroOptimizer::gradient instead. The gradient of a row-sparse table has only the rows that the
  /// micro-batch looked up, and the optimizer may overwrite it.
  const Tensor& gradient() const { return leaf().gradient; }

  bool same(const Parameter& other) const { return state_ == other.state_; }

 private:
  struct State {
    Tensor tensor;
    Initializer initializer;
    BackwardReads backward_reads = BackwardReads::always;
    int64_t distinct_rows = 0;
    int64_t lookups = 0;
  };
  std::shared_ptr<State> state_;
};

}  // namespace tessera::nn
