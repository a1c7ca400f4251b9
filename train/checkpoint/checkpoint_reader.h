// Reads any part of a checkpoint.
//
//   const train::CheckpointReader checkpoint("run/step-000000100");
//   checkpoint.verify();
//   optimizer.restore_state(checkpoint);
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/text/input_file.h"
#include "train/checkpoint/manifest.h"

namespace tessera::train {

class CheckpointReader : public optim::StateSource {
 public:
  /// Reads the manifest, and checks the size and header of every file. Throws InputError for a
  /// folder that is no checkpoint, or not a whole one.
  explicit CheckpointReader(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  /// Reads part number `part` of `parts` of the bytes, in the order of the files, and compares
  /// digests. Throws an InputError that names the file and the tensor.
  void verify(int64_t part = 0, int64_t parts = 1) const;

  /// Throws InputError unless it has exactly these tensors, naming the first that differs.
  void check_tensors(const std::vector<optim::StateTensor>& expected) const;

  void read(const std::string& path, int64_t begin, std::span<float> out) const override;
  int64_t count(const std::string& path) const override;
  std::vector<int64_t> parameter_events() const override { return manifest_.events; }
  /// Elements of a tensor of any dtype.
  void read_bytes(const std::string& path, int64_t begin, std::span<std::byte> out) const;

 private:
  const optim::StateTensor& tensor(const std::string& path) const;
  void open_files();
  void verify_range(const CheckpointRange& range, std::vector<std::byte>& buffer) const;

  std::string folder_;
  Manifest manifest_;
  std::map<std::string, size_t> by_path_;  // -> index in the manifest's tensors
  std::vector<size_t> first_range_;        // of each tensor, in the manifest's ranges
  std::vector<std::unique_ptr<InputFile>> files_;
};

}  // namespace tessera::train
