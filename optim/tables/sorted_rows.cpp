#include "optim/tables/sorted_rows.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::optim {

SortedRows::SortedRows(int64_t capacity, Device device) {
  const auto buffer = [capacity](DType dtype, Device where) {
    return Tensor::empty({capacity}, dtype, where, Category::communication);
  };
  keys_ = buffer(DType::i64, Device{});
  rows_ = buffer(DType::i32, Device{});
  slots_ = buffer(DType::i32, Device{});
  on_device_[0] = device.is_cpu() ? rows_ : buffer(DType::i32, device);
  on_device_[1] = device.is_cpu() ? slots_ : buffer(DType::i32, device);
}

void SortedRows::sort(std::span<const int32_t> rows, int64_t first_slot,
                      std::span<const uint8_t> used) {
  count_ = 0;
  TESSERA_CHECK(rows.empty() || std::ssize(rows) <= keys_.elements(),
                "sorted rows: {} rows, room for {}", rows.size(), keys_.elements());
  auto* const keys = rows.empty() ? nullptr : keys_.data<int64_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!used.empty() && used[i] == 0) continue;
    keys[count_++] = (int64_t{rows[i]} << 32) | (first_slot + static_cast<int64_t>(i));
  }
  if (count_ == 0) return;
  std::sort(keys, keys + count_);
  for (int64_t i = 0; i < count_; ++i) {
    rows_.data<int32_t>()[i] = static_cast<int32_t>(keys[i] >> 32);
    slots_.data<int32_t>()[i] = static_cast<int32_t>(keys[i] & 0xffffffff);
  }
  if (on_device_[0].same(rows_)) return;
  part(on_device_[0]).copy_from(part(rows_));
  part(on_device_[1]).copy_from(part(slots_));
}

std::span<const int32_t> SortedRows::rows() const {
  if (count_ == 0) return {};
  return {rows_.data<int32_t>(), static_cast<size_t>(count_)};
}

Tensor SortedRows::part(const Tensor& all) const { return all.flat(0, count_); }

void SortedRows::count_by_owner(const dist::RowLayout& layout, std::span<int64_t> counts) const {
  std::ranges::fill(counts, 0);
  for (const int32_t row : rows()) ++counts[static_cast<size_t>(layout.owner(row))];
}

}  // namespace tessera::optim
