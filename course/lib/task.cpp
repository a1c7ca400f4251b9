#include "course/lib/task.h"

#include <vector>

#include "core/random.h"

namespace course {
namespace {

constexpr models::GptConfig config{
    .layers = 4, .heads = 2, .width = 32, .context = 8, .vocab = 67, .initializer_range = 0.1f};

// Returns a sequence in which most tokens are a function of the previous token. The model can learn
// this function.
std::vector<int32_t> sequence(int64_t step, int64_t sample) {
  std::vector<int32_t> tokens;
  int32_t last = static_cast<int32_t>((step * 31 + sample * 7) % config.vocab);
  for (int64_t t = 0; t <= config.context; ++t) {
    tokens.push_back(last);
    const PhiloxCounter words = philox(
        {static_cast<uint32_t>(step), static_cast<uint32_t>(sample), static_cast<uint32_t>(t), 0},
        {1, 2});
    const bool jumps = words[0] % 8 == 0;
    last = static_cast<int32_t>(jumps ? words[1] % config.vocab : (last * 5 + 3) % config.vocab);
  }
  return tokens;
}

}  // namespace

Task::Task(DType dtype) : model_(config) { model_.to(dtype); }

Tensor Task::loss(const MicroBatch& micro) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < micro.samples; ++i) {
    const std::vector<int32_t> all = sequence(micro.step, micro.first_sample + i);
    tokens.insert(tokens.end(), all.begin(), all.end() - 1);
    targets.insert(targets.end(), all.begin() + 1, all.end());
  }
  const Shape shape{micro.samples, config.context};
  return model_.loss(Tensor::from(shape, tokens), Tensor::from(shape, targets));
}

MicroBatch micro_batch_of(int64_t step, const Batch& batch, int64_t j, int64_t rank,
                          int64_t ranks) {
  const bool contributes = rank < batch.contributors(ranks, j);
  const int64_t index = contributes ? j * ranks + rank : batch.micro_batches() - 1;
  return {.step = step,
          .index = index,
          .micro_step = j,
          .first_sample = index * batch.micro,
          .samples = batch.micro,
          .share = 1.0f / static_cast<float>(batch.micro_batches()),
          .contributes = contributes};
}

}  // namespace course
