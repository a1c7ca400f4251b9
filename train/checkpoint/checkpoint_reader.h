// Reads any range of any tensor of a checkpoint.
//
//   const train::CheckpointReader checkpoint("run/step-000000100");
//   checkpoint.verify();
//   optimizer.restore_state(checkpoint);
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/text/input_file.h"
#include "train/checkpoint/manifest.h"

namespace tessera::train {

class CheckpointReader : public optim::StateSource {
 public:
  /// Reads the manifest, and checks the size and header of every file. Throws InputError if the
  /// folder has no valid manifest, or if a file is missing or does not match the manifest. Throws
  /// Error if a file cannot be read for another reason, such as missing permission.
  explicit CheckpointReader(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  /// Reads part number `part` of the bytes and compares digests. The bytes are divided into `parts`
  /// parts, in the order of the files. Parts are numbered from 0. Throws an InputError that names
  /// file and tensor if a digest differs.
  void verify(int64_t part = 0, int64_t parts = 1) const;

  /// Throws InputError unless the checkpoint has exactly these tensors. A tensor of floats may have
  /// another float dtype. The error names the first tensor that differs.
  void check_tensors(const std::vector<optim::StateTensor>& expected) const;

  void read(const std::string& path, int64_t begin, std::span<float> out) const override;
  int64_t count(const std::string& path) const override;
  std::vector<int64_t> parameter_events() const override { return manifest_.events; }
  /// Reads elements of a tensor of any dtype, from element `begin` on, without conversion.
  void read_bytes(const std::string& path, int64_t begin, std::span<std::byte> out) const;

 private:
  const optim::StateTensor& tensor(const std::string& path) const;
  /// Returns file `index` of the manifest, and opens the file if necessary.
  const InputFile& file(size_t index) const;
  void check_files() const;
  void verify_range(const CheckpointRange& range, std::vector<std::byte>& buffer) const;

  std::string folder_;
  Manifest manifest_;
  std::map<std::string, size_t> by_path_;  // path -> index in the manifest's tensors
  std::vector<size_t> first_range_;        // per tensor: index of its first range in the manifest
  // At most `most_open` files are open at a time, because a process may have only 1,024 open files.
  // The files that were opened last stay open.
  static constexpr size_t most_open = 256;
  mutable std::vector<std::unique_ptr<InputFile>> files_;  // null: not open
  mutable std::deque<size_t> open_;                        // indices of files_ in order of opening
};

/// Reads all of the checkpoint in `folder`. Returns true if a file is missing, invalid, or does not
/// match the manifest. Returns false if the checkpoint is whole. Also returns false if a file
/// cannot be read, for instance without permission, because the checkpoint may then be whole.
bool is_damaged(const std::string& folder);

}  // namespace tessera::train
