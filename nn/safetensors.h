// Safetensors (https://github.com/huggingface/safetensors): named tensors in one file, read and
// written tensor by tensor, so that a model is never in memory twice.
//
//   8 bytes           length n of the header, little-endian
//   n bytes           JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
// ...}
//   the rest          the tensors' bytes, without gaps, row-major, little-endian
//
//   SafetensorsReader file("model.safetensors");
//   file.read<float>(file.entry("wte.weight"), 0, weight.values<float>());
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace tessera::nn {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the file says it: "F32"
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of its bytes, counted from the end of the header
  int64_t end = 0;

  int64_t elements() const;
};

/// Checks the whole header when it opens a file, and trusts nothing in it: every error is an
/// InputError with file, tensor, expected and actual.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in order of bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Throws InputError where the file has no such tensor.
  const SafetensorsEntry& entry(std::string_view name) const;

  /// Elements [first, first + out.size()) of a tensor, whose dtype must be T's.
  template <class T>
  void read(const SafetensorsEntry& entry, int64_t first, std::span<T> out) const {
    check_read(entry, dtype_of<T>, first, static_cast<int64_t>(out.size()));
    read_bytes(entry.begin + first * static_cast<int64_t>(sizeof(T)), std::as_writable_bytes(out));
  }

 private:
  void check_read(const SafetensorsEntry& entry, DType dtype, int64_t first, int64_t count) const;
  void read_bytes(int64_t begin, std::span<std::byte> out) const;

  std::string path_;
  int descriptor_ = -1;
  int64_t data_begin_ = 0;  // of the tensors' bytes in the file
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // on the CPU
};

/// Writes a file as a whole or not at all. Tensors with larger elements come first, so that all are
/// aligned. Throws InputError where `path` cannot be written.
void write_safetensors(const std::string& path, std::vector<NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// A name from a file, made fit to print: escaped, and cut where it is long.
std::string printable(std::string_view name);

}  // namespace tessera::nn
