// Reads the lines of a text file, compressed by gzip or not, one after the other in bounded memory.
//
//   TextLines lines("ratings.csv");
//   for (std::string_view line; lines.next(line);) {
//     // Throws InputError: "ratings.csv, line 7: has 81 bytes".
//     if (line.size() > 80) lines.refuse("has {} bytes", line.size());
//   }
//
// Lines end in LF or CRLF; the last line may also end with the file. A byte order mark before the
// first line is skipped. Empty lines are refused, except at the end of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/files/gzip_file.h"

namespace tessera::data {

class TextLines {
 public:
  static constexpr size_t most_line_bytes = size_t{1} << 16;

  enum class Encoding { utf8, unknown };
  /// Throws as InputFile does (core/text/input_file.h). With Encoding::utf8, next() refuses lines
  /// that are not UTF-8.
  explicit TextLines(const std::string& path, Encoding encoding = Encoding::utf8);

  /// Sets `line` to the next line and returns true, or returns false at the end of the file. The
  /// line is valid until the next call. Throws InputError if
  ///   - a line has more than most_line_bytes,
  ///   - a line has a NUL byte,
  ///   - with Encoding::utf8, a line is not UTF-8,
  ///   - a line is empty, and a later line is not,
  ///   - compressed data is damaged or cut short, or
  ///   - compressed data expands to more than 64 MiB and to more than 100 times its compressed
  ///     size, because such data could exhaust the caller's memory. Real data expands at most about
  ///     ten times.
  /// Throws Error if reading the file fails.
  bool next(std::string_view& line);

  const std::string& path() const { return file_.path(); }
  int64_t number() const { return number_; }  // number of the last line read, from 1; 0: none yet

  /// Throws InputError. The message begins with the file and the number of the last line read.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    refuse_line(number_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse_line(int64_t number, const std::string& text) const;
  bool take(std::string_view& line);
  void fill();
  void check(std::string_view line) const;

  GzipFile file_;
  Encoding encoding_;
  std::vector<char> buffer_;
  size_t begin_ = 0;  // first byte in the buffer that next() has not returned yet
  size_t end_ = 0;
  bool at_end_ = false;     // true once the whole file has been read into the buffer
  int64_t read_bytes_ = 0;  // decompressed bytes so far
  int64_t number_ = 0;
};

/// Returns text from a file in the form for an error message: quoted, in ASCII, and cut if long.
std::string excerpt(std::string_view text);

}  // namespace tessera::data
