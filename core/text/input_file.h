// A file that is read by its places, open. A pipe or a device is refused rather than waited for.
//
//   const InputFile file("corpus.bin");
//   file.read_at(file.size() - 8, &last, 8);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

class InputFile {
 public:
  /// Throws InputError where there is no such file, or it is not a regular one.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // in bytes, as it was when it was opened

  /// Bytes [position, position + bytes). Throws Error, with the position, where the file has become
  /// shorter since it was opened.
  void read_at(int64_t position, void* data, size_t bytes) const;

  /// Lets the system begin to read bytes [position, position + bytes), as far as there are any, and
  /// returns at once.
  void will_read(int64_t position, int64_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// Whether something has this name, a link that leads nowhere too: what is there and cannot be read
/// is refused by whoever opens it, rather than taken for absent.
bool has_name(const std::string& path);

}  // namespace tessera
