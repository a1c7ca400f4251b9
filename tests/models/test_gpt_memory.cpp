// Tests that a GPT's peaks of activations and workspace equal the predictions of
// models/gpt/gpt_memory.h to the byte. Varies precision, recompute, dropout, depth, threads, and
// the chunks of rows in which logits are computed.
#include "core/autograd.h"
#include "core/context.h"
#include "core/cpu/onednn.h"
#include "core/memory.h"
#include "core/random.h"
#include "models/gpt/gpt_memory.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

struct Run {
  models::GptConfig config;
  DType dtype = DType::f32;
  int64_t sequences = 2;
  int64_t tokens = 0;  // per sequence, at most the context
};

Tensor some_tokens(const Run& run) {
  const Tensor tokens = Tensor::empty({run.sequences, run.tokens}, DType::i32);
  int32_t next = 1;
  for (int32_t& token : tokens.values<int32_t>()) {
    token = next;
    next = (next * 7 + 3) % static_cast<int32_t>(run.config.vocab);
  }
  return tokens;
}

models::GptMemory since_reset(const std::array<int64_t, 2>& before) {
  return {memory_ledger().peak(Category::activations) - before[0],
          memory_ledger().peak(Category::workspace) - before[1]};
}

template <class Body>
models::GptMemory measured(const Run& run, Body&& body) {
  models::Gpt model(run.config);
  model.to(run.dtype);
  nn::materialize(model);
  const std::array<int64_t, 2> before = {memory_ledger().current(Category::activations),
                                         memory_ledger().current(Category::workspace)};
  memory_ledger().reset_peaks();
  {
    const Tensor tokens = some_tokens(run);
    const Tensor targets = some_tokens(run);
    body(model, tokens, targets);
  }
  CHECK(memory_ledger().current(Category::activations) == before[0]);
  CHECK(memory_ledger().current(Category::workspace) == before[1]);
  return since_reset(before);
}

void check_training(const Run& run) {
  CAPTURE(dtype_name(run.dtype), run.config.layers, run.config.width, run.config.vocab,
          run.config.dropout, run.config.recompute, run.sequences, run.tokens, thread_count());
  const auto actual = measured(run, [](auto& model, const auto& tokens, const auto& targets) {
    dropout_state() = {.step = 0};
    backward(model.loss(tokens, targets));
    dropout_state() = {};
  });
  const auto expected =
      models::gpt_training_memory(run.config, run.dtype, run.sequences, run.tokens);
  CHECK(actual.activations == expected.activations);
  CHECK(actual.workspace == expected.workspace);
}

void check_evaluation(const Run& run) {
  CAPTURE(dtype_name(run.dtype), run.config.layers, run.config.width, run.config.vocab,
          run.sequences, run.tokens);
  const auto actual = measured(run, [](auto& model, const auto& tokens, const auto& targets) {
    const NoGrad no_grad;
    model.eval();
    model.loss(tokens, targets);
  });
  const auto expected =
      models::gpt_evaluation_memory(run.config, run.dtype, run.sequences, run.tokens);
  CHECK(actual.activations == expected.activations);
  CHECK(actual.workspace == expected.workspace);
}

models::GptConfig small(int64_t layers, int64_t vocab, float dropout, bool recompute) {
  models::GptConfig config{.layers = layers, .heads = 2, .width = 24, .context = 80,
                           .vocab = vocab, .dropout = dropout};
  config.recompute = recompute;
  return config;
}

TEST_CASE("a GPT's activations and workspace equal the formula") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  const bool recompute = GENERATE(false, true);
  const int before = thread_count();
  for (const int threads : {1, 2}) {
    if (threads > 1 && !on_cpu()) continue;  // threads do not change a GPU's kernels
    set_thread_count(threads);
    for (const float dropout : {0.0f, 0.1f}) {
      for (const int64_t layers : {1, 2, 5}) {
        for (const auto& [sequences, tokens] : {std::pair{1, 1}, {2, 7}, {3, 80}}) {
          if (tokens == 80 && layers == 5 && !on_cpu()) continue;  // slow on the emulated device
          const auto config = small(layers, 37, dropout, recompute);
          check_training({config, dtype, sequences, tokens});
          check_evaluation({config, dtype, sequences, tokens});
        }
      }
    }
  }
  set_thread_count(before);
}

TEST_CASE("the formula of a GPT's memory holds for logits in several chunks of rows") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  for (const int64_t vocab : {8000, 37}) {
    auto config = small(1, vocab, 0, false);
    config.width = 4;
    config.loss_chunk_rows = 20;  // three chunks for the 48 rows
    check_training({config, dtype, 3, 16});
    check_evaluation({config, dtype, 3, 16});
  }
}

TEST_CASE("the formula of a GPT's memory holds if attention needs the most workspace", "[cpu]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  const int64_t tokens = GENERATE(130, 512, 600, 1150);
  const models::GptConfig config{.layers = 1, .heads = 3, .width = 6, .context = tokens,
                                 .vocab = 5};
  const Run run{config, dtype, 1, tokens};
  const auto expected = [&] {
    return *models::gpt_training_memory(config, dtype, run.sequences, tokens).workspace;
  };
  const ThreadCountRestorer restore;
  set_thread_count(1);
  const int64_t alone = expected();
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    CHECK(expected() == threads * alone);  // each thread has a workspace for attention
    for (int repeat = 0; repeat < 3; ++repeat) {
      check_training(run);
      check_evaluation(run);
    }
  }
}

TEST_CASE("the memory of a GPT with the longest context is soon known", "[cpu]") {
  // Such a context has 4 * 10^9 blocks of scores. To visit all of them would take hours.
  const models::GptConfig config{
      .layers = 1, .heads = 1, .width = 64, .context = models::GptLimits::context, .vocab = 5};
  const auto memory = models::gpt_training_memory(config, DType::f32, 1, config.context);
  // GELU's output, which backward recomputes, has 4 * width values per token.
  CHECK(*memory.workspace >= 4 * config.context * 4 * config.width);
}

TEST_CASE("recompute at least halves the activations of a GPT of six blocks") {
  models::GptConfig config = models::GptConfig::preset("micro");
  const int64_t kept = models::gpt_training_memory(config, DType::f32, 12, 256).activations;
  config.recompute = true;
  const int64_t again = models::gpt_training_memory(config, DType::f32, 12, 256).activations;
  CHECK(2 * again <= kept);
}

TEST_CASE("a step has far fewer products than the cache keeps", "[cpu]") {
  const Run run{.config = {.layers = 2, .heads = 2, .width = 64, .context = 1000, .vocab = 300},
                .tokens = 1000};
  const int64_t before = cpu::onednn::kept_products();
  measured(run, [](auto& model, const auto& tokens, const auto& targets) {
    backward(model.loss(tokens, targets));
  });
  CHECK(cpu::onednn::kept_products() - before < cpu::onednn::most_primitives / 4);
}

}  // namespace
}  // namespace tessera::test
