// add: y = a + b, equal shapes, on the CPU: how contributions to one gradient are added up. (The
// operation, which broadcasts, is in binary.cpp.)
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
