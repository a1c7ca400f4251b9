// embedding_bag on CUDA: a warp sums the rows of a bag, in the order of the bag's indices. The
// gradient of the table is computed as for embedding (embedding.cuh), with one more kernel after
// the sort of the positions by token. This kernel replaces each position by the index of the bag
// that contains the position, because row b of dy belongs to bag b.
#include "core/ops/embedding_bag.h"

#include "core/ops/embedding.cuh"

namespace tessera::cuda {

namespace {

using embedding::Positions;
using embedding::sum_rows;
using embedding::threads;
using embedding::WarpOfGrid;
using embedding::warps;

Positions positions_of(const Bags& bags, int64_t vocabulary) {
  return {.tokens = bags.indices.data<int32_t>(),
          .count = bags.indices.elements(),
          .vocabulary = vocabulary,
          .fault = FaultKind::embedding_bag_token,
          .offsets = bags.offsets.data<int32_t>(),
          .bags = bags.offsets.size(0) - 1};
}

const float* scale_of(const Bags& bags) {
  return bags.scale.defined() ? bags.scale.data<float>() : nullptr;
}

/// A warp checks one bag: the offset where it ends, and the token at each position. Warp 0 also
/// checks the first offset, even if there are no bags.
__global__ void __launch_bounds__(threads) check_bags_kernel(Positions positions, Fault* fault) {
  const WarpOfGrid at;
  const auto check_offset = [&](int64_t place, int64_t low) {
    const int32_t offset = positions.offsets[place];
    if (at.lane != 0 || (low <= offset && offset <= positions.count)) return;
    report_fault(fault, FaultKind::embedding_bag_offset, place, offset, positions.count + 1, low);
  };
  if (at.index == 0) check_offset(0, 0);
  if (at.index >= positions.bags) return;
  const int64_t begin = positions.inside(positions.offsets[at.index]);
  const int64_t last = positions.inside(positions.offsets[at.index + 1]);
  // If `begin` was clamped, the offset where the bag begins is out of range. The first such offset
  // is reported, so the offset where this bag ends need not be checked.
  if (begin == positions.offsets[at.index]) check_offset(at.index + 1, begin);
  for (int64_t p = begin + at.lane; p < last; p += warp_size) {
    const int32_t token = positions.tokens[p];
    if (positions.known(token)) continue;
    report_fault(fault, FaultKind::embedding_bag_token, p, token, positions.vocabulary);
  }
}

/// A warp computes 32 * n columns of one row of y. In the grid, blockIdx.x selects bags and
/// blockIdx.y selects columns.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    embedding_bag_kernel(T* y, const T* table, const float* scale, Positions positions,
                         int64_t channels) {
  const WarpOfGrid at;
  const int64_t column = (int64_t{blockIdx.y} * warp_size + at.lane) * n;
  if (at.index >= positions.bags || column >= channels) return;
  const int64_t begin = positions.inside(positions.offsets[at.index]);
  const int64_t end = positions.inside(positions.offsets[at.index + 1]);
  const auto row_of = [&](int64_t i) {
    const int32_t token = positions.tokens[begin + i];
    return int64_t{positions.known(token) ? token : 0};
  };
  Floats<n> sum = {};
  sum_rows<aligned>(sum, table, channels, column, end - begin, row_of,
                    [](int64_t) { return 1.0f; });
  if (scale != nullptr) {
    const float factor = scale[at.index];
    unrolled<n>([&](int i) { sum.value[i] *= factor; });
  }
  store_elements<aligned>(y + at.index * channels + column, sum);
}

/// Replaces each position in `order` by the index of the bag that contains it. `order` has *count
/// positions, sorted by token.
__global__ void __launch_bounds__(threads)
    positions_to_bags_kernel(int32_t* order, const int32_t* count, Positions positions) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= *count) return;
  const int32_t position = order[i];
  int64_t low = 0;  // after the loop: the last bag that begins at or before the position
  int64_t high = positions.bags;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (positions.offsets[middle] <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  order[i] = static_cast<int32_t>(low);
}

}  // namespace

/// Needs no workspace. If an offset or a token is wrong, the host throws at its next
/// synchronisation with the device.
void embedding_bag_forward(const Context& context, const Tensor& y, const Bags& bags,
                           const Tensor& table) {
  const int64_t channels = table.size(1);
  const Positions positions = positions_of(bags, table.size(0));
  const unsigned bag_blocks = std::max(1u, blocks_for(positions.bags, warps));
  launch(context, "embedding_bag", {bag_blocks, threads}, check_bags_kernel, positions,
         device_fault(context));
  if (y.elements() == 0) return;
  TESSERA_CHECK(table.size(0) > 0,
                "embedding_bag: the table has shape {}, expected at least one row", table.shape());
  visit_float(y.dtype(), "embedding_bag", [&]<class T>() {
    T* const to = y.data<T>();
    const T* const from = table.data<T>();
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const dim3 grid(bag_blocks, blocks_for(channels, warp_size * n));
          launch(context, "embedding_bag", {grid, threads}, embedding_bag_kernel<T, n, aligned>, to,
                 from, scale_of(bags), positions, channels);
        },
        to, from);
  });
}

void embedding_bag_backward(const Context& context, const Tensor& dtable, const Tensor& dy,
                            const Bags& bags, bool accumulate) {
  constexpr const char* name = "embedding_bag_backward";
  const Positions positions = positions_of(bags, dtable.size(0));
  const int64_t work = positions.count + positions.vocabulary;
  TESSERA_CHECK(work < INT32_MAX,
                "embedding_bag: {} indices and words together, expected less than {}", work,
                INT32_MAX);
  if (dtable.elements() == 0) return;
  const embedding::Sorted sorted{context.workspace({positions.count}, DType::i32),
                                 context.workspace({positions.vocabulary + 1}, DType::i32),
                                 bags.scale};
  embedding::sort_by_token(context, sorted.order, sorted.ends, positions);
  if (positions.count > 0) {
    launch(context, name, {blocks_for(positions.count, threads), threads},
           positions_to_bags_kernel, sorted.order.data<int32_t>(),
           sorted.ends.data<int32_t>() + positions.vocabulary, positions);
  }
  if (bags.scale.defined()) {
    embedding::sum_by_token<true>(context, name, dtable, dy, sorted, accumulate);
  } else {
    embedding::sum_by_token<false>(context, name, dtable, dy, sorted, accumulate);
  }
}

}  // namespace tessera::cuda
