// Broadcasting: shapes, walks (BroadcastWalk), and two CPU kernels. sum_to sums x over the
// dimensions that are 1 or missing in y. copy_walk copies elements, times a factor, in the order of
// a walk.
#include "core/ops/broadcast.h"

#include <algorithm>
#include <vector>

#include "core/ops/broadcast_runs.h"

namespace tessera {

namespace {

/// Returns the extent of the dimension that is `dim` places before the last, or 1 if there is none.
int64_t extent(const Shape& shape, int dim) {
  return dim < shape.rank() ? shape[shape.rank() - 1 - dim] : 1;
}

}  // namespace

Shape broadcast_shape(const char* name, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result;
  for (int dim = rank - 1; dim >= 0; --dim) {
    const int64_t left = extent(a, dim);
    const int64_t right = extent(b, dim);
    TESSERA_CHECK(left == right || left == 1 || right == 1,
                  "{}: shapes {} and {} do not broadcast: dimension {} has {} and {} elements",
                  name, a, b, -1 - dim, left, right);
    result.push_back(left == 1 ? right : left);
  }
  return result;
}

int64_t BroadcastWalk::elements() const {
  int64_t product = 1;
  for (int dim = 0; dim < rank; ++dim) product *= sizes[static_cast<size_t>(dim)];
  return product;
}

BroadcastWalk broadcast_walk(const Shape& y, const Shape& a, const Shape& b) {
  struct Dim {
    int64_t size, a_stride, b_stride;
  };
  std::vector<Dim> dims;  // from the last dimension to the first
  int64_t a_step = 1;
  int64_t b_step = 1;
  for (int dim = 0; dim < y.rank(); ++dim) {
    const int64_t size = extent(y, dim);
    const int64_t a_size = extent(a, dim);
    const int64_t b_size = extent(b, dim);
    if (size != 1) {
      const Dim next{size, a_size == 1 ? 0 : a_step, b_size == 1 ? 0 : b_step};
      Dim* const last = dims.empty() ? nullptr : &dims.back();
      if (last != nullptr && next.a_stride == last->a_stride * last->size &&
          next.b_stride == last->b_stride * last->size) {
        last->size *= size;
      } else {
        dims.push_back(next);
      }
    }
    a_step *= a_size;
    b_step *= b_size;
  }
  if (dims.empty()) dims.push_back({1, 1, 1});
  BroadcastWalk walk;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    const auto at = static_cast<size_t>(walk.rank++);
    walk.sizes[at] = dim->size;
    walk.a_strides[at] = dim->a_stride;
    walk.b_strides[at] = dim->b_stride;
  }
  return walk;
}

}  // namespace tessera

namespace tessera::cpu {

namespace {

constexpr int64_t columns_at_once = 64;

/// Sizes and strides of some dimensions of x. sum_to makes one list of the dimensions that it keeps
/// and one of the dimensions that it adds up. Neither list has the walk's last dimension.
struct Strides {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  int64_t count() const {
    int64_t product = 1;
    for (const int64_t size : sizes) product *= size;
    return product;
  }
  /// Returns the offset in x of element `index` of these dimensions.
  int64_t offset(int64_t index) const {
    int64_t result = 0;
    for (size_t dim = sizes.size(); dim-- > 0;) {
      result += index % sizes[dim] * strides[dim];
      index /= sizes[dim];
    }
    return result;
  }
};

template <class T>
double row_sum(const T* x, int64_t count) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < count; ++i) total += double(float(x[i]));
  return total;
}

}  // namespace

void sum_to(const Context&, const Tensor& y, const Tensor& x, float factor) {
  // This walk over all of x broadcasts y. In the dimensions to add up, the stride of y is zero.
  const BroadcastWalk walk = broadcast_walk(x.shape(), y.shape(), x.shape());
  const auto last = static_cast<size_t>(walk.rank - 1);
  const int64_t inner = walk.sizes[last];
  const bool sums_rows = walk.a_strides[last] == 0;
  Strides kept, summed;
  int64_t stride = inner;
  for (size_t dim = last; dim-- > 0;) {
    Strides& list = walk.a_strides[dim] == 0 ? summed : kept;
    list.sizes.insert(list.sizes.begin(), walk.sizes[dim]);
    list.strides.insert(list.strides.begin(), stride);
    stride *= walk.sizes[dim];
  }
  const int64_t rows = x.elements() == 0 ? 0 : summed.count();
  const int64_t width = sums_rows ? 1 : inner;  // elements of y along the walk's last dimension
  const int64_t chunks = (width + columns_at_once - 1) / columns_at_once;
  visit_float(x.dtype(), "sum", [&]<class T>() {
    T* out = y.data<T>();
    const T* in = x.data<T>();
    const int64_t pieces = y.elements() / std::max<int64_t>(width, 1) * chunks;
    const int64_t cost = std::max<int64_t>(1, x.elements() / std::max<int64_t>(pieces, 1));
    parallel_ranges(pieces, cost, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const int64_t first = piece % chunks * columns_at_once;
        const int64_t columns = std::min(columns_at_once, width - first);
        const T* const from = in + kept.offset(piece / chunks) + first;
        double sums[columns_at_once] = {};
        for (int64_t row = 0; row < rows; ++row) {
          const T* const part = from + summed.offset(row);
          if (sums_rows) {
            sums[0] += row_sum(part, inner);
            continue;
          }
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c) sums[c] += double(float(part[c]));
        }
        T* const to = out + piece / chunks * width + first;
        for (int64_t c = 0; c < columns; ++c) {
          to[c] = rounded<T>(static_cast<float>(factor * sums[c]));
        }
      }
    });
  });
}

void copy_walk(const Context&, const Tensor& y, const Tensor& x, const BroadcastWalk& walk,
               float factor) {
  visit_float(x.dtype(), "copy_walk", [&]<class T>() {
    T* out = y.data<T>();
    const T* in = x.data<T>();
    parallel_runs(walk, 1, [=](int64_t at, int64_t a, int64_t, int64_t count) {
      const int64_t step = walk.a_strides[static_cast<size_t>(walk.rank - 1)];
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        out[at + i] = rounded<T>(factor * float(in[a + i * step]));
    });
  });
}

}  // namespace tessera::cpu
