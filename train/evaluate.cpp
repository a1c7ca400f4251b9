#include "train/evaluate.h"

#include <algorithm>

#include "data/tokens/token_data.h"

namespace tessera::train {

std::vector<int64_t> evaluation_starts(const data::TokenRange& range,
                                       const EvaluationOptions& options) {
  const auto [context, batches, sequences] = options;
  TESSERA_CHECK(context >= 1 && sequences >= 1 && batches >= 0,
                "evaluate: windows of {} tokens, {} batches of {} windows", context, batches,
                sequences);
  if (range.starts(context) < 1) {
    fail_input("evaluate: {} tokens, expected more than the {} of a window", range.size(), context);
  }
  const int64_t last = range.starts(context) - 1;
  std::vector<int64_t> starts;
  if (batches == 0) {
    for (int64_t start = 0; start <= last; start += context) starts.push_back(start);
    return starts;
  }
  const int64_t windows = batches * sequences;
  for (int64_t i = 0; i < windows; ++i) {
    // In floating point because last * i may be too large for an integer.
    const double place =
        windows > 1 ? static_cast<double>(i) / static_cast<double>(windows - 1) : 0;
    starts.push_back(std::min(last, static_cast<int64_t>(place * static_cast<double>(last))));
  }
  return starts;
}

float evaluate(nn::Module& model, const TokenLoss& loss, const data::TokenRange& range,
               const EvaluationOptions& options, const dist::World& world) {
  const std::vector<int64_t> starts = evaluation_starts(range, options);
  const auto windows = static_cast<int64_t>(starts.size());
  const int64_t batches = (windows + options.sequences - 1) / options.sequences;
  const auto batch = [&](int64_t index) {
    const int64_t begin = index * options.sequences;
    const int64_t end = std::min(windows, begin + options.sequences);
    return std::span(starts).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  };

  // Each batch is computed by one rank and is zero on the others, so that the sum over ranks is
  // exact; the mean is folded in order of batches.
  std::vector<float> own(static_cast<size_t>(batches), 0.0f);
  model.eval();
  {
    NoGrad no_grad;
    for (int64_t first = 0; first < batches; first += world.size) {
      // Where parameters are sharded a forward takes all ranks: in the last round those without a
      // batch repeat one.
      const int64_t i = first + world.rank;
      const auto [tokens, targets] =
          data::read_sequences(range, batch(std::min(i, batches - 1)), options.context);
      const float value = loss(tokens, targets).item();
      if (i < batches) own[static_cast<size_t>(i)] = value;
    }
  }
  model.train();
  const Tensor sums = Tensor::from({batches}, own);
  world.communicator->all_reduce(sums, {dist::Traffic::other}).wait();
  const Tensor losses = sums.to_host();
  double sum = 0;
  for (int64_t i = 0; i < batches; ++i) {
    sum += static_cast<double>(losses.data<float>()[i]) * static_cast<double>(batch(i).size());
  }
  return static_cast<float>(sum / static_cast<double>(windows));
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
