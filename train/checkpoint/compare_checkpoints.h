// Compares two checkpoints bit for bit, whatever ranks and stages wrote them: each is a list of
// named tensors, however these are divided among its files.
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
  int64_t different = 0;  // elements that differ, at least 1
  int64_t first = 0;      // the first of them, as an index in the flat tensor
  std::string a = {};     // its values, with their bits if they read alike, as NaNs do
  std::string b = {};
};

/// A tensor that both checkpoints have, with different dtypes or shapes.
struct FormDifference {
  std::string path;
  std::string a;  // "f32 [8, 4]"
  std::string b;
};

/// A setting that differs; "nothing" if a checkpoint has none of this name.
struct SettingDifference {
  std::string name;
  std::string a;
  std::string b;
};

struct CheckpointDifference {
  std::vector<std::string> only_a;  // paths, in the order of its manifest
  std::vector<std::string> only_b;
  std::vector<FormDifference> forms;
  std::vector<TensorDifference> tensors;  // in the order of a's manifest
  /// Differences in step, skipped steps, version, and the settings of the manifests. They explain
  /// why tensors may differ, and do not count in equal(). The layout is not compared.
  std::vector<SettingDifference> settings;
  int64_t same = 0;  // tensors with the same bits in both

  bool equal() const {
    return only_a.empty() && only_b.empty() && forms.empty() && tensors.empty();
  }
};

/// Reads every element of both, in pieces of 1 MiB. `verified`: both have just been verified, so
/// the digests in their manifests are those of the bytes, and tensors with equal digests are not
/// read again. (The digest of a tensor is the sum of its ranges' digests, which does not depend on
/// how the tensor is cut into ranges.)
CheckpointDifference compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b,
                                         bool verified = false);

}  // namespace tessera::train
