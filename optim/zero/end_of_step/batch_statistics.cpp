#include "optim/zero/end_of_step/batch_statistics.h"

#include <utility>

#include "core/ops/copy.h"
#include "core/ops/fill.h"
#include "optim/kernels/fold_statistics.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

BatchStatistics::BatchStatistics(std::shared_ptr<dist::Communicator> communicator)
    : communicator_(std::move(communicator)) {}

// Removes the hooks, because they capture `this` and the statistics may outlive this object.
BatchStatistics::~BatchStatistics() {
  for (const auto& [name, statistics] : statistics_) {
    statistics->observed = nullptr;
    statistics->parts = {};
  }
}

// Only checks and allocates, because ZeroEngine::add calls prepare() before it knows whether every
// rank succeeds.
BatchStatistics::Addition BatchStatistics::prepare(
    std::vector<nn::NamedStatistics> statistics) const {
  if (statistics.empty()) return {};
  const nn::RunningStatistics& first =
      *(statistics_.empty() ? statistics : statistics_)[0].statistics;
  int64_t values = values_;
  for (const auto& [name, added] : statistics) {
    TESSERA_CHECK(!added->observed,
                  "optimizer: the running statistics of '{}' already belong to an optimizer", name);
    TESSERA_CHECK(added->momentum == first.momentum,
                  "optimizer: the running statistics of '{}' have momentum {}, those of earlier "
                  "batch norms {}; expected the same for all",
                  name, added->momentum, first.momentum);
    values += 2 * added->mean.elements();
  }
  return {.statistics = std::move(statistics),
          .running = flat_buffer(*communicator_, values, DType::f32, Category::parameters),
          .current = flat_buffer(*communicator_, values + 1, DType::f32, Category::communication)};
}

void BatchStatistics::add(Addition addition, bool synchronized) {
  // With one rank there is nothing to synchronize.
  synchronized_ = synchronized && communicator_->size() > 1;
  if (addition.statistics.empty()) return;
  for (auto& named : addition.statistics) statistics_.push_back(std::move(named));
  // `before` keeps the old buffer alive until attach() has copied the earlier statistics out of it.
  const Tensor before = std::exchange(running_, addition.running);
  current_ = addition.current;
  values_ = running_.elements();
  attach();
}

void BatchStatistics::attach() {
  // The number of values has changed, so begin_step() must allocate the slots of observed_ anew. A
  // slot stores the statistics of one micro-step.
  observed_ = {};
  micro_steps_ = 0;
  // The last value marks a micro-batch with data. keep() copies this mark into the slot.
  kernels::fill(current_context(current_.device()), current_.flat(values_, values_ + 1), 1.0f);
  observations_.assign(statistics_.size(), 0);
  int64_t offset = 0;
  for (size_t i = 0; i < statistics_.size(); ++i) {
    const auto& statistics = statistics_[i].statistics;
    const bool has_values = statistics->mean.allocated();
    // These views keep the old memory alive until the copies below.
    const Tensor mean = has_values ? statistics->mean.detach() : Tensor{};
    const Tensor variance = has_values ? statistics->variance.detach() : Tensor{};
    statistics->attach(running_.storage(), offset * dtype_size(DType::f32));
    if (has_values) {
      statistics->mean.copy_from(mean);
      statistics->variance.copy_from(variance);
    } else {
      statistics->reset();
    }
    statistics->observed = [this, i, offset](const Tensor& batch_mean,
                                             const Tensor& batch_variance) {
      observe(i, offset, batch_mean, batch_variance);
    };
    if (synchronized_) {
      const auto sum = [this](const Tensor& values) {
        // Waits here, because the next operation of the norm reads the sum.
        communicator_->all_reduce(values, {dist::Traffic::statistics}).wait();
      };
      statistics->parts = {.count = communicator_->size(), .sum = sum};
    }
    offset += 2 * statistics->mean.elements();
  }
}

void BatchStatistics::observe(size_t index, int64_t offset, const Tensor& mean,
                              const Tensor& variance) {
  ++observations_[index];
  const Context context = current_context(current_.device());
  // Layout of a norm's values: the means of all channels, then the variances.
  const int64_t middle = offset + mean.elements();
  kernels::copy(context, current_.flat(offset, middle), mean);
  kernels::copy(context, current_.flat(middle, middle + variance.elements()), variance);
}

void BatchStatistics::begin_micro_step() { observations_.assign(statistics_.size(), 0); }

void BatchStatistics::check_observed() const {
  for (size_t i = 0; i < statistics_.size(); ++i) {
    TESSERA_CHECK(!fixed_[i] || observations_[i] == 0,
                  "optimizer: the batch norm '{}' was in evaluation mode when the step began, but "
                  "then used in training mode; its mode may change only between steps",
                  statistics_[i].name);
    TESSERA_CHECK(fixed_[i] || observations_[i] == 1,
                  "optimizer: the forward of a micro-batch used the batch norm '{}' {} times in "
                  "training mode; its running statistics need exactly one use in this mode, unless "
                  "its weight and bias are frozen (set_trainable) before the optimizer is made and "
                  "it is in evaluation mode (eval) before the step begins",
                  statistics_[i].name, observations_[i]);
  }
}

void BatchStatistics::begin_step(int64_t micro_steps) {
  fixed_.clear();
  for (const auto& [name, statistics] : statistics_) {
    fixed_.push_back(statistics->is_fixed());
  }
  if (values_ == 0 || synchronized_) return;
  if (micro_steps_ != micro_steps) {
    observed_ = {};  // freed before the new slots are allocated
    const int64_t slots = communicator_->size() * micro_steps;
    observed_ = flat_buffer(*communicator_, slots * (values_ + 1), DType::f32,
                            Category::communication);
    micro_steps_ = micro_steps;
  }
  // Zeroes this rank's slots. The last value of a slot then stays 0 unless keep() writes the slot.
  const int64_t own = micro_steps * (values_ + 1);
  const int64_t begin = communicator_->rank() * own;
  kernels::fill(current_context(observed_.device()), observed_.flat(begin, begin + own), 0.0f);
}

void BatchStatistics::keep(int64_t micro_step) {
  if (values_ == 0 || synchronized_) return;
  // Slots are ordered by rank first, so that a rank's slots are one piece of the all_gather.
  const int64_t slot = communicator_->rank() * micro_steps_ + micro_step;
  kernels::copy(current_context(observed_.device()),
                observed_.flat(slot * (values_ + 1), (slot + 1) * (values_ + 1)), current_);
}

void BatchStatistics::gather() {
  // Synchronized norms have the same statistics on every rank, so there is nothing to gather.
  if (values_ == 0 || synchronized_) return;
  communicator_->all_gather(observed_, {dist::Traffic::statistics}).wait();
}

void BatchStatistics::fold(int64_t micro_batches, const StepScalars* scalars) {
  if (values_ == 0) return;
  StatisticsFold fold{.momentum = statistics_[0].statistics->momentum};
  // Synchronized norms have one set of statistics for the whole batch. In this case `fold` keeps
  // its defaults: one rank with one micro-batch.
  if (!synchronized_) {
    fold.ranks = communicator_->size();
    fold.micro_steps = micro_steps_;
    fold.micro_batches = micro_batches;
  }
  // The kernel also changes the values of fixed statistics. So these values are saved in current_
  // before the kernel runs, and restored after it. Their places in current_ are free, because no
  // micro-batch has observed fixed statistics.
  copy_fixed(current_, running_);
  // Every rank adds the same values in the same order, so running statistics are equal on all
  // ranks.
  kernels::fold_statistics(current_context(running_.device()), running_,
                           synchronized_ ? current_ : observed_, fold, scalars);
  copy_fixed(running_, current_);
}

void BatchStatistics::copy_fixed(const Tensor& to, const Tensor& from) const {
  int64_t begin = 0;
  int64_t end = 0;
  const auto copy = [&] {
    if (begin == end) return;
    kernels::copy(current_context(to.device()), to.flat(begin, end), from.flat(begin, end));
  };
  // The values of consecutive fixed norms are copied together.
  for (size_t i = 0; i < statistics_.size(); ++i) {
    const int64_t values = 2 * statistics_[i].statistics->mean.elements();
    if (fixed_[i]) {
      end += values;
      continue;
    }
    copy();
    begin = end += values;
  }
  copy();
}

}  // namespace tessera::optim
