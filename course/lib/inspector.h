// For the checks: access to protected members of a rank's optimizer, and the bytes of host memory
// in use, by category.
#pragma once

#include "core/memory.h"
#include "course/3_data_parallel/data_parallel.h"

namespace course {

class Inspector {
 public:
  explicit Inspector(DataParallel& trainer) : trainer_(trainer) {}

  const Tensor& values() const { return trainer_.values_; }
  const Tensor& gradients() const { return trainer_.gradients_; }
  const Tensor& sums() const { return trainer_.sums_; }
  const Tensor& first_moment() const { return trainer_.first_moment_; }
  const Tensor& second_moment() const { return trainer_.second_moment_; }
  const std::vector<dist::Work>& sent() const { return trainer_.sent_; }
  int64_t updates() const { return trainer_.updates_; }
  void set_updates(int64_t updates) { trainer_.updates_ = updates; }

 private:
  DataParallel& trainer_;
};

/// Compares the host memory in use with the host memory that was in use when this object was made.
/// current() returns how many more bytes of a category are in use now. peak() returns how many more
/// bytes were in use at the peak since this object was made. The constructor resets the ledger's
/// peaks.
class MemoryUse {
 public:
  MemoryUse() {
    for (int c = 0; c < category_count; ++c) before_[c] = ledger_.current(Category(c));
    ledger_.reset_peaks();
  }
  int64_t current(Category category) const {
    return ledger_.current(category) - before_[static_cast<int>(category)];
  }
  int64_t peak(Category category) const {
    return ledger_.peak(category) - before_[static_cast<int>(category)];
  }

 private:
  MemoryLedger& ledger_ = memory_ledger({});
  int64_t before_[category_count] = {};
};

}  // namespace course
