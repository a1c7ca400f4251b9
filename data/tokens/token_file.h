// Tokens in a file, memory-mapped: a text, whose bytes are the tokens, or a .bin file of uint16 as
// nanoGPT (tokens alone) and llm.c (a header of 256 int32 before them) write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::data {

class TokenFile {
 public:
  /// Throws InputError where the file is missing, empty, or not what its name and header say.
  explicit TokenFile(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }         // in tokens
  bool is_text() const { return width_ == 1; }

  /// Tokens [begin, begin + out.size()).
  void copy(int64_t begin, std::span<int32_t> out) const;

  /// Throws InputError for the first token of [begin, end) that is not below `vocab`.
  void check_vocabulary(int64_t begin, int64_t end, int64_t vocab) const;

 private:
  void skip_header();
  template <class T>
  std::span<const T> tokens() const;

  std::string path_;
  std::shared_ptr<const std::byte> bytes_;  // of the whole file
  int64_t file_bytes_ = 0;
  int64_t begin_ = 0;  // of the tokens
  int64_t width_ = 1;  // bytes a token
  int64_t size_ = 0;
};

/// A part of a file: training or validation.
struct TokenRange {
  std::shared_ptr<const TokenFile> file;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  /// Starts at which a sequence of `context` tokens and the token after it fit.
  int64_t starts(int64_t context) const { return size() - context; }
};

}  // namespace tessera::data
