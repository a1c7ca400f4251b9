// Compares two checkpoints bit for bit. Tensors are compared by name, and their division among
// files does not matter. The checkpoints may therefore come from different numbers of ranks and
// from different ZeRO stages.
//
//   a.verify();
//   b.verify();
//   const auto difference = train::compare_checkpoints(a, b, true);
//   if (!difference.equal()) ... difference.tensors.front().path ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_reader.h"

namespace tessera::train {

/// A tensor of equal dtype and shape in both checkpoints, with different bits.
struct TensorDifference {
  std::string path = {};  // "wte.weight/exp_avg"
  Shape shape = {};
  int64_t different = 0;  // number of elements that differ, at least 1
  int64_t first = 0;      // index of the first differing element in the flat tensor
  /// Element `first` of both checkpoints as text. If the texts are equal, as for two NaNs, each
  /// text also has the element's bits.
  std::string a = {};
  std::string b = {};
};

/// A tensor that both checkpoints have, with different dtypes or shapes.
struct FormDifference {
  std::string path;
  std::string a;  // "f32 [8, 4]"
  std::string b;
};

struct SettingDifference {
  std::string name;
  std::string a;  // the value, or "nothing" if the checkpoint has no such setting
  std::string b;
};

struct CheckpointDifference {
  std::vector<std::string> only_a;  // paths of tensors that only a has, in a's order
  std::vector<std::string> only_b;
  std::vector<FormDifference> forms;
  std::vector<TensorDifference> tensors;  // in the order of a's manifest
  /// Differences between the manifests: in the members step, skipped, version and imported, and in
  /// the entries of the members run, bits and weights. equal() ignores them, but they may explain
  /// differing tensors. Other members, such as the layout and the best evaluation, are not
  /// compared.
  std::vector<SettingDifference> settings;
  int64_t same = 0;  // number of tensors with the same bits in both

  bool equal() const {
    return only_a.empty() && only_b.empty() && forms.empty() && tensors.empty();
  }
};

/// Compares every element, in pieces of 1 MiB. `verified` may be true only if the caller has just
/// called verify() on both checkpoints. The digests in the manifests then match the bytes, so
/// tensors with equal digests are not read again. (The digest of a tensor is the sum of its ranges'
/// digests. This sum does not depend on how the tensor is cut into ranges.)
CheckpointDifference compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b,
                                         bool verified = false);

}  // namespace tessera::train
