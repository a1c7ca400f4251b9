// max over dimensions on CUDA.
#include "core/ops/max.h"

#include <limits>

#include "core/ops/run_threads.cuh"

namespace tessera::cuda {

namespace {

template <class T>
struct Maximum {
  T* y;
  const T* x;

  template <int threads>
  __device__ void operator()(const RunThread<threads>& run) const {
    float largest = -std::numeric_limits<float>::infinity();
    float nans = 0;  // 1 if this thread has seen a NaN, which fmaxf ignores
    run.each([&](int64_t at) {
      const auto value = float(x[at]);
      largest = fmaxf(largest, value);
      if (value != value) nans = 1;
    });
    largest = run.max(largest);
    nans = run.max(nans);
    if (run.thread != 0) return;
    y[run.index] = rounded<T>(nans > 0 ? std::numeric_limits<float>::quiet_NaN() : largest);
  }
};

template <class T>
struct MaximumGradient {
  T* dx;
  const T* dy;
  const T* x;
  const T* y;

  template <int threads>
  __device__ void operator()(const RunThread<threads>& run) const {
    const auto largest = float(y[run.index]);
    int64_t equal = 0;
    run.each([&](int64_t at) { equal += float(x[at]) == largest ? 1 : 0; });
    const float count = run.sum(static_cast<double>(equal));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float share = count == 0 ? nan : float(dy[run.index]) / count;
    const float other = count == 0 ? nan : 0.0f;
    run.each(
        [&](int64_t at) { dx[at] = rounded<T>(float(x[at]) == largest ? share : other); });
  }
};

}  // namespace

void max_forward(const Context& context, const Tensor& y, const Tensor& x,
                 const ReducedRuns& runs) {
  visit_float(x.dtype(), "max", [&]<class T>() {
    map_runs(context, "max", runs, Maximum<T>{y.data<T>(), x.data<T>()});
  });
}

void max_backward(const Context& context, const Tensor& dx, const Tensor& dy, const Tensor& x,
                  const Tensor& y, const ReducedRuns& runs) {
  visit_float(x.dtype(), "max", [&]<class T>() {
    map_runs(context, "max_backward", runs,
             MaximumGradient<T>{dx.data<T>(), dy.data<T>(), x.data<T>(), y.data<T>()});
  });
}

}  // namespace tessera::cuda
