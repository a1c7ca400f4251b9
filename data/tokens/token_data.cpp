#include "data/tokens/token_data.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"
#include "core/text/number_text.h"

namespace tessera::data {
namespace {

TokenRange whole(const std::string& path, int64_t vocab) {
  auto file = std::make_shared<const TokenFile>(path, vocab);
  const int64_t size = file->size();
  return {std::move(file), 0, size};
}

}  // namespace

Sequences read_sequences(const TokenRange& range, std::span<const int64_t> starts,
                         int64_t context) {
  const auto rows = static_cast<int64_t>(starts.size());
  // If the default device is a GPU, the host tensors are scratch: they are freed on return.
  const Category category = default_device().is_cpu() ? Category::activations : Category::workspace;
  Sequences result{Tensor::empty({rows, context}, DType::i32, Device{}, category),
                   Tensor::empty({rows, context}, DType::i32, Device{}, category)};
  read_sequences(range, starts, result);
  return {result.tokens.to(default_device()), result.targets.to(default_device())};
}

void read_sequences(const TokenRange& range, std::span<const int64_t> starts,
                    const Sequences& into) {
  TESSERA_CHECK(
      into.tokens.size(0) == std::ssize(starts) && into.targets.size(0) == std::ssize(starts),
      "tokens: {} read into a batch of {}", counted(std::ssize(starts), "sequence"),
      into.tokens.size(0));
  for (int64_t row = 0; row < std::ssize(starts); ++row) {
    const int64_t begin = range.begin + starts[static_cast<size_t>(row)];
    range.file->copy(begin, into.tokens.rows(row, row + 1).values<int32_t>());
    range.file->copy(begin + 1, into.targets.rows(row, row + 1).values<int32_t>());
  }
}

TokenData::TokenData(const TokenDataOptions& options) : options_(options) {
  TESSERA_CHECK(options.context >= 1,
                "tokens: TokenDataOptions::context is {}, expected at least 1", options.context);
  training_ = whole(options.path, options.vocab);
  if (options.trains) check_length(training_, "the data", "");
  if (options.validation_path.empty()) {
    validation_ = training_;
    training_.end = training_.size() * 9 / 10;
    validation_.begin = training_.end;
    if (options.trains) {
      check_length(training_, "the training part, the first 90 %,",
                   "; or give separate validation data");
    }
  } else {
    validation_ = whole(options.validation_path, options.vocab);
  }
  if (options.evaluates) {
    check_length(validation_, "the validation part",
                 "; or give other validation data, or turn evaluation off");
  }
}

void TokenData::check_length(const TokenRange& range, const char* part, const char* advice) const {
  if (range.starts(options_.context) >= 1) return;
  fail_input("{}: {} has {} tokens, expected at least one sequence: a context of {} tokens and "
             "the token after it{}",
             range.file->path(), part, range.size(), options_.context, advice);
}

int64_t TokenData::start_of(int64_t step, int64_t sample) const {
  TESSERA_CHECK(sample >= 0 && sample < options_.global_batch,
                "tokens: sample {} of a step is asked for, but TokenDataOptions::global_batch is "
                "{}; give the global batch of the steps",
                sample, options_.global_batch);
  // An epoch cuts the training part into a grid of windows of `context` tokens, and visits every
  // window once, in a shuffled order. Each epoch draws a new order and a new first position of the
  // grid, so that its windows begin at new positions.
  const int64_t starts = training_.starts(options_.context);
  const int64_t windows = std::max<int64_t>(1, starts / options_.context);
  const int64_t index = step * options_.global_batch + sample;
  const auto epoch = static_cast<uint64_t>(index / windows);
  RandomStream stream(options_.seed, "grid of an epoch", epoch);
  const auto free = static_cast<uint64_t>(starts - (windows - 1) * options_.context);
  const uint64_t window =
      permuted(static_cast<uint64_t>(index % windows), static_cast<uint64_t>(windows),
               options_.seed, "order of an epoch", epoch);
  return static_cast<int64_t>(stream.below(free) +
                              window * static_cast<uint64_t>(options_.context));
}

std::vector<int64_t> TokenData::starts_of(const MicroBatch& micro) const {
  std::vector<int64_t> starts(static_cast<size_t>(micro.samples));
  for (int64_t i = 0; i < micro.samples; ++i) {
    starts[static_cast<size_t>(i)] = start_of(micro.step, micro.first_sample + i);
  }
  return starts;
}

Sequences TokenData::read(const MicroBatch& micro) const {
  return read_sequences(training_, starts_of(micro), options_.context);
}

void TokenData::read(const MicroBatch& micro, const Sequences& into) const {
  for (const Tensor& tensor : {into.tokens, into.targets}) {
    TESSERA_CHECK(tensor.rank() == 2 && tensor.size(1) == options_.context,
                  "tokens: a batch has shape {}, expected sequences of {} tokens, which is "
                  "TokenDataOptions::context",
                  tensor.shape(), options_.context);
  }
  read_sequences(training_, starts_of(micro), into);
}

}  // namespace tessera::data
