// Tests that a recommender's peaks of activations and workspace equal the predictions of
// models/recommender/recommender_memory.h to the byte, in training and in evaluation. Varies
// models, objectives, precision, numbers of items and threads.
#include "models/recommender/recommender_memory.h"

#include <array>

#include "core/autograd.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

using models::RecommenderConfig;
using models::RecommenderInput;
using models::RecommenderMemory;
using models::RecommenderMicroBatch;
using models::RecommenderObjective;

Tensor numbers(const Shape& shape, int64_t below) {
  const Tensor result = Tensor::empty(shape, DType::i32);
  int32_t next = 1;
  for (int32_t& value : result.values<int32_t>()) {
    value = next % static_cast<int32_t>(below);
    next = next * 7 + 3;
    next %= 10007;
  }
  return result;
}

RecommenderInput input_of(const RecommenderConfig& config, const RecommenderMicroBatch& micro) {
  RecommenderInput input{
      .users = numbers({micro.samples}, config.users),
      .items = numbers({micro.shared_items ? 1 : micro.samples, micro.items}, config.items)};
  input.penalized = micro.l2 > 0;
  if (!config.reads_histories()) return input;
  input.history = numbers({micro.history_places}, config.items);
  input.history_offsets = Tensor::empty({micro.samples + 1}, DType::i32);
  int32_t offset = 0;
  for (int32_t& value : input.history_offsets.values<int32_t>()) {
    value = std::min(offset, static_cast<int32_t>(micro.history_places));
    offset += 2;
  }
  input.history_scale = Tensor::full({micro.samples}, 0.5f);
  return input;
}

/// Returns the peaks of body(model, input), without the bytes of the input.
template <class Body>
RecommenderMemory measured(const RecommenderConfig& config, const RecommenderMicroBatch& micro,
                           Body&& body) {
  const auto model = models::recommender(config);
  model->to(micro.dtype);
  nn::materialize(*model);
  const RecommenderInput input = input_of(config, micro);
  MemoryLedger& ledger = memory_ledger();
  const auto current = [&ledger] {
    return std::array{ledger.current(Category::activations), ledger.current(Category::workspace)};
  };
  const std::array before = current();
  ledger.reset_peaks();
  body(*model, input);
  CHECK(current() == before);
  return {ledger.peak(Category::activations) - before[0],
          ledger.peak(Category::workspace) - before[1]};
}

void check_training(const RecommenderConfig& config, const RecommenderMicroBatch& micro) {
  const Tensor targets = random_tensor({micro.samples, micro.items}, 3, 0, 1);
  const auto actual = measured(config, micro, [&](auto& model, const RecommenderInput& input) {
    const Tensor loss =
        models::recommender_loss(model.score(input), targets, micro.objective, micro.l2);
    backward(loss);
  });
  const RecommenderMemory expected = models::recommender_training_memory(config, micro);
  CHECK(actual.activations == expected.activations);
  CHECK(actual.workspace == expected.workspace);
}

void check_evaluation(const RecommenderConfig& config, const RecommenderMicroBatch& micro) {
  const auto actual = measured(config, micro, [](auto& model, const RecommenderInput& input) {
    const NoGrad no_grad;
    ops::convert(model.score(input).scores, DType::f32);
  });
  const RecommenderMemory expected = models::recommender_evaluation_memory(config, micro);
  CHECK(actual.activations == expected.activations);
  CHECK(actual.workspace == expected.workspace);
}

void check_all(const RecommenderConfig& config, DType dtype, int64_t samples) {
  for (const int64_t items : {1, 2, 5}) {
    for (const auto objective :
         {RecommenderObjective::rating, RecommenderObjective::bce, RecommenderObjective::bpr}) {
      if (objective == RecommenderObjective::bpr && items == 1) continue;
      for (const float l2 : {0.0f, 0.01f}) {
        const RecommenderMicroBatch micro{.dtype = dtype,
                                          .samples = samples,
                                          .items = items,
                                          .history_places = 2 * samples + 3,
                                          .objective = objective,
                                          .l2 = l2};
        CAPTURE(config.name, dtype_name(dtype), samples, items, static_cast<int>(objective), l2,
                thread_count());
        check_training(config, micro);
      }
    }
  }
  for (const bool shared : {false, true}) {
    const RecommenderMicroBatch micro{.dtype = dtype,
                                      .samples = samples,
                                      .items = 7,
                                      .shared_items = shared,
                                      .history_places = 2 * samples + 3};
    CAPTURE(config.name, dtype_name(dtype), samples, shared, thread_count());
    check_evaluation(config, micro);
  }
}

TEST_CASE("a recommender's activations and workspace equal the formula") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  const ThreadCountRestorer restore;
  for (const std::string& name : models::recommender_names()) {
    for (const int threads : {1, 2}) {
      if (threads > 1 && !on_cpu()) continue;  // threads do not change a GPU's kernels
      set_thread_count(threads);
      check_all({.name = name, .users = 11, .items = 23, .factors = 6, .hidden = {8, 6, 5, 3}},
                dtype, 4);
      // With so few samples even the scalars of the loss show in the peak.
      for (const int64_t samples : {1, 2}) {
        check_all({.name = name, .users = 5, .items = 4, .factors = 2, .hidden = {4, 2}}, dtype,
                  samples);
      }
      check_all({.name = name, .users = 300, .items = 5, .factors = 33, .hidden = {66, 5}}, dtype,
                130);
    }
  }
}

}  // namespace
}  // namespace tessera::test
