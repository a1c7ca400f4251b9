// Lesson 7: numbers. Sums with a fixed order of additions, 16-bit parameters with f32 master
// weights, and loss scaling for f16.
#pragma once

#include <optional>
#include <span>

#include "course/6_zero3/zero3.h"
#include "optim/rules/loss_scaler.h"

namespace course {

/// Returns the sum of the contributions of micro-batches 0, 1, 2, ..., added one by one to 0.0.
float sum_in_order(std::span<const float> contributions);
/// Returns the sum that local accumulation and an all-reduce compute on N = `ranks` ranks. Rank r
/// adds the contributions of micro-batches r, r + N, r + 2N, ... one by one to 0.0. Then the sums
/// of ranks 0, 1, ... are added one by one to 0.0.
float sum_by_ranks(std::span<const float> contributions, int ranks);

/// Trains parameters in bf16 or f16 at stage 3. The update works on f32 master weights of this
/// rank's shards.
class Mixed : public Zero3 {
 public:
  /// `scaling` is set for f16, and nullopt for bf16.
  Mixed(nn::Module& model, const optim::AdamW& rule, dist::Communicator& communicator,
        int64_t bucket_bytes, std::optional<optim::LossScaling> scaling);

  float loss_scale() const { return loss_scale_; }

 protected:
  void allocate_state() override;
  void place() override;
  void accumulate(const Tensor& sum, const Tensor& gradient, bool first) override;
  void update() override;

 private:
  friend class MixedInspector;
  /// True if no gradient sum of any rank is infinite or NaN. Collective.
  bool all_finite() const;
  /// Returns the elements of sums_ that belong to parameters. The gaps between parameters, which
  /// may have any values, are left out.
  std::vector<Tensor> own_sums() const;

  std::optional<optim::LossScaling> scaling_;
  Tensor masters_;  // f32: this rank's shards of all weights
  int64_t good_steps_ = 0;
};

}  // namespace course
