// convert on CUDA: y = x, each element rounded to y's dtype.
#include "core/cuda/elementwise.cuh"
#include "core/ops/convert.h"
#include "core/ops/copy.h"

namespace tessera::cuda {

namespace {
struct Identity {
  __device__ float operator()(float x) const { return x; }
};
}  // namespace

void convert(const Context& context, const Tensor& y, const Tensor& x) {
  TESSERA_CHECK(y.elements() == x.elements(), "convert: the source has {} elements, expected {}",
                x.elements(), y.elements());
  if (x.dtype() == y.dtype()) return copy(context, y, x);
  visit_float(x.dtype(), "convert", [&]<class From>() {
    visit_float(y.dtype(), "convert", [&]<class To>() {
      map(context, "convert", Identity{}, y.elements(), y.data<To>(), x.data<From>());
    });
  });
}

}  // namespace tessera::cuda
