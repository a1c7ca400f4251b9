// Reads a file from its beginning to its end. Contents compressed by gzip are decompressed. The
// first bytes show whether the contents are compressed; the file's name does not matter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/text/input_file.h"

struct z_stream_s;  // zlib.h

namespace tessera::data {

class GzipFile {
 public:
  /// Throws as InputFile does (core/text/input_file.h).
  explicit GzipFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t stored_bytes() const { return file_.size(); }  // size of the file on disk
  /// Reads until `out` is full or the file ends, and returns the number of bytes read. Throws
  /// InputError if compressed data is damaged or cut short, or if anything but zeros follows the
  /// last gzip member. Throws Error if the file cannot be read.
  size_t read(std::span<uint8_t> out);
  /// Returns an upper bound on the bytes of the contents: the file's size, times gzip's best ratio
  /// if the file is compressed. If a header in the file (such as that of IDX) claims more bytes,
  /// the caller can refuse the file before allocating memory.
  int64_t most_bytes() const;

 private:
  bool next_member();
  bool refill();
  size_t decompress(std::span<uint8_t> out);

  InputFile file_;
  int64_t position_ = 0;  // of the first byte of the file that has not been read
  // A compressed file has one or more members, each compressed by itself. `stream_` is null if the
  // file is not compressed.
  std::shared_ptr<z_stream_s> stream_;
  std::vector<uint8_t> input_;  // compressed bytes; stream_->next_in is the first unused one
  bool in_member_ = false;
};

}  // namespace tessera::data
