// A file that may be compressed by gzip, whatever its name says, read from its begin to its end.
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
  int64_t stored_bytes() const { return file_bytes_; }  // as it is on the disk
  /// Fills `out`, or as much of it as there is, and says how much that was. Throws InputError where
  /// the compressed data is damaged or cut short.
  size_t read(std::span<uint8_t> out);
  /// What the file can hold at most: its size, or that times the most that gzip can compress. So
  /// what a header claims can be refused before memory is taken for it.
  int64_t most_bytes();

 private:
  std::string path_;
  int64_t file_bytes_ = 0;
  std::shared_ptr<void> file_;  // a gzFile
};

}  // namespace tessera::data
