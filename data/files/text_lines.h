// The lines of a text file, compressed by gzip or not, one after the other in bounded memory.
//
//   TextLines lines("ratings.csv");
//   for (std::string_view line; lines.next(line);) {
//     if (line.size() > 80) lines.refuse("has {} bytes", line.size());   // "ratings.csv, line 7:
//     ..."
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
  /// Throws InputError where there is no such file or it is not a regular one. With Encoding::utf8
  /// next() refuses lines that are not UTF-8.
  explicit TextLines(const std::string& path, Encoding encoding = Encoding::utf8);

  /// Sets `line` to the next line, which is valid until the next call, or returns false at the end.
  /// Throws InputError where a line is empty, too long, has a NUL or is not UTF-8, and where
  /// compressed data is damaged or becomes more than a hundred times as large. Real tables do not
  /// become so large, and callers would run out of memory for the contents.
  bool next(std::string_view& line);

  const std::string& path() const { return file_.path(); }
  int64_t number() const { return number_; }  // number of the last line, from 1

  /// Throws InputError, whose message begins with the file and the number of the last line.
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
  size_t begin_ = 0;  // begin of the bytes that are not handed out yet
  size_t end_ = 0;
  bool at_end_ = false;     // the file has nothing behind the buffer's contents
  int64_t read_bytes_ = 0;  // decompressed bytes so far
  int64_t number_ = 0;
};

bool is_utf8(std::string_view text);

/// Text from a file, for an error: in quotes, in ASCII, cut if it is long.
std::string excerpt(std::string_view text);

}  // namespace tessera::data
