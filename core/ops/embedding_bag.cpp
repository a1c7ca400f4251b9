// embedding_bag: indices i32 (L), offsets i32 (B + 1), table (V, C), scale f32 (B) -> y (B, C):
//   y[b] = scale[b] * sum over p in [offsets[b], offsets[b + 1]) of table[indices[p]].
// Row v of the table's gradient is the sum of scale[b] dy[b] over all p with indices[p] == v that
// are in a bag b, in ascending order of p. Without a scale, all factors are 1. The forward adds up
// rows directly from TableRows::values (core/autograd.h). It makes no tensor (L, C) with a copy of
// a row for each index.
#include "core/ops/embedding_bag.h"

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/embedding_rows.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
void check_shapes(const Bags& bags, const Tensor& table) {
  const auto& [indices, offsets, scale] = bags;
  TESSERA_CHECK(indices.rank() == 1 && indices.dtype() == DType::i32,
                "embedding_bag: indices are {} {}, expected i32 (L)", dtype_name(indices.dtype()),
                indices.shape());
  TESSERA_CHECK(offsets.rank() == 1 && offsets.dtype() == DType::i32 && offsets.size(0) > 0,
                "embedding_bag: offsets are {} {}, expected i32 (B + 1)",
                dtype_name(offsets.dtype()), offsets.shape());
  TESSERA_CHECK(table.rank() == 2, "embedding_bag: table has shape {}, expected (V, C)",
                table.shape());
  if (!scale.defined()) return;
  const Shape one_for_each{offsets.size(0) - 1};
  TESSERA_CHECK(scale.shape() == one_for_each && scale.dtype() == DType::f32,
                "embedding_bag: scale is {} {}, expected f32 {}", dtype_name(scale.dtype()),
                scale.shape(), one_for_each);
  TESSERA_CHECK(!scale.requires_grad(),
                "embedding_bag: scale requires a gradient, which is not "
                "computed; multiply the result by scale instead");
}

void check_range(const Bags& bags, int64_t vocabulary) {
  if (!bags.indices.device().is_cpu()) return;  // on a GPU, the forward's kernel checks
  const auto offsets = bags.offsets.values<int32_t>();
  const auto indices = bags.indices.values<int32_t>();
  const auto length = static_cast<int64_t>(indices.size());
  int32_t before = 0;
  for (size_t b = 0; b < offsets.size(); ++b) {
    TESSERA_CHECK(before <= offsets[b] && offsets[b] <= length,
                  "embedding_bag: offset {} at position {} is outside [{}, {}]", offsets[b], b,
                  before, length);
    before = offsets[b];
  }
  for (int32_t p = offsets.front(); p < offsets.back(); ++p) {
    const int32_t token = indices[static_cast<size_t>(p)];
    TESSERA_CHECK(0 <= token && token < vocabulary,
                  "embedding_bag: token {} at position {} is outside the vocabulary of {}", token,
                  p, vocabulary);
  }
}

// Returns n such that rows_of must look up indices[0] to indices[n - 1]. For a row-sparse table
// (Leaf::look_up), n is the end of the last bag. For any other table, n is the number of indices.
// Throws if the table is row-sparse and the first bag does not begin at position 0, because rows_of
// would also look up the indices before that bag.
int64_t used_indices(const Tensor& indices, const Tensor& offsets, const Tensor& table) {
  if (read_whole(table) != nullptr) return indices.size(0);
  const Tensor here = offsets.to_host();
  const auto values = here.values<int32_t>();
  TESSERA_CHECK(values.front() == 0,
                "embedding_bag: '{}' is row-sparse, and its first bag begins at index {}, expected "
                "0",
                table.leaf()->name, values.front());
  return values.back();
}
}  // namespace

Tensor embedding_bag(const Tensor& indices, const Tensor& offsets, const Tensor& table,
                     const Tensor& scale) {
  check_shapes({indices, offsets, scale}, table);
  check_range({indices, offsets, scale}, table.size(0));
  const trace::Scope scope("embedding_bag");
  const InUse in_use({read_whole(table)});
  const auto [rows, row_indices] =
      rows_of(table, indices, used_indices(indices, offsets, table));
  check_one_device({&rows, &row_indices, &offsets, &scale});
  const Bags bags{saved(row_indices), saved(offsets), scale.defined() ? saved(scale) : Tensor{}};
  Tensor y = Tensor::empty({offsets.size(0) - 1, table.size(1)}, rows.dtype(), rows.device());
  kernels::embedding_bag_forward(current_context(y.device()), y, bags, rows);
  return record("embedding_bag", y, {table}, [bags](const Tensor& dy, InputGradients& grads) {
    const auto [dtable, accumulate] = grads.accumulating_destination(0);
    kernels::embedding_bag_backward(current_context(dy.device()), dtable, dy, bags, accumulate);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void embedding_bag_forward(const Context&, const Tensor& y, const Bags& bags, const Tensor& table) {
  const int64_t channels = table.size(1);
  const int32_t* offsets = bags.offsets.data<int32_t>();
  const int32_t* indices = bags.indices.data<int32_t>();
  const float* scale = bags.scale.defined() ? bags.scale.data<float>() : nullptr;
  visit_float(y.dtype(), "embedding_bag", [&]<class T>() {
    parallel_segments(offsets, y.size(0), channels, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const float factor = scale == nullptr ? 1.0f : scale[b];
        T* out = y.data<T>() + b * channels;
        const auto write = [=](const float* sum, int64_t first, int64_t columns) {
          for (int64_t c = 0; c < columns; ++c) out[first + c] = rounded<T>(factor * sum[c]);
        };
        const auto row_of = [=](int64_t i) { return WeightedRow{indices[offsets[b] + i]}; };
        const RowCount rows{offsets[b + 1] - offsets[b], offsets[y.size(0)] - offsets[b]};
        sum_rows(table.data<T>(), channels, rows, row_of, write);
      }
    });
  });
}

void embedding_bag_backward(const Context& context, const Tensor& dtable, const Tensor& dy,
                            const Bags& bags, bool accumulate) {
  const int64_t work = bags.indices.elements() + dtable.size(0);
  TESSERA_CHECK(work < INT32_MAX,
                "embedding_bag: {} indices and words together, expected less than {}", work,
                INT32_MAX);
  const int32_t* offsets = bags.offsets.data<int32_t>();
  const int32_t* indices = bags.indices.data<int32_t>();
  const auto for_each = [&](const auto& body) {
    for (int64_t b = 0; b < dy.size(0); ++b) {
      for (int32_t p = offsets[b]; p < offsets[b + 1]; ++p) body(indices[p], b);
    }
  };
  const TokenOrder sorted =
      sort_by_token(context, bags.indices.elements(), dtable.size(0), for_each);
  const float* scale = bags.scale.defined() ? bags.scale.data<float>() : nullptr;
  if (scale == nullptr) {
    sum_by_token("embedding_bag", dtable, dy, sorted, accumulate, [](int64_t) { return 1.0f; });
  } else {
    sum_by_token("embedding_bag", dtable, dy, sorted, accumulate,
                 [=](int64_t b) { return scale[b]; });
  }
}

}  // namespace tessera::cpu
