// Safetensors (https://github.com/huggingface/safetensors): named tensors in one file. Tensors are
// read and written in pieces, so a process holds only the part of a model that it uses.
//
//   8 bytes    length n of the header, little-endian
//   n bytes    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//   the rest   the tensors' bytes, without gaps, row-major, little-endian
//
//   SafetensorsReader file("model.safetensors");
//   file.read<float>(file.entry("wte.weight"), 0, weight.values<float>());
//
//   SafetensorsWriter copy("copy.safetensors", {{"wte.weight", DType::f32, {50257, 768}}});
//   copy.write<float>("wte.weight", 0, first_rows);
//   copy.write<float>("wte.weight", std::ssize(first_rows), other_rows);
//   copy.commit();                                       // the file appears only now
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "core/text/input_file.h"
#include "core/text/output_file.h"

namespace tessera::nn {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as written in the file: "F32"
  std::vector<int64_t> shape;
  int64_t begin = 0;  // offset of the tensor's first byte from the end of the header
  int64_t end = 0;

  int64_t elements() const;
};

/// Reads a file that may be damaged or hostile. The constructor checks the whole header. Every
/// fault of the file throws an InputError that names the file and says what is wrong. For a fault
/// of one tensor, the error also names the tensor.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in file order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Returns a tensor's entry. Throws InputError if the file has no tensor of this name.
  const SafetensorsEntry& entry(std::string_view name) const;

  /// Reads elements [first, first + out.size()) of a tensor. Throws InputError if the tensor's
  /// dtype is not T.
  template <class T>
  void read(const SafetensorsEntry& entry, int64_t first, std::span<T> out) const {
    check_dtype(entry, dtype_of<T>);
    check_range(entry, first, static_cast<int64_t>(out.size()));
    read_bytes(entry.begin + first * static_cast<int64_t>(sizeof(T)), std::as_writable_bytes(out));
  }
  /// Reads elements [first, first + out.size()) of an F32, BF16 or F16 tensor as f32. The
  /// conversion is exact. Throws InputError for another dtype.
  void read_as_f32(const SafetensorsEntry& entry, int64_t first, std::span<float> out) const;

 private:
  void check_dtype(const SafetensorsEntry& entry, DType dtype) const;
  void check_range(const SafetensorsEntry& entry, int64_t first, int64_t count) const;
  template <class T>
  void read_widened(const SafetensorsEntry& entry, int64_t first, std::span<float> out) const;
  void read_bytes(int64_t begin, std::span<std::byte> out) const;

  InputFile file_;
  int64_t data_begin_ = 0;  // where the tensors' bytes begin in the file
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor that a SafetensorsWriter will write.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

/// Writes a file. The file appears complete or not at all. Tensors may be written in pieces and in
/// any order. In the file, tensors with larger elements come first, so every tensor is aligned to
/// its element size.
class SafetensorsWriter {
 public:
  /// Throws as OutputFile does if `path` cannot be written. Throws Error if two tensors have the
  /// same name, if a tensor is called __metadata__, or if a tensor's name is not UTF-8. In
  /// metadata, bytes that are not UTF-8 are replaced.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsSpec> tensors,
                    const SafetensorsMetadata& metadata = {{"format", "pt"}});

  /// Writes elements [first, first + values.size()) of a tensor. Throws if the tensor's dtype is
  /// not T, if the tensor has no such elements, or if one of these elements was written before.
  template <class T>
  void write(std::string_view name, int64_t first, std::span<const T> values) {
    write_bytes(name, dtype_of<T>, first, std::as_bytes(values));
  }
  /// Writes a whole tensor of any dtype. `tensor` must be on the CPU.
  void write(std::string_view name, const Tensor& tensor);

  /// Returns the bytes before the tensors' data: the header's length and its JSON.
  const std::string& header() const { return header_; }
  /// Returns the offset in the file at which a tensor's bytes begin.
  int64_t position(std::string_view name) const;

  /// Throws if an element was not written.
  void check_complete() const;
  /// Flushes the file to disk. The file keeps its temporary name (core/text/output_file.h).
  void sync() { file_.sync(); }
  /// Makes the file appear at `path`. Throws as check_complete does.
  void commit();

 private:
  void write_bytes(std::string_view name, DType dtype, int64_t first,
                   std::span<const std::byte> bytes);
  void mark_written(const SafetensorsEntry& entry, int64_t begin, int64_t end);

  const SafetensorsEntry& entry(std::string_view name) const;

  OutputFile file_;
  std::string header_;
  int64_t data_begin_ = 0;  // where the tensors' bytes begin in the file
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
  std::map<int64_t, int64_t> written_;  // the byte ranges written so far, begin -> end
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // on the CPU
};

/// Writes a file of tensors that are in memory. Throws as SafetensorsWriter's constructor does, and
/// Error if writing fails.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const SafetensorsMetadata& metadata = {{"format", "pt"}});

/// Returns the format's name of a dtype: "F32".
std::string_view safetensors_dtype(DType dtype);

/// Returns a name from a file in a form that is safe to print: quoted, escaped, and cut if it is
/// long.
std::string printable(std::string_view name);

}  // namespace tessera::nn
