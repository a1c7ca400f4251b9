// concat joins tensors along one dimension, and split cuts a tensor along one dimension. Shapes are
// treated as (outer, size, inner) with this dimension in the middle. A part then consists of
// `outer` rows of size * inner contiguous elements.
#include "core/ops/concat.h"

#include <cstring>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/dimensions.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

/// A dimension of a shape, and the products of the sizes before it and after it.
struct Along {
  int dim = 0;  // counted from the first dimension
  int64_t outer = 1;
  int64_t inner = 1;
};

Along along(const char* name, const Shape& shape, int dim) {
  Along result{.dim = dimension(name, shape, dim)};
  for (int d = 0; d < shape.rank(); ++d) {
    if (d < result.dim) result.outer *= shape[d];
    if (d > result.dim) result.inner *= shape[d];
  }
  return result;
}

Shape with_size(const Shape& shape, int dim, int64_t size) {
  Shape result;
  for (int d = 0; d < shape.rank(); ++d) result.push_back(d == dim ? size : shape[d]);
  return result;
}

/// If `into_whole`, copies `part` to a slice of `whole`, otherwise copies the slice to `part`. The
/// slice begins at index `before` of dimension at.dim and has the size of `part`.
void copy_part(const Along& at, const Tensor& whole, const Tensor& part, int64_t before,
               bool into_whole) {
  const int64_t whole_row = whole.size(at.dim) * at.inner;
  const int64_t part_row = part.size(at.dim) * at.inner;
  RowCopy copy{.rows = at.outer, .width = part_row};
  (into_whole ? copy.to : copy.from) = before * at.inner;
  copy.to_stride = into_whole ? whole_row : part_row;
  copy.from_stride = into_whole ? part_row : whole_row;
  kernels::copy_rows(current_context(whole.device()), into_whole ? whole : part,
                     into_whole ? part : whole, copy);
}

void check_parts(std::span<const Tensor> parts, int dim) {
  const Shape& first = parts[0].shape();
  for (const Tensor& part : parts) {
    TESSERA_CHECK(part.dtype() == parts[0].dtype(), "concat: a tensor has dtype {}, expected {}",
                  dtype_name(part.dtype()), dtype_name(parts[0].dtype()));
    const bool fits =
        part.rank() == first.rank() && with_size(part.shape(), dim, 0) == with_size(first, dim, 0);
    TESSERA_CHECK(fits,
                  "concat: a tensor has shape {}, expected that of the first, {}, except in "
                  "dimension {}",
                  part.shape(), first, dim);
  }
}

}  // namespace

Tensor concat(const std::vector<Tensor>& parts, int dim) {
  TESSERA_CHECK(!parts.empty(), "concat: no tensors are given");
  const Shape first = parts[0].shape();
  const Along at = along("concat", first, dim);
  check_parts(parts, at.dim);
  const trace::Scope scope("concat");
  int64_t size = 0;
  std::vector<Shape> shapes;
  for (const Tensor& part : parts) {
    size += part.size(at.dim);
    shapes.push_back(part.shape());
  }
  Tensor y = Tensor::empty(with_size(first, at.dim, size), parts[0].dtype(), parts[0].device());
  int64_t before = 0;
  for (const Tensor& part : parts) {
    const InUse in_use({&part});
    check_one_device({&y, &part});
    copy_part(at, y, part, before, true);
    before += part.size(at.dim);
  }
  record("concat", std::span(&y, 1), parts,
         [at, shapes](std::span<const Tensor> dys, InputGradients& grads) {
           int64_t begin = 0;
           for (size_t i = 0; i < shapes.size(); ++i) {
             const int input = static_cast<int>(i);
             if (grads.wanted(input)) {
               copy_part(at, dys[0], grads.destination(input), begin, false);
             }
             begin += shapes[i][at.dim];
           }
         });
  return y;
}

std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim) {
  const Along at = along("split", x.shape(), dim);
  int64_t sum = 0;
  for (const int64_t size : sizes) {
    TESSERA_CHECK(size >= 0, "split: a size is {}, expected at least 0", size);
    sum += size;
  }
  TESSERA_CHECK(sum == x.size(at.dim), "split: sizes add up to {}, expected {}", sum,
                x.size(at.dim));
  const trace::Scope scope("split");
  const InUse in_use({&x});
  std::vector<Tensor> parts;
  int64_t before = 0;
  for (const int64_t size : sizes) {
    parts.push_back(Tensor::empty(with_size(x.shape(), at.dim, size), x.dtype(), x.device()));
    copy_part(at, x, parts.back(), before, false);
    before += size;
  }
  record("split", parts, {x}, [at, sizes](std::span<const Tensor> dys, InputGradients& grads) {
    const Tensor dx = grads.destination(0);
    int64_t begin = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Tensor part = dys[i].defined()
                              ? dys[i]
                              : Tensor::zeros(with_size(dx.shape(), at.dim, sizes[i]), dx.dtype(),
                                              dx.device(), Category::workspace);
      copy_part(at, dx, part, begin, true);
      begin += sizes[i];
    }
  });
  return parts;
}

}  // namespace tessera::ops

namespace tessera::cpu {

void copy_rows(const Context&, const Tensor& y, const Tensor& x, const RowCopy& copy) {
  const int64_t bytes = dtype_size(x.dtype());
  auto* const to = static_cast<std::byte*>(y.raw()) + copy.to * bytes;
  const auto* const from = static_cast<const std::byte*>(x.raw()) + copy.from * bytes;
  if (copy.width == 0) return;
  parallel_ranges(copy.rows, copy.width, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to + row * copy.to_stride * bytes, from + row * copy.from_stride * bytes,
                  static_cast<size_t>(copy.width * bytes));
    }
  });
}

}  // namespace tessera::cpu
