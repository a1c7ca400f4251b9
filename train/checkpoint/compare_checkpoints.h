// Two checkpoints compared bit for bit, whatever ranks and stages wrote them: each is a list of
// named tensors, however they are divided among its files.
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

/// A tensor that both have, of one dtype and shape, with other bits.
struct TensorDifference {
  std::string path = {};  // "wte.weight/exp_avg"
  Shape shape = {};
  int64_t different = 0;  // of these, above 0
  int64_t first = 0;      // the first of them, of the flat tensor
  std::string a = {};     // its values, with their bits where they read alike, as NaNs do
  std::string b = {};
};

/// A tensor that both have with another dtype or shape.
struct FormDifference {
  std::string path;
  std::string a;  // "f32 [8, 4]"
  std::string b;
};

/// A setting that differs; "nothing" where one has none of this name.
struct SettingDifference {
  std::string name;
  std::string a;
  std::string b;
};

struct CheckpointDifference {
  std::vector<std::string> only_a;  // paths, as in its manifest
  std::vector<std::string> only_b;
  std::vector<FormDifference> forms;
  std::vector<TensorDifference> tensors;  // in the order of a's manifest
  /// Step, skipped steps, and what the manifests say of run and bits. They tell why tensors may
  /// differ, and make no difference themselves. The layout is not compared.
  std::vector<SettingDifference> settings;
  int64_t same = 0;  // tensors with the same bits in both

  bool equal() const {
    return only_a.empty() && only_b.empty() && forms.empty() && tensors.empty();
  }
};

/// Reads every element of both, in pieces of 1 MiB. `verified` says that both have just been
/// verified: then the digests in the manifests are those of the bytes, which are not read again
/// where a tensor's digests are equal. (The digest of a tensor is the sum of its ranges', which
/// does not depend on where they were cut.)
CheckpointDifference compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b,
                                         bool verified = false);

}  // namespace tessera::train
