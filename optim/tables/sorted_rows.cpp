#include "optim/tables/sorted_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace tessera::optim {

SortedRows::SortedRows(int64_t capacity, Device device) {
  const auto buffer = [capacity](DType dtype, Device where) {
    return Tensor::empty({capacity}, dtype, where, Category::communication);
  };
  keys_ = buffer(DType::i64, Device{});
  other_keys_ = buffer(DType::i64, Device{});
  rows_ = buffer(DType::i32, Device{});
  slots_ = buffer(DType::i32, Device{});
  on_device_[0] = device.is_cpu() ? rows_ : buffer(DType::i32, device);
  on_device_[1] = device.is_cpu() ? slots_ : buffer(DType::i32, device);
}

void SortedRows::sort(std::span<const int32_t> rows, int64_t first_slot,
                      std::span<const uint8_t> used) {
  count_ = 0;
  TESSERA_CHECK(rows.empty() || std::ssize(rows) <= keys_.elements(),
                "sorted rows: {} rows, expected at most {}", rows.size(), keys_.elements());
  auto* keys = rows.empty() ? nullptr : keys_.data<int64_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!used.empty() && used[i] == 0) continue;
    keys[count_++] = (int64_t{rows[i]} << 32) | (first_slot + static_cast<int64_t>(i));
  }
  if (count_ == 0) return;
  sort_keys();
  keys = keys_.data<int64_t>();
  auto* const sorted_rows = rows_.data<int32_t>();
  auto* const sorted_slots = slots_.data<int32_t>();
  for (int64_t i = 0; i < count_; ++i) {
    sorted_rows[i] = static_cast<int32_t>(keys[i] >> 32);
    sorted_slots[i] = static_cast<int32_t>(keys[i] & 0xffffffff);
  }
  if (on_device_[0].same(rows_)) return;
  part(on_device_[0]).copy_from(part(rows_));
  part(on_device_[1]).copy_from(part(slots_));
}

// Sorts few keys by comparison, and many keys with a radix sort on digits of 11 bits, the lowest
// digit first (Knuth, TAOCP vol. 3, 5.2.5, algorithm R). The digits are those of the row, the upper
// 32 bits of a key. The slot (the lower 32 bits) does not matter, because all rows differ.
void SortedRows::sort_keys() {
  auto* from = keys_.data<int64_t>();
  if (std::is_sorted(from, from + count_)) return;
  constexpr int64_t few = 512;
  if (count_ <= few) {
    std::sort(from, from + count_);
    return;
  }
  constexpr int digit_bits = 11;
  constexpr uint64_t digits = uint64_t{1} << digit_bits;
  const auto largest = static_cast<uint64_t>(*std::max_element(from, from + count_)) >> 32;
  for (int shift = 32; shift - 32 < static_cast<int>(std::bit_width(largest));
       shift += digit_bits) {
    std::array<int64_t, digits> begin{};
    const auto digit = [shift](int64_t key) {
      return (static_cast<uint64_t>(key) >> shift) & (digits - 1);
    };
    for (int64_t i = 0; i < count_; ++i) ++begin[digit(from[i])];
    std::exclusive_scan(begin.begin(), begin.end(), begin.begin(), int64_t{0});
    auto* const to = other_keys_.data<int64_t>();
    for (int64_t i = 0; i < count_; ++i) to[begin[digit(from[i])]++] = from[i];
    std::swap(keys_, other_keys_);
    from = keys_.data<int64_t>();
  }
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
