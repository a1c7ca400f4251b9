// A list of distinct rows in ascending order, so that the rows of each owner are consecutive. Each
// row has a slot (optim/tables/row_slots.h).
#pragma once

#include <span>

#include "core/tensor.h"
#include "dist/row_layout.h"

namespace tessera::optim {

class SortedRows {
 public:
  SortedRows() = default;
  /// Takes bytes(capacity) of host memory, and 8 * capacity bytes on `device` if it is a GPU.
  SortedRows(int64_t capacity, Device device);
  static int64_t bytes(int64_t capacity) { return 24 * capacity; }

  /// Sorts `rows`. The slot of rows[i] is first_slot + i. Leaves out rows[i] if used[i] is 0. If
  /// `used` is empty, leaves out no row.
  void sort(std::span<const int32_t> rows, int64_t first_slot = 0,
            std::span<const uint8_t> used = {});

  int64_t count() const { return count_; }
  std::span<const int32_t> rows() const;
  /// The sorted rows and their slots, i32 (count), on the device given to the constructor.
  Tensor device_rows() const { return part(on_device_[0]); }
  Tensor device_slots() const { return part(on_device_[1]); }
  /// Sets counts[r] to the number of rows in the list that rank r owns.
  void count_by_owner(const dist::RowLayout& layout, std::span<int64_t> counts) const;

 private:
  Tensor part(const Tensor& all) const;
  /// Sorts keys_[0, count_) by row.
  void sort_keys();

  int64_t count_ = 0;
  Tensor keys_;          // i64: row << 32 | slot
  Tensor other_keys_;    // i64: the output of a pass of the radix sort
  Tensor rows_;          // i32
  Tensor slots_;         // i32
  Tensor on_device_[2];  // on a GPU: copies of rows_ and slots_; on the CPU: the same memory
};

}  // namespace tessera::optim
