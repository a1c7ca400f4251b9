#include <cmath>

#include "core/context.h"
#include "core/ops/convert.h"
#include "course/7_numbers/mixed.h"

namespace course {

float sum_in_order(std::span<const float> contributions) {
  float sum = 0;
  for (const float contribution : contributions) sum += contribution;
  return sum;
}

float sum_by_ranks(std::span<const float> contributions, int ranks) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) {
    float own = 0;
    for (auto m = static_cast<size_t>(r); m < contributions.size();
         m += static_cast<size_t>(ranks)) {
      own += contributions[m];
    }
    sum += own;
  }
  return sum;
}

void Mixed::allocate_state() {
  Zero3::allocate_state();
  masters_ = f32_buffer(layout_.shard_elements(), Category::optimizer_state);
}

void Mixed::place() {
  Zero3::place();
  // Zero3::place() has written the rounded initial values. The master weights get the exact values.
  for (int b = 0; b < buckets(); ++b) initialize(b, own_range(b), shard_of(masters_, b));
}

void Mixed::accumulate(const Tensor& sum, const Tensor& gradient, bool first) {
  const Tensor wide = Tensor::empty(gradient.shape());
  kernels::convert(current_context({}), wide, gradient);
  Zero3::accumulate(sum, wide, first);
}

bool Mixed::all_finite() const {
  const Tensor count = Tensor::zeros({1}, DType::i64);
  for (const Tensor& sums : own_sums()) {
    for (const float sum : sums.values<float>()) {
      count.data<int64_t>()[0] += std::isfinite(sum) ? 0 : 1;
    }
  }
  communicator_.all_reduce(count, {dist::Traffic::norms}).wait();
  return count.data<int64_t>()[0] == 0;
}

void Mixed::update() {
  if (scaling_ && !all_finite()) {
    // Every rank skips the step, even if its own sums are finite.
    loss_scale_ /= 2;
    good_steps_ = 0;
    return;
  }
  ++updates_;
  for (int b = 0; b < buckets(); ++b) {
    const Tensor masters = shard_of(masters_, b);
    apply_rule(masters, shard_of(sums_, b), shard_of(first_moment_, b),
               shard_of(second_moment_, b));
    kernels::convert(current_context({}), shard_of(values_, b), masters);
  }
  // The scale changes last, because apply_rule divides by the scale that multiplied this step's
  // loss.
  if (!scaling_ || ++good_steps_ < scaling_->growth_interval) return;
  loss_scale_ *= 2;
  good_steps_ = 0;
}

}  // namespace course
