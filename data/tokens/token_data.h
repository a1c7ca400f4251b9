// Reads the sequences that a model trains on, and the sequences that it is evaluated on.
//
//   TokenData data({.path = "shakespeare.txt", .context = 64, .vocab = 256, .seed = 1,
//                   .global_batch = 12});
//   auto [tokens, targets] = data.read(micro);       // i32 (B, T) each
//
// A sequence is context + 1 consecutive tokens: the first `context` tokens are the input, the last
// `context` the targets. An epoch cuts the training part into windows and visits each window once,
// in a shuffled order. For given data, context and global batch, sample i of a step depends only on
// (seed, step, i).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/micro_batch.h"
#include "core/tensor.h"
#include "data/tokens/token_file.h"

namespace tessera::data {

struct TokenDataOptions {
  std::string path = {};
  std::string validation_path = {};  // empty: the last 10 % of `path`
  int64_t context = 0;
  int64_t vocab = 0;
  uint64_t seed = 0;
  int64_t global_batch = 1;  // samples in a step; steps with more are refused
  bool trains = true;        // true: the training part must hold at least one sequence
  bool evaluates = true;     // true: the validation part must hold at least one sequence
};

struct Sequences {
  Tensor tokens;   // i32 (B, T)
  Tensor targets;  // i32 (B, T): for each token, the token after it
};

/// Reads the sequences that begin at `starts` onto the default device. Starts are positions
/// relative to the beginning of the range.
Sequences read_sequences(const TokenRange& range, std::span<const int64_t> starts, int64_t context);
/// Reads the sequences at `starts` into host memory `into`, which has a row for each sequence.
/// Throws for another number of rows.
void read_sequences(const TokenRange& range, std::span<const int64_t> starts,
                    const Sequences& into);

class TokenData {
 public:
  /// Throws InputError if TokenFile refuses a file. With `trains`, also throws if the training part
  /// is shorter than a sequence, and with `evaluates` if the validation part is.
  explicit TokenData(const TokenDataOptions& options);

  /// Reads a micro-batch's sequences onto the default device. Throws InputError for a token beyond
  /// the vocabulary, and Error for a sample beyond the global batch.
  Sequences read(const MicroBatch& micro) const;
  /// Reads a micro-batch's sequences into host memory `into`.
  void read(const MicroBatch& micro, const Sequences& into) const;
  /// Returns the position in the training part at which sample `sample` of a step begins.
  /// Throws for a sample beyond the global batch.
  int64_t start_of(int64_t step, int64_t sample) const;

  const TokenRange& training() const { return training_; }
  const TokenRange& validation() const { return validation_; }

 private:
  std::vector<int64_t> starts_of(const MicroBatch& micro) const;
  void check_length(const TokenRange& range, const char* part, const char* advice) const;

  TokenDataOptions options_;
  TokenRange training_;
  TokenRange validation_;
};

}  // namespace tessera::data
