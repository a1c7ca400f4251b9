// A file that is open for reading at any position. Pipes and devices are refused, because reading
// them could wait forever.
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
  /// Throws InputError if the file cannot be opened or is not a regular file. Throws Error if the
  /// reason is not the file: too many open files, no memory, or a failing disk.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // in bytes, when the file was opened

  /// Reads bytes [position, position + bytes) to `data`. Throws Error, with the position, if
  /// reading fails or the file has become shorter since it was opened.
  void read_at(int64_t position, void* data, size_t bytes) const;

  /// Asks the system to start reading bytes [position, position + bytes), and does not wait for
  /// them. The range may extend beyond the end of the file.
  void will_read(int64_t position, int64_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// Throws an error with this text, for a file that cannot be opened or written. `error` is the
/// value of errno. If the cause is the machine (a full or failing disk, too many open files, too
/// little memory), throws Error, otherwise InputError.
[[noreturn]] void fail_to_open(int error, const std::string& text);
/// Calls fail_to_open with `text`, a colon and the reason that `error` stands for.
[[noreturn]] void fail_with_reason(int error, const std::string& text);

/// True if a member of a gzip file may begin at byte `position`: gzip's magic number is there
/// (RFC 1952).
bool has_gzip_magic(const InputFile& file, int64_t position);

/// Returns false only if `path` certainly does not exist. So the result is true for an unreadable
/// file, for a broken link, and if there is no permission to search the folder. A caller opens an
/// optional file only if the result is true. If the file exists but cannot be read, opening it
/// gives an error, so the file does not count as missing.
bool has_name(const std::string& path);

}  // namespace tessera
