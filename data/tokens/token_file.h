// Reads ranges of tokens from a file on demand. The file is a text, whose bytes are the tokens, or
// a .bin file of uint16 tokens. nanoGPT writes .bin files without a header, llm.c with a header of
// 256 int32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/text/input_file.h"

namespace tessera::data {

class TokenFile {
 public:
  /// Opens a file for a model with a vocabulary of `vocab` tokens. Throws InputError if the file is
  /// missing or empty, or does not have the format that its name and header indicate. The
  /// constructor does not read the tokens, because a file may have 60 GB of them.
  explicit TokenFile(const std::string& path, int64_t vocab = int64_t{1} << 16);

  const std::string& path() const { return file_.path(); }
  int64_t size() const { return size_; }         // in tokens
  bool is_text() const { return width_ == 1; }
  /// True if the file would be read as a text, but begins with gzip's magic number. The tokens are
  /// then compressed bytes.
  bool is_gzip() const;

  /// Copies tokens [begin, begin + out.size()) to `out`. Throws InputError for a token beyond the
  /// vocabulary, and Error if the file has become shorter.
  void copy(int64_t begin, std::span<int32_t> out) const;

 private:
  void skip_header();
  template <class T, class Body>
  void for_each_piece(int64_t begin, int64_t end, const Body& body) const;

  void check_vocabulary(int64_t begin, std::span<const int32_t> tokens) const;

  InputFile file_;
  int64_t vocab_;
  int64_t begin_ = 0;  // where the tokens begin, in bytes
  int64_t width_ = 1;  // bytes of a token
  int64_t size_ = 0;
};

/// Tokens [begin, end) of a file: the training or the validation part.
struct TokenRange {
  std::shared_ptr<const TokenFile> file;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  /// Returns the number of positions at which a sequence of `context` + 1 tokens can begin. The
  /// result is 0 or negative if the range is too short for one sequence.
  int64_t starts(int64_t context) const { return size() - context; }
};

}  // namespace tessera::data
