// An evaluation whose exact result is known: the loss of a batch is the mean of its tokens. The
// evaluation has more batches than evaluate() adds in one all-reduce. The last batch is shorter
// than the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/random.h"
#include "data/tokens/token_file.h"
#include "tests/support/temporary_folder.h"
#include "train/evaluate.h"

namespace tessera::test {

struct TokenAverage {
  float evaluated = 0;
  float expected = 0;
};

/// Collective.
inline TokenAverage average_of_tokens(const dist::World& world) {
  constexpr int64_t windows = 9999;  // of one token each, in 5,000 batches
  RandomStream stream(1, "letters", 0);
  std::string letters;
  double sum = 0;
  for (int64_t i = 0; i < windows + 1; ++i) {  // the last letter is only a target
    letters += static_cast<char>('a' + stream.below(26));
    if (i < windows) sum += letters.back();
  }
  const TemporaryFolder folder;
  const auto file = std::make_shared<const data::TokenFile>(folder.file("letters.txt", letters));
  const train::TokenLoss mean = [](const Tensor& tokens, const Tensor&) {
    const Tensor host = tokens.to_host();
    float total = 0;
    for (int64_t i = 0; i < host.elements(); ++i) {
      total += static_cast<float>(host.data<int32_t>()[i]);
    }
    return Tensor::from({1}, std::vector<float>{total / static_cast<float>(host.elements())});
  };
  nn::Module model;
  return {.evaluated = train::evaluate(model, mean, {file, 0, windows + 1},
                                       {.context = 1, .sequences = 2}, world),
          .expected = static_cast<float>(sum / static_cast<double>(windows))};
}

}  // namespace tessera::test
