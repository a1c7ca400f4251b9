#include "data/files/text_lines.h"

#include <algorithm>
#include <cstring>

#include "core/text/utf8.h"

namespace tessera::data {
namespace {

constexpr size_t buffer_bytes = size_t{1} << 20;
// A compressed file may expand to always_allowed_bytes or to most_expansion times its own size,
// whichever is more. Real text tables expand three to ten times. Repeated lines expand about a
// thousand times, so a large file of repeated lines is refused.
constexpr int64_t most_expansion = 100;
constexpr int64_t always_allowed_bytes = int64_t{1} << 26;

}  // namespace

std::string excerpt(std::string_view text) {
  constexpr size_t longest = 60;
  std::string result = "'";
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<uint8_t>(c);
    result += byte >= 0x20 && byte < 0x7F ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return result + (text.size() > longest ? "...'" : "'");
}

TextLines::TextLines(const std::string& path, Encoding encoding)
    : file_(path), encoding_(encoding), buffer_(buffer_bytes) {}

void TextLines::refuse_line(int64_t number, const std::string& text) const {
  fail_input("{}, line {}: {}", path(), number, text);
}

bool TextLines::next(std::string_view& line) {
  int64_t first_empty = 0;
  while (take(line)) {
    ++number_;
    if (number_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) {
      if (first_empty > 0) refuse_line(first_empty, "is empty");
      check(line);
      return true;
    }
    if (first_empty == 0) first_empty = number_;
  }
  return false;
}

bool TextLines::take(std::string_view& line) {
  size_t searched = 0;  // number of bytes from `first` on that are known to have no line end
  while (true) {
    const char* const first = buffer_.data() + begin_;
    const size_t bytes = end_ - begin_;
    const void* const found = std::memchr(first + searched, '\n', bytes - searched);
    const size_t length =
        found == nullptr ? bytes : static_cast<size_t>(static_cast<const char*>(found) - first);
    if (length > most_line_bytes) {
      refuse_line(number_ + 1, fmt::format("has more than {} bytes", most_line_bytes));
    }
    if (found != nullptr || (at_end_ && bytes > 0)) {
      line = {first, length};
      begin_ += length + (found != nullptr ? 1 : 0);
      return true;
    }
    if (at_end_) return false;
    searched = bytes;
    fill();
  }
}

void TextLines::fill() {
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
            buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  const size_t room = buffer_.size() - end_;
  const size_t got = file_.read({reinterpret_cast<uint8_t*>(buffer_.data()) + end_, room});
  at_end_ = got < room;
  end_ += got;
  read_bytes_ += static_cast<int64_t>(got);
  if (read_bytes_ > std::max(always_allowed_bytes, most_expansion * file_.stored_bytes())) {
    fail_input(
        "{}: its {} bytes expand to more than {} times as many: this is not a table, but "
        "repeated text",
        path(), file_.stored_bytes(), most_expansion);
  }
}

void TextLines::check(std::string_view line) const {
  uint8_t bits = 0;
  bool has_nul = false;
  for (const char c : line) {
    bits |= static_cast<uint8_t>(c);
    has_nul |= c == '\0';
  }
  if (has_nul) refuse("has a NUL byte, expected text");
  if (encoding_ == Encoding::utf8 && bits >= 0x80 && !is_utf8(line)) {
    refuse("is not UTF-8: {}", excerpt(line));
  }
}

}  // namespace tessera::data
