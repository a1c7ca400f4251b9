// softmax, log_softmax and logsumexp on CUDA. A run is the elements along the reduced dimensions
// (core/ops/reduced_runs.h). A forward reads a run once for its maximum and once for its sum of
// exponentials. softmax and log_softmax read the run a third time for the result. Repeated reads
// mostly hit the L1 cache.
#include "core/ops/softmax.h"

#include <cmath>
#include <limits>

#include "core/ops/run_threads.cuh"

namespace tessera::cuda {

namespace {

struct RunStatistics {
  float shift;
  float sum;
};

template <int threads, class T>
__device__ inline RunStatistics run_statistics(const RunThread<threads>& run, const T* x) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float largest = -infinity;
  run.each([&](int64_t at) { largest = fmaxf(largest, float(x[at])); });
  largest = run.max(largest);
  const float shift = largest == infinity || largest == -infinity ? 0.0f : largest;
  double sum = 0;
  run.each([&](int64_t at) { sum += double(expf(float(x[at]) - shift)); });
  return {shift, run.sum(sum)};
}

template <class T>
struct SoftmaxForward {
  T* y;
  const T* x;
  const T* factors;  // null if all factors are 1

  template <int threads>
  __device__ void operator()(const RunThread<threads>& run) const {
    const RunStatistics statistics = run_statistics(run, x);
    const float weight =
        (factors == nullptr ? 1.0f : float(factors[run.index])) / statistics.sum;
    run.each([&](int64_t at) {
      y[at] = rounded<T>(expf(float(x[at]) - statistics.shift) * weight);
    });
  }
};

template <class T>
struct LogSoftmaxForward {
  T* y;
  const T* x;

  template <int threads>
  __device__ void operator()(const RunThread<threads>& run) const {
    const RunStatistics statistics = run_statistics(run, x);
    const float logarithm = logf(statistics.sum);
    run.each([&](int64_t at) {
      y[at] = rounded<T>((float(x[at]) - statistics.shift) - logarithm);
    });
  }
};

template <class T>
struct LogSumExpForward {
  T* y;
  const T* x;

  template <int threads>
  __device__ void operator()(const RunThread<threads>& run) const {
    const RunStatistics statistics = run_statistics(run, x);
    if (run.thread == 0) y[run.index] = rounded<T>(statistics.shift + logf(statistics.sum));
  }
};

template <class T>
struct SoftmaxBackward {
  T* dx;
  const T* dy;
  const T* y;

  template <int threads>
  __device__ void operator()(const RunThread<threads>& run) const {
    double sum = 0;
    run.each([&](int64_t at) { sum += double(float(dy[at]) * float(y[at])); });
    const float total = run.sum(sum);
    run.each([&](int64_t at) { dx[at] = rounded<T>(float(y[at]) * (float(dy[at]) - total)); });
  }
};

template <class T>
struct LogSoftmaxBackward {
  T* dx;
  const T* dy;
  const T* y;

  template <int threads>
  __device__ void operator()(const RunThread<threads>& run) const {
    double sum = 0;
    run.each([&](int64_t at) { sum += double(float(dy[at])); });
    const float total = run.sum(sum);
    run.each([&](int64_t at) {
      dx[at] = rounded<T>(fmaf(-expf(float(y[at])), total, float(dy[at])));
    });
  }
};

}  // namespace

void softmax_forward(const Context& context, const Tensor& y, const Tensor& x,
                     const Tensor& factors, const ReducedRuns& runs) {
  visit_float(x.dtype(), "softmax", [&]<class T>() {
    const T* by = factors.defined() ? factors.data<T>() : nullptr;
    map_runs(context, "softmax", runs, SoftmaxForward<T>{y.data<T>(), x.data<T>(), by});
  });
}

void log_softmax_forward(const Context& context, const Tensor& y, const Tensor& x,
                         const ReducedRuns& runs) {
  visit_float(x.dtype(), "log_softmax", [&]<class T>() {
    map_runs(context, "log_softmax", runs, LogSoftmaxForward<T>{y.data<T>(), x.data<T>()});
  });
}

void logsumexp_forward(const Context& context, const Tensor& y, const Tensor& x,
                       const ReducedRuns& runs) {
  visit_float(x.dtype(), "logsumexp", [&]<class T>() {
    map_runs(context, "logsumexp", runs, LogSumExpForward<T>{y.data<T>(), x.data<T>()});
  });
}

void softmax_backward(const Context& context, const Tensor& dx, const Tensor& dy, const Tensor& y,
                      const ReducedRuns& runs) {
  visit_float(y.dtype(), "softmax", [&]<class T>() {
    map_runs(context, "softmax_backward", runs,
             SoftmaxBackward<T>{dx.data<T>(), dy.data<T>(), y.data<T>()});
  });
}

void log_softmax_backward(const Context& context, const Tensor& dx, const Tensor& dy,
                          const Tensor& y, const ReducedRuns& runs) {
  visit_float(y.dtype(), "log_softmax", [&]<class T>() {
    map_runs(context, "log_softmax_backward", runs,
             LogSoftmaxBackward<T>{dx.data<T>(), dy.data<T>(), y.data<T>()});
  });
}

}  // namespace tessera::cuda
