// The optimizer state that a run needs in order to resume: parameters, the update rule's state,
// counts of updates, the loss scale, running statistics. The state is a list of named tensors in
// the shapes of the model. A run can read the state even if it has another number of ranks or
// another stage than the run that wrote the state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tessera::optim {

inline std::string state_path(const std::string& name, const std::string& kind) {
  return name + "/" + kind;
}

/// A tensor of the state. The list of tensors is the same on every rank and at every stage.
struct StateTensor {
  std::string name;  // a parameter or batch norm, such as "wte.weight"; or "loss_scaler"
  std::string kind;  // "value", "exp_avg", "updates", "running_mean", "scale", ...
  DType dtype = DType::f32;
  Shape shape;

  /// The unique path of the tensor: "wte.weight/exp_avg".
  std::string path() const { return state_path(name, kind); }
};

/// Elements [begin, end) of a state tensor. This rank saves these elements. Each element of the
/// tensor is in exactly one piece of one rank.
struct StatePiece {
  StateTensor of;
  int64_t begin = 0;  // in the flattened tensor, a multiple of 256
  int64_t end = 0;
  Tensor values;         // flat; a view of memory that the next step may change, unless is_copy
  bool is_copy = false;  // true: `values` is a copy, which no step changes
  bool always_copied = false;  // true for running statistics, which async checkpoints always copy
};

/// A source from which an optimizer restores its state. Tensors are named by StateTensor::path().
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// Writes elements [begin, begin + out.size()) of a floating-point tensor to `out`, in f32.
  virtual void read(const std::string& path, int64_t begin, std::span<float> out) const = 0;
  /// Returns the value of an i64 tensor of shape [].
  virtual int64_t count(const std::string& path) const = 0;
  /// Returns the list that ZeroOptimizer::parameter_events() returned when the state was saved, or
  /// an empty list if this list was not saved.
  virtual std::vector<int64_t> parameter_events() const { return {}; }
};

/// The kind of the tensor that holds a parameter's values. For a trained f16 or bf16 parameter, the
/// tensor holds the f32 master weights. For all other parameters, it holds the values themselves.
inline constexpr const char* value_kind = "value";
/// The kind of the tensor that counts a trained parameter's updates: i64 [].
inline constexpr const char* updates_kind = "updates";
/// The kinds of a batch norm's running statistics.
inline constexpr const char* running_mean_kind = "running_mean";
inline constexpr const char* running_variance_kind = "running_var";

}  // namespace tessera::optim
