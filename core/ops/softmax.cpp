// softmax, log_softmax: x -> y of x's shape; logsumexp: x -> one element per run. A run is the
// elements that differ only in their indices along the given dimensions (core/ops/reduced_runs.h).
// `shift` is the run's maximum, or 0 if the maximum is infinite. With shift 0, logsumexp of such a
// run is the infinite maximum, not NaN.
//   softmax      y = exp(x - shift) / sum(exp(x - shift))        dx = y (dy - sum(y dy))
//   log_softmax  y = x - shift - log(sum(exp(x - shift)))        dx = dy - exp(y) sum(dy)
//   logsumexp    y = shift + log(sum(exp(x - shift)))            dx = dy softmax(x)
// For backward, softmax and log_softmax keep y. logsumexp keeps x and computes softmax(x) from x.
// Using exp(x - y) for softmax(x) would be wrong, because y is rounded: a bf16 y of some hundreds
// is off by up to 1, which would change the gradient by a factor of up to e.
#include "core/ops/softmax.h"

#include <cmath>
#include <limits>

#include "core/autograd.h"
#include "core/cpu/vector_math.h"
#include "core/ops.h"
#include "core/ops/run_strips.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

using Softmax = Tensor (*)(const char* name, const Tensor& x, const ReducedRuns& runs);

/// Calls `operation` on x. If the dimensions to reduce are not adjacent, permutes x first, and
/// permutes the result back.
Tensor over_runs(const char* name, const Tensor& x, const std::vector<int>& dims,
                 Softmax operation) {
  const ReducedDims reduced = reduced_dims(name, x.shape(), dims);
  if (reduced.order.empty()) return operation(name, x, reduced.runs);
  const Tensor y = operation(name, permute(x, reduced.order), reduced.runs);
  return permute(y, inverse_order(reduced.order));
}

Tensor softmax_of_runs(const char* name, const Tensor& x, const ReducedRuns& runs) {
  const trace::Scope scope(name);
  const InUse in_use({&x});
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::softmax_forward(current_context(x.device()), y, x, Tensor(), runs);
  return record(name, y, {x}, [runs, y = saved(y)](const Tensor& dy, InputGradients& grads) {
    kernels::softmax_backward(current_context(dy.device()), grads.destination(0), dy, y, runs);
  });
}

Tensor log_softmax_of_runs(const char* name, const Tensor& x, const ReducedRuns& runs) {
  const trace::Scope scope(name);
  const InUse in_use({&x});
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::log_softmax_forward(current_context(x.device()), y, x, runs);
  return record(name, y, {x}, [runs, y = saved(y)](const Tensor& dy, InputGradients& grads) {
    kernels::log_softmax_backward(current_context(dy.device()), grads.destination(0), dy, y, runs);
  });
}

}  // namespace

Tensor softmax(const Tensor& x, const std::vector<int>& dims) {
  return over_runs("softmax", x, dims, softmax_of_runs);
}

Tensor log_softmax(const Tensor& x, const std::vector<int>& dims) {
  return over_runs("log_softmax", x, dims, log_softmax_of_runs);
}

Tensor logsumexp(const Tensor& x, const std::vector<int>& dims, bool keep) {
  const ReducedDims reduced = reduced_dims("logsumexp", x.shape(), dims);
  const ReducedRuns runs = reduced.runs;
  const Tensor in = reduced.order.empty() ? x : permute(x, reduced.order);
  const trace::Scope scope("logsumexp");
  const InUse in_use({&in});
  const Shape& shape = keep ? reduced.shapes.ones : reduced.shapes.gone;
  const Tensor y = Tensor::empty(shape, x.dtype(), in.device());
  kernels::logsumexp_forward(current_context(in.device()), y, in, runs);
  return record(
      "logsumexp", y, {in}, [runs, x = saved(in)](const Tensor& dy, InputGradients& grads) {
        const InUse in_backward({&x});
        kernels::softmax_forward(current_context(dy.device()), grads.destination(0), x, dy, runs);
      });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

constexpr int64_t exp_cost = 16;  // elementary operations per exp

struct RunStatistics {
  Lanes<float> shifts;
  Lanes<double> sums;
};

template <class T>
RunStatistics run_statistics(const RunPiece& piece, const T* x) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  RunStatistics result{lanes_of(-infinity), {}};
  float* const shift = result.shifts.data();
  piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      shift[c] = float(x[at + c]) > shift[c] ? float(x[at + c]) : shift[c];
    }
  });
  piece.join(result.shifts, [](float a, float b) { return b > a ? b : a; });
  for (float& value : result.shifts) value = std::isinf(value) ? 0.0f : value;
  double* const sum = result.sums.data();
  piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) sum[c] += double(exp_f32(float(x[at + c]) - shift[c]));
  });
  piece.join(result.sums, [](double a, double b) { return a + b; });
  return result;
}

}  // namespace

void softmax_forward(const Context&, const Tensor& y, const Tensor& x, const Tensor& factors,
                     const ReducedRuns& runs) {
  visit_float(x.dtype(), "softmax", [&]<class T>() {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_pieces(runs, 2 * exp_cost, [&](const RunPiece& piece) {
      const RunStatistics statistics = run_statistics(piece, in);
      const Lanes<float> scales =
          factors.defined() ? piece.load(factors.data<T>()) : lanes_of(1.0f);
      const Lanes<float> weights = piece.map([&](size_t lane) {
        return static_cast<float>(double{scales[lane]} / statistics.sums[lane]);
      });
      const float* const shift = statistics.shifts.data();
      const float* const weight = weights.data();
      piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
          out[at + c] = rounded<T>(exp_f32(float(in[at + c]) - shift[c]) * weight[c]);
        }
      });
    });
  });
}

void log_softmax_forward(const Context&, const Tensor& y, const Tensor& x,
                         const ReducedRuns& runs) {
  visit_float(x.dtype(), "log_softmax", [&]<class T>() {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_pieces(runs, exp_cost, [&](const RunPiece& piece) {
      const RunStatistics statistics = run_statistics(piece, in);
      const Lanes<float> logarithms = piece.map(
          [&](size_t lane) { return static_cast<float>(std::log(statistics.sums[lane])); });
      const float* const shift = statistics.shifts.data();
      const float* const logarithm = logarithms.data();
      piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
          out[at + c] = rounded<T>((float(in[at + c]) - shift[c]) - logarithm[c]);
        }
      });
    });
  });
}

void logsumexp_forward(const Context&, const Tensor& y, const Tensor& x, const ReducedRuns& runs) {
  visit_float(x.dtype(), "logsumexp", [&]<class T>() {
    parallel_pieces(runs, exp_cost, [&](const RunPiece& piece) {
      const RunStatistics statistics = run_statistics(piece, x.data<T>());
      const Lanes<float> results = piece.map([&](size_t lane) {
        return static_cast<float>(double{statistics.shifts[lane]} +
                                  std::log(statistics.sums[lane]));
      });
      piece.store(y.data<T>(), results);
    });
  });
}

namespace {

/// dx = slope(dy, y, sum), where `sum` is the sum of term(dy, y) over the run.
template <class Term, class Slope>
void gradient_of_runs(const Tensor& dx, const Tensor& dy, const Tensor& y, const ReducedRuns& runs,
                      const Term& term, const Slope& slope) {
  visit_float(y.dtype(), "softmax", [&]<class T>() {
    const T* grad = dy.data<T>();
    const T* result = y.data<T>();
    T* out = dx.data<T>();
    parallel_pieces(runs, exp_cost, [&](const RunPiece& piece) {
      Lanes<double> sums = {};
      double* const sum = sums.data();
      piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
          sum[c] += double(term(float(grad[at + c]), float(result[at + c])));
        }
      });
      piece.join(sums, [](double a, double b) { return a + b; });
      piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
          const auto total = static_cast<float>(sum[c]);
          out[at + c] = rounded<T>(slope(float(grad[at + c]), float(result[at + c]), total));
        }
      });
    });
  });
}

}  // namespace

void softmax_backward(const Context&, const Tensor& dx, const Tensor& dy, const Tensor& y,
                      const ReducedRuns& runs) {
  gradient_of_runs(
      dx, dy, y, runs, [](float grad, float p) { return grad * p; },
      [](float grad, float p, float total) { return p * (grad - total); });
}

void log_softmax_backward(const Context&, const Tensor& dx, const Tensor& dy, const Tensor& y,
                          const ReducedRuns& runs) {
  gradient_of_runs(
      dx, dy, y, runs, [](float grad, float) { return grad; },
      [](float grad, float log_p, float total) { return grad - exp_f32(log_p) * total; });
}

}  // namespace tessera::cpu
