// All that an optimizer knows and a run needs in order to go on: parameters, what the update rule
// keeps for them, counts of updates, the loss scale, running statistics. As named tensors, each in
// the model's own space, so that what one layout over ranks has written another one can read.
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

/// One of the tensors. The list of them is the same on every rank, at every stage.
struct StateTensor {
  std::string name;  // of the parameter, or the batch norm: "wte.weight"; or "loss_scaler"
  std::string kind;  // "value", "exp_avg", "updates", "running_mean", "scale", ...
  DType dtype = DType::f32;
  Shape shape;

  /// "wte.weight/exp_avg", which no other has.
  std::string path() const { return state_path(name, kind); }
};

/// Elements of one of them that this rank answers for. Every element is in one piece of one rank.
struct StatePiece {
  StateTensor of;
  int64_t begin = 0;  // of the flat tensor, a multiple of 256
  int64_t end = 0;
  Tensor values;         // flat, where they lie: a view of what the next step changes
  bool is_copy = false;  // or not a view
  bool of_forward = false;  // running statistics: what a forward observes, not what is trained
};

/// Where an optimizer takes its state from, by path.
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// Writes elements [begin, begin + out.size()) of a tensor of floats, in f32.
  virtual void read(const std::string& path, int64_t begin, std::span<float> out) const = 0;
  /// The element of a tensor [] of i64.
  virtual int64_t count(const std::string& path) const = 0;
  /// What ZeroOptimizer::parameter_events returned; empty where that is not known.
  virtual std::vector<int64_t> parameter_events() const { return {}; }
};

/// The kind of a parameter's own values: f32 where it is trained, master weights where it has 16
/// bits; of a frozen one its own dtype.
inline constexpr const char* value_kind = "value";
/// How often a trained parameter was updated: i64 [].
inline constexpr const char* updates_kind = "updates";
/// Of a batch norm.
inline constexpr const char* running_mean_kind = "running_mean";
inline constexpr const char* running_variance_kind = "running_var";

}  // namespace tessera::optim
