// The lines of a text file, compressed by gzip or not, one after the other in bounded memory.
//
//   TextLines lines("ratings.csv");
//   for (std::string_view line; lines.next(line);) {
//     if (line.size() > 80) lines.refuse("has {} bytes", line.size());   // "ratings.csv, line 7:
//     ..."
//   }
//
// Lines end in LF or CRLF, the last one also at the end of the file; a byte order mark before the
// first one is no part of it. Empty lines are refused, except at the end of the file.
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
  /// Throws InputError where there is no such file or it is not a regular one. What is not UTF-8 is
  /// refused too, unless the encoding is unknown.
  explicit TextLines(const std::string& path, Encoding encoding = Encoding::utf8);

  /// Sets `line` to the next one, which stays until the next call, or returns false at the end.
  /// Throws InputError where a line is empty, too long, has a NUL or is not UTF-8, where compressed
  /// data is damaged, and where it becomes more than a hundred times as large: a text does not, and
  /// memory for its contents is taken as they come.
  bool next(std::string_view& line);

  const std::string& path() const { return file_.path(); }
  int64_t number() const { return number_; }  // of the last line, from 1

  /// Throws InputError, which begins with the file and the number of the last line.
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
  size_t begin_ = 0;  // of what is not handed out yet
  size_t end_ = 0;
  bool at_end_ = false;     // nothing follows what is in the buffer
  int64_t read_bytes_ = 0;  // of the text
  int64_t number_ = 0;
};

bool is_utf8(std::string_view text);

/// Text from a file in an error: in quotes, in ASCII, cut where it is long.
std::string excerpt(std::string_view text);

}  // namespace tessera::data
