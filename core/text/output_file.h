// A file that appears under its name only when it is complete. Until then the file has a temporary
// name in the same folder, NAME.HOST.PID.tmp. A killed process leaves its temporary file behind.
// The next OutputFile with this NAME and HOST removes the temporary file, if the file system has
// locks (flock).
//
//   OutputFile file("run/model.safetensors");
//   file.write(bytes.data(), bytes.size());
//   file.commit();                               // without commit(), no file remains
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

class OutputFile {
 public:
  /// Removes temporary files for `path` that processes of this host have left behind. Throws, with
  /// the reason, if `path` cannot be written: InputError, or Error if the cause is the machine
  /// (fail_to_open in core/text/input_file.h).
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Writes bytes from `position` on. `write` still continues where the last `write` ended. Bytes
  /// that are never written become zeros.
  void write_at(int64_t position, const void* data, size_t bytes);
  /// Flushes the file to disk. The file keeps its temporary name. Throws if the disk is full. With
  /// several files, sync() is called for all of them before the first commit(), so that a full disk
  /// is found before any file is replaced.
  void sync();
  /// Flushes the file to disk, unless sync() has done so, and renames it to `path`, replacing an
  /// earlier file. Throws if an earlier write or flush has failed.
  void commit();

 private:
  bool open_temporary();
  void flush_in_time(int64_t written);
  [[noreturn]] void fail_to_complete();

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  bool synced_ = false;    // true: nothing was written since sync()
  bool failed_ = false;    // true: a write or flush has failed, so bytes may be missing
  int64_t unflushed_ = 0;  // bytes
};

/// Makes a write beyond the file size limit (ulimit -f) fail with an error, "File too large". By
/// default the signal SIGXFSZ would end the process without a message. A handler that the program
/// has set for this signal is kept. All code that writes to files calls this function first, except
/// the course, the tests and the programs in bench/ and emulated/.
void fail_beyond_file_size_limit();

/// Returns the reason why no file can be made at `path`, for an error message. `error` is the errno
/// of the attempt. If the folder of the file is missing, the reason names the folder.
std::string why_not_made(const std::string& path, int error);

/// Throws, as OutputFile's constructor does, if no OutputFile can be written to `path`. With this
/// check a program fails before it computes anything.
inline void check_writable(const std::string& path) { OutputFile file(path); }

}  // namespace tessera
