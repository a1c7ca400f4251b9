// permute: a copy of x with its dimensions in another order. The gradient is permuted back.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/broadcast.h"
#include "core/ops/dimensions.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

/// Returns a walk over the elements of y = permute(x, dims), in y's order, for an x of the given
/// shape. The walk's a_strides are the strides of x, in the order of `dims`.
BroadcastWalk permuted_walk(const Shape& shape, const std::vector<int>& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t step = 1;
  for (size_t dim = dims.size(); dim-- > 0;) {
    strides[dim] = step;
    step *= shape[static_cast<int>(dim)];
  }
  BroadcastWalk walk;
  for (const int dim : dims) {
    const auto at = static_cast<size_t>(walk.rank++);
    walk.sizes[at] = shape[dim];
    walk.a_strides[at] = strides[static_cast<size_t>(dim)];
  }
  if (walk.rank == 0) walk = {.rank = 1, .sizes = {1}, .a_strides = {1}, .b_strides = {1}};
  return walk;
}

}  // namespace

Tensor permute(const Tensor& x, const std::vector<int>& dims) {
  TESSERA_CHECK(std::ssize(dims) == x.rank(), "permute: {} dimensions are given for shape {}",
                dims.size(), x.shape());
  TESSERA_CHECK(is_float(x.dtype()),
                "permute: dtype {} is not supported, expected f32, bf16 or f16",
                dtype_name(x.dtype()));
  const std::vector<int> order = dimensions("permute", x.shape(), dims);
  const trace::Scope scope("permute");
  const InUse in_use({&x});
  Shape shape;
  for (const int dim : order) shape.push_back(x.size(dim));
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::copy_walk(current_context(x.device()), y, x, permuted_walk(x.shape(), order), 1.0f);
  return record("permute", y, {x},
                [back = inverse_order(order)](const Tensor& dy, InputGradients& grads) {
                  kernels::copy_walk(current_context(dy.device()), grads.destination(0), dy,
                                     permuted_walk(dy.shape(), back), 1.0f);
                });
}

}  // namespace tessera::ops
