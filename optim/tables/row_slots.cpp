#include "optim/tables/row_slots.h"

#include <algorithm>
#include <bit>

namespace tessera::optim {
namespace {

constexpr int64_t entry_bytes = 4;

// Returns the number of places in the hash table. At most half of them are used, so that probes
// stay short.
int64_t places(int64_t capacity) {
  const int64_t least = 2 * std::max<int64_t>(1, capacity);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(least)));
}

}  // namespace

int64_t RowSlots::bytes(int64_t capacity) { return entry_bytes * (capacity + places(capacity)); }

RowSlots::RowSlots(int64_t capacity, Category category)
    : capacity_(capacity),
      shift_(64 - std::countr_zero(static_cast<uint64_t>(places(capacity)))),
      rows_(Tensor::empty({capacity}, DType::i32, Device{}, category)),
      slots_(Tensor::empty({places(capacity)}, DType::i32, Device{}, category)) {
  std::fill_n(slots_.data<int32_t>(), slots_.elements(), -1);
}

std::span<const int32_t> RowSlots::rows() const {
  if (capacity_ == 0) return {};
  return {rows_.data<int32_t>(), static_cast<size_t>(count_)};
}

size_t RowSlots::find(int32_t row) const {
  // Fibonacci hashing: the high bits of the product depend on all bits of the row.
  constexpr uint64_t factor = 0x9e3779b97f4a7c15;
  const auto mask = static_cast<size_t>(slots_.elements() - 1);
  const int32_t* const slots = slots_.data<int32_t>();
  const int32_t* const rows = rows_.data<int32_t>();
  size_t place = (static_cast<uint64_t>(static_cast<uint32_t>(row)) * factor) >> shift_;
  while (slots[place] >= 0 && rows[slots[place]] != row) place = (place + 1) & mask;
  return place;
}

int32_t RowSlots::add(int32_t row) {
  if (capacity_ == 0) return -1;
  int32_t& slot = slots_.data<int32_t>()[find(row)];
  if (slot >= 0) return slot;
  if (count_ == capacity_) return -1;
  slot = static_cast<int32_t>(count_++);
  rows_.data<int32_t>()[slot] = row;
  return slot;
}

int32_t RowSlots::slot_of(int32_t row) const {
  return capacity_ == 0 ? -1 : slots_.data<int32_t>()[find(row)];
}

void RowSlots::truncate(int64_t count) {
  // Rows are removed in the reverse order of their addition. find(row) walks over places that were
  // filled before the row was added. All these places are emptied later than the row's place, so
  // find(row) meets no empty place before it reaches the row's place.
  while (count_ > count) {
    slots_.data<int32_t>()[find(rows_.data<int32_t>()[count_ - 1])] = -1;
    --count_;
  }
}

}  // namespace tessera::optim
