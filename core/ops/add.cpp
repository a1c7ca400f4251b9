// add on the CPU: y = a + b, equal shapes. Autograd uses it to add up the contributions to a
// gradient. (The operation ops::add, which broadcasts, is in binary.cpp.)
#include "core/ops/add.h"

#include "core/ops/blocks.h"

namespace tessera::cpu {

void add(const Context&, const Tensor& y, const Tensor& a, const Tensor& b) {
  visit_float(y.dtype(), "add", [&]<class T>() {
    T* out = y.data<T>();
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    parallel_blocks(y.elements(), 1, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) out[i] = rounded<T>(float(left[i]) + float(right[i]));
    });
  });
}

}  // namespace tessera::cpu
