// The extents of a tensor, outermost first. A shape has at most five dimensions; [] is a scalar.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "core/error.h"

namespace tessera {

class Shape {
 public:
  static constexpr int max_rank = 5;
  static constexpr int64_t max_elements = int64_t{1} << 59;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents)
      : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const int64_t> extents) {
    TESSERA_CHECK(extents.size() <= max_rank, "shape: {} dimensions, expected at most {}",
                  extents.size(), max_rank);
    for (const int64_t extent : extents) push_back(extent);
  }

  void push_back(int64_t extent) {
    TESSERA_CHECK(rank_ < max_rank, "shape: more than {} dimensions", max_rank);
    TESSERA_CHECK(extent >= 0, "shape: extent {} is negative", extent);
    extents_[static_cast<size_t>(rank_++)] = extent;
  }

  int rank() const { return rank_; }

  /// Returns the extent of dimension `dim`. Negative numbers count from the end; -1 is the last
  /// dimension. Throws if there is no such dimension.
  int64_t operator[](int dim) const {
    const int index = dim < 0 ? dim + rank_ : dim;
    TESSERA_CHECK(index >= 0 && index < rank_, "shape: no dimension {} in rank {}", dim, rank_);
    return extents_[static_cast<size_t>(index)];
  }

  /// Returns the number of elements, which is 0 if any extent is 0. Throws for more than
  /// max_elements, because sizes in bytes could then overflow.
  int64_t elements() const {
    for (const int64_t extent : *this) {
      if (extent == 0) return 0;
    }
    int64_t product = 1;
    for (const int64_t extent : *this) {
      const bool overflow = __builtin_mul_overflow(product, extent, &product);
      TESSERA_CHECK(!overflow && product <= max_elements, "shape: {} has more than 2^59 elements",
                    *this);
    }
    return product;
  }

  /// Returns this shape with the last extent replaced. Throws for a scalar, and for a negative
  /// extent.
  Shape with_last(int64_t extent) const {
    TESSERA_CHECK(rank_ > 0, "shape: a scalar has no last dimension");
    Shape result = *this;
    --result.rank_;
    result.push_back(extent);  // checks the extent
    return result;
  }

  const int64_t* begin() const { return extents_.data(); }
  const int64_t* end() const { return extents_.data() + rank_; }

  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, max_rank> extents_{};
  int rank_ = 0;
};

}  // namespace tessera
