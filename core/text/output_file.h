// A file that is there as a whole or not at all: written under a temporary name beside its
// destination, NAME.HOST.PID.tmp, and renamed when it is complete. What a process that was killed
// has left under such a name goes when the destination is written again.
//
//   OutputFile file("run/model.safetensors");
//   file.write(bytes.data(), bytes.size());
//   file.commit();                               // without this nothing remains
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

class OutputFile {
 public:
  /// Throws InputError, with the system's reason, where `path` cannot be written. Removes what
  /// processes of this host that are no longer there have left of it.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// At a byte of the file, wherever `write` is; what nobody writes before that byte is zeros.
  void write_at(int64_t position, const void* data, size_t bytes);
  /// Replaces what was at `path`.
  void commit();

 private:
  bool open_temporary();
  void flush_in_time(int64_t written);

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  int64_t unflushed_ = 0;  // bytes
};

/// Makes a write beyond the limit on the size of files (ulimit -f) an error, "File too large",
/// where it would end the process without a word, unless the program handles SIGXFSZ itself.
/// Whatever opens a file for writing calls it.
void fail_beyond_file_size_limit();

/// Throws InputError where an OutputFile could not be written, before anything is computed for it.
inline void check_writable(const std::string& path) { OutputFile file(path); }

}  // namespace tessera
