#include "train/ratings/scoring.h"

#include <algorithm>
#include <numeric>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/pinned_tensor.h"
#include "data/ratings/rating_input.h"

namespace tessera::train {

models::RecommenderInput recommender_input(const data::RatingBatch& batch, bool penalized) {
  return {.users = batch.users,
          .items = batch.items,
          .history = batch.history,
          .history_offsets = batch.history_offsets,
          .history_scale = batch.history_scale,
          .penalized = penalized};
}

Scorer::Scorer(models::Recommender& model, const data::Histories& histories,
               const RatingEvaluationSizes& sizes)
    : model_(model),
      histories_(histories),
      sizes_(sizes),
      host_(data::allocate_rating_batch(sizes.batch(), !default_device().is_cpu())) {
  const bool on_cpu = default_device().is_cpu();
  input_ = on_cpu ? host_ : data::allocate_rating_input(sizes.batch());
  if (!sizes.shared_items) return;
  const Shape shape{1, sizes.items};
  host_items_ = on_cpu ? Tensor::empty(shape, DType::i32, Device{})
                       : pinned_tensor(shape, DType::i32, Category::activations);
  items_ = on_cpu ? host_items_ : Tensor::empty(shape, DType::i32);
}

void Scorer::load_users(std::span<const int32_t> users) {
  TESSERA_CHECK(std::ssize(users) == sizes_.samples, "scorer: {} users, expected {}", users.size(),
                sizes_.samples);
  std::copy(users.begin(), users.end(), host_.users.data<int32_t>());
  if (sizes_.longest_history == 0) return;
  for (size_t row = 0; row < users.size(); ++row) {
    data::write_history(histories_, users[row], static_cast<int64_t>(row), host_);
  }
}

Tensor Scorer::compute(const Tensor& items) {
  const NoGrad no_grad;
  models::RecommenderInput input = recommender_input(input_);
  input.items = items;
  return ops::convert(model_.score(input).scores, DType::f32).to_host();
}

std::span<const float> Scorer::pairs(std::span<const int32_t> users,
                                     std::span<const int32_t> items) {
  load_users(users);
  std::copy(items.begin(), items.end(), host_.items.data<int32_t>());
  if (!input_.users.device().is_cpu()) data::copy_batch(input_, host_);
  const Tensor scores = compute(input_.items);
  const auto values = scores.values<float>();
  scores_.assign(values.begin(), values.end());
  return scores_;
}

std::span<const float> Scorer::catalogue(std::span<const int32_t> users) {
  load_users(users);
  if (!input_.users.device().is_cpu()) data::copy_batch(input_, host_);
  const int64_t all = model_.config().items;
  scores_.resize(users.size() * static_cast<size_t>(all));
  for (int64_t begin = 0; begin < all; begin += sizes_.items) {
    // All parts of the catalogue have sizes_.items items, so the last part may overlap the previous
    // part.
    const int64_t first = std::min(begin, all - sizes_.items);
    const auto numbers = host_items_.values<int32_t>();
    std::iota(numbers.begin(), numbers.end(), static_cast<int32_t>(first));
    if (!items_.device().is_cpu()) {
      cuda::copy(items_.device().index, items_.raw(), host_items_.raw(), items_.bytes());
    }
    const Tensor scores = compute(items_);  // waits for the GPU, so host_items_ may be overwritten
    const float* from = scores.data<float>();
    for (size_t row = 0; row < users.size(); ++row, from += sizes_.items) {
      std::copy_n(from, sizes_.items, scores_.begin() + static_cast<int64_t>(row) * all + first);
    }
  }
  return scores_;
}

}  // namespace tessera::train
