// A file that may be compressed by gzip, whatever its name, read from its beginning to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::data {

class GzipFile {
 public:
  /// Throws InputError where the file cannot be opened or is not a regular file.
  explicit GzipFile(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t stored_bytes() const { return file_bytes_; }  // its size on the disk
  /// Reads into `out` until it is full or the file ends, and returns the number of bytes that were
  /// read. Throws InputError where the compressed data is damaged or cut short.
  size_t read(std::span<uint8_t> out);
  /// An upper bound on the bytes of the file's contents: its size, times gzip's best ratio if it is
  /// compressed. So a size claimed by a header can be refused before memory is allocated for it.
  int64_t most_bytes();

 private:
  std::string path_;
  int64_t file_bytes_ = 0;
  std::shared_ptr<void> file_;  // a gzFile
};

}  // namespace tessera::data
