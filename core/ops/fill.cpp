// fill: sets every element of y to a value. There is no ops::fill, only this launcher.
#include "core/ops/blocks.h"
#include "core/ops/fill.h"

namespace tessera::cpu {

void fill(const Context&, const Tensor& y, float value) {
  visit_float(y.dtype(), "fill", [&]<class T>() {
    T* out = y.data<T>();
    parallel_blocks(y.elements(), 1, [=](int64_t begin, int64_t end) {
      std::fill(out + begin, out + end, T(value));
    });
  });
}

}  // namespace tessera::cpu
