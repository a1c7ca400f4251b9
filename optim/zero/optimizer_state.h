// The state of an optimizer that a run needs in order to go on: parameters, the update rule's
// state, counts of updates, the loss scale, running statistics. It is a list of named tensors in
// the shapes of the model, so that what one layout over ranks has written, another layout can read.
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
  std::string name;  // of the parameter, or the batch norm: "wte.weight"; or "loss_scaler"
  std::string kind;  // "value", "exp_avg", "updates", "running_mean", "scale", ...
  DType dtype = DType::f32;
  Shape shape;

  /// The unique path of the tensor: "wte.weight/exp_avg".
  std::string path() const { return state_path(name, kind); }
};

/// A range of a state tensor that this rank saves. Each element is in one piece of one rank.
struct StatePiece {
  StateTensor of;
  int64_t begin = 0;  // of the flat tensor, a multiple of 256
  int64_t end = 0;
  Tensor values;         // flat; a view of memory that the next step changes
  bool is_copy = false;  // true: `values` is not a view but a copy
  bool of_forward = false;  // running statistics: observed in a forward, not trained
};

/// A source from which an optimizer restores its state, by path.
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// Writes elements [begin, begin + out.size()) of a floating-point tensor to `out`, in f32.
  virtual void read(const std::string& path, int64_t begin, std::span<float> out) const = 0;
  /// The value of an i64 tensor of shape [].
  virtual int64_t count(const std::string& path) const = 0;
  /// What ZeroOptimizer::parameter_events returned; empty if it is not known.
  virtual std::vector<int64_t> parameter_events() const { return {}; }
};

/// The kind of a parameter's values. Of a trained parameter they are f32, master weights if it has
/// 16 bits; of a frozen parameter they have its own dtype.
inline constexpr const char* value_kind = "value";
/// The kind of the number of updates of a trained parameter: i64 [].
inline constexpr const char* updates_kind = "updates";
/// The kinds of a batch norm's running statistics.
inline constexpr const char* running_mean_kind = "running_mean";
inline constexpr const char* running_variance_kind = "running_var";

}  // namespace tessera::optim
