#include "train/evaluate.h"

#include <algorithm>

#include "core/text/number_text.h"
#include "data/tokens/token_data.h"

namespace tessera::train {

namespace {

// Maximum number of losses in one all-reduce. This limit bounds the memory of an evaluation.
constexpr int64_t most_at_once = 4096;

}  // namespace

EvaluationWindows::EvaluationWindows(const data::TokenRange& range,
                                     const EvaluationOptions& options)
    : options_(options) {
  const auto [context, batches, sequences] = options;
  TESSERA_CHECK(
      context >= 1 && sequences >= 1 && batches >= 0,
      "evaluate: windows of {} tokens, {} batches of {} windows, expected at least 1, 0 and 1",
      context, batches, sequences);
  if (range.starts(context) < 1) {
    fail_input("evaluate: {} tokens, expected more than the {} of a window", range.size(), context);
  }
  last_ = range.starts(context) - 1;
  count_ = last_ / context + 1;
  if (batches > 0) {
    TESSERA_CHECK(!__builtin_mul_overflow(batches, sequences, &count_),
                  "evaluate: {} batches of {} windows are too many", batches, sequences);
  }
}

int64_t EvaluationWindows::start(int64_t window) const {
  if (options_.batches == 0) return window * options_.context;
  // Computed in floating point, because last_ * window may overflow an integer.
  const double place =
      count_ > 1 ? static_cast<double>(window) / static_cast<double>(count_ - 1) : 0;
  return std::min(last_, static_cast<int64_t>(place * static_cast<double>(last_)));
}

int64_t EvaluationWindows::windows_of(int64_t batch) const {
  return std::min(options_.sequences, count_ - batch * options_.sequences);
}

std::vector<int64_t> EvaluationWindows::starts_of(int64_t batch) const {
  std::vector<int64_t> starts(static_cast<size_t>(windows_of(batch)));
  const int64_t first = batch * options_.sequences;
  for (int64_t i = 0; i < std::ssize(starts); ++i) {
    starts[static_cast<size_t>(i)] = start(first + i);
  }
  return starts;
}

float evaluate(nn::Module& model, const TokenLoss& loss, const data::TokenRange& range,
               const EvaluationOptions& options, const dist::World& world) {
  const EvaluationWindows windows(range, options);
  const int64_t batches = windows.batches();
  double sum = 0;
  const nn::Evaluating evaluating(model);
  for (int64_t begin = 0; begin < batches; begin += most_at_once) {
    const int64_t end = std::min(batches, begin + most_at_once);
    // For each batch, one rank contributes the loss and the other ranks contribute 0, so the sum
    // over ranks is exact. Every rank then adds the losses in the order of the batches, so the
    // result has the same bits for any number of ranks.
    std::vector<float> own(static_cast<size_t>(end - begin), 0.0f);
    for (int64_t first = begin; first < end; first += world.size) {
      const NoGrad no_grad;
      // With sharded parameters, a forward pass is collective. In the last round, ranks without a
      // batch therefore repeat the last batch.
      const int64_t i = first + world.rank;
      const auto [tokens, targets] =
          data::read_sequences(range, windows.starts_of(std::min(i, end - 1)), options.context);
      const float value = loss(tokens, targets).item();
      if (i < end) own[static_cast<size_t>(i - begin)] = value;
    }
    const Tensor sums = Tensor::from({end - begin}, own);
    world.communicator->all_reduce(sums, {dist::Traffic::other}).wait();
    const Tensor losses = sums.to_host();
    for (int64_t i = begin; i < end; ++i) {
      sum += static_cast<double>(losses.data<float>()[i - begin]) *
             static_cast<double>(windows.windows_of(i));
    }
  }
  return without_nan_sign(static_cast<float>(sum / static_cast<double>(windows.count())));
}

float evaluate(models::Gpt& model, const data::TokenRange& range, EvaluationOptions options,
               const dist::World& world) {
  options.context = model.config().context;
  const TokenLoss loss = [&](const Tensor& tokens, const Tensor& targets) {
    return model.loss(tokens, targets);
  };
  return evaluate(model, loss, range, options, world);
}

}  // namespace tessera::train
