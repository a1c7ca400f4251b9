#include "data/tokens/token_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "core/error.h"

namespace tessera::data {
namespace {

// The header of llm.c's token files. llm.c's scripts for Llama 3 write another magic number and
// tokens of four bytes.
constexpr int64_t header_bytes = 1024;
constexpr int32_t header_magic = 20240520;
constexpr int32_t header_magic_u32 = 20240801;
constexpr int32_t header_version = 1;

}  // namespace

TokenFile::TokenFile(const std::string& path, int64_t vocab) : file_(path), vocab_(vocab) {
  if (file_.size() == 0) fail_input("{}: is empty", path);
  if (std::filesystem::path(path).extension() == ".bin") {
    width_ = 2;
    skip_header();
  }
  const int64_t token_bytes = file_.size() - begin_;
  if (token_bytes % width_ != 0) {
    fail_input("{}: has {} bytes of tokens, expected an even number (uint16)", path, token_bytes);
  }
  size_ = token_bytes / width_;
}

bool TokenFile::is_gzip() const { return is_text() && has_gzip_magic(file_, 0); }

void TokenFile::skip_header() {
  if (file_.size() < 4) return;
  int32_t magic = 0;
  file_.read_at(0, &magic, sizeof(magic));
  if (magic == header_magic_u32) {
    fail_input("{}: has llm.c's header for tokens of 4 bytes, expected uint16 tokens", path());
  }
  // A file of GPT-2 tokens without a header cannot begin with the magic number: its first two bytes
  // would be token 55432, which is beyond GPT-2's vocabulary.
  if (magic != header_magic) return;
  if (file_.size() < header_bytes) {
    fail_input("{}: begins like llm.c's header of {} bytes, but has {} bytes", path(), header_bytes,
               file_.size());
  }
  std::array<int32_t, 3> header{};
  file_.read_at(0, header.data(), sizeof(header));
  if (header[1] != header_version) {
    fail_input("{}: llm.c's header has version {}, expected {}", path(), header[1], header_version);
  }
  begin_ = header_bytes;
  if (header[2] < 0 || int64_t{header[2]} * width_ != file_.size() - header_bytes) {
    fail_input("{}: llm.c's header says {} tokens, but {} bytes follow, which hold {}", path(),
               header[2], file_.size() - header_bytes, (file_.size() - header_bytes) / width_);
  }
}

// Calls body(first, tokens) for tokens [begin, end), piece by piece. The file is not mapped: if a
// mapped file were truncated meanwhile, SIGBUS would end the process.
template <class T, class Body>
void TokenFile::for_each_piece(int64_t begin, int64_t end, const Body& body) const {
  constexpr int64_t most = int64_t{1} << 18;
  std::vector<T> piece(static_cast<size_t>(std::min(most, end - begin)));
  for (int64_t first = begin; first < end; first += most) {
    const auto tokens = std::span(piece).first(static_cast<size_t>(std::min(most, end - first)));
    file_.read_at(begin_ + first * width_, tokens.data(), tokens.size_bytes());
    body(first, std::span<const T>(tokens));
  }
}

void TokenFile::copy(int64_t begin, std::span<int32_t> out) const {
  const int64_t end = begin + std::ssize(out);
  TESSERA_CHECK(begin >= 0 && std::ssize(out) <= size_ - begin,
                "{}: tokens [{}, {}) are outside its {} tokens", path(), begin, end, size_);
  const auto copy_piece = [&](int64_t first, auto tokens) {
    std::ranges::copy(tokens, out.begin() + (first - begin));
  };
  if (width_ == 1) {
    for_each_piece<uint8_t>(begin, end, copy_piece);
  } else {
    for_each_piece<uint16_t>(begin, end, copy_piece);
  }
  check_vocabulary(begin, out);
}

void TokenFile::check_vocabulary(int64_t begin, std::span<const int32_t> tokens) const {
  const auto found =
      std::ranges::find_if(tokens, [this](int32_t token) { return token >= vocab_; });
  if (found == tokens.end()) return;
  fail_input("{}: token {} at position {} is beyond the model's vocabulary of {}", path(), *found,
             begin + (found - tokens.begin()), vocab_);
}

}  // namespace tessera::data
