// A set of rows of a row-sparse table, on the host. Each row has a slot: rows are numbered from 0
// in the order in which they were added. A hash table with linear probing (Knuth, TAOCP vol. 3,
// 6.4, algorithm L) maps rows to slots. So the memory depends on the capacity of the set, and not
// on the number of rows of the row-sparse table.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace tessera::optim {

class RowSlots {
 public:
  RowSlots() = default;
  /// A set of at most `capacity` rows. Takes bytes(capacity) of host memory.
  explicit RowSlots(int64_t capacity, Category category = Category::communication);
  static int64_t bytes(int64_t capacity);

  int64_t capacity() const { return capacity_; }
  int64_t count() const { return count_; }
  /// rows()[s] is the row with slot s.
  std::span<const int32_t> rows() const;
  /// The rows with slots [first, count()), as a view in host memory.
  Tensor rows_from(int64_t first) const { return rows_.flat(first, count_); }

  /// Adds a row unless it is in the set already, and returns its slot. Returns -1 if the row is new
  /// and the set is full.
  int32_t add(int32_t row);
  /// Returns the slot of a row, or -1 if the row is not in the set.
  int32_t slot_of(int32_t row) const;
  /// Removes all rows whose slots are `count` or larger.
  void truncate(int64_t count);
  void clear() { truncate(0); }

 private:
  /// Returns the index in slots_ of a row's slot. If the row is not in the set, returns the index
  /// of the empty place where the row's slot would be written.
  size_t find(int32_t row) const;

  int64_t capacity_ = 0;
  int64_t count_ = 0;
  int shift_ = 0;
  Tensor rows_;   // i32 (capacity)
  Tensor slots_;  // i32; the size is a power of two, at least 2 * capacity; -1: empty place
};

}  // namespace tessera::optim
