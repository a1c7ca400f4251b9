// Reads a file from its beginning to its end. Contents compressed by gzip are decompressed. The
// file's name does not matter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::data {

class GzipFile {
 public:
  /// Throws InputError if the file cannot be opened or is not a regular file.
  explicit GzipFile(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t stored_bytes() const { return file_bytes_; }  // size of the file on disk
  /// Reads until `out` is full or the file ends, and returns the number of bytes read. Throws
  /// InputError if the file cannot be read, or if compressed data is damaged or cut short.
  size_t read(std::span<uint8_t> out);
  /// Returns an upper bound on the bytes of the contents: the file's size, times gzip's best ratio
  /// if the file is compressed. If a header in the file (such as that of IDX) claims more bytes,
  /// the caller can refuse the file before allocating memory.
  int64_t most_bytes();

 private:
  std::string path_;
  int64_t file_bytes_ = 0;
  std::shared_ptr<void> file_;  // a gzFile
};

}  // namespace tessera::data
