// max: y = the largest element of each run of x (core/ops/reduced_runs.h). Equal maxima of a run
// share the gradient equally. x and y are kept, because the backward compares x with y to find the
// maxima. The comparison is exact, because y is an element of x and was never rounded.
#include "core/ops/max.h"

#include <limits>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/run_strips.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor max(const Tensor& x, const std::vector<int>& dims, bool keep) {
  const ReducedDims reduced = reduced_dims("max", x.shape(), dims);
  const ReducedRuns runs = reduced.runs;
  TESSERA_CHECK(runs.reduced > 0 || runs.count() == 0,
                "max: shape {} has no elements along the given dimensions", x.shape());
  const Tensor in = reduced.order.empty() ? x : permute(x, reduced.order);
  const trace::Scope scope("max");
  const InUse in_use({&in});
  const Shape& shape = keep ? reduced.shapes.ones : reduced.shapes.gone;
  const Tensor y = Tensor::empty(shape, x.dtype(), in.device());
  kernels::max_forward(current_context(in.device()), y, in, runs);
  return record(
      "max", y, {in}, [runs, x = saved(in), y = saved(y)](const Tensor& dy, InputGradients& grads) {
        const InUse in_backward({&x});
        kernels::max_backward(current_context(dy.device()), grads.destination(0), dy, x, y, runs);
      });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Returns the larger of a and b, or NaN if either is NaN.
inline float larger(float a, float b) { return bool(int(b > a) | int(b != b)) ? b : a; }

}  // namespace

void max_forward(const Context&, const Tensor& y, const Tensor& x, const ReducedRuns& runs) {
  visit_float(x.dtype(), "max", [&]<class T>() {
    const T* in = x.data<T>();
    parallel_pieces(runs, 1, [&](const RunPiece& piece) {
      Lanes<float> maxima = lanes_of(-infinity);
      float* const largest = maxima.data();
      piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) largest[c] = larger(largest[c], float(in[at + c]));
      });
      piece.join(maxima, larger);
      piece.store(y.data<T>(), maxima);
    });
  });
}

void max_backward(const Context&, const Tensor& dx, const Tensor& dy, const Tensor& x,
                  const Tensor& y, const ReducedRuns& runs) {
  visit_float(x.dtype(), "max", [&]<class T>() {
    const T* in = x.data<T>();
    T* out = dx.data<T>();
    parallel_pieces(runs, 2, [&](const RunPiece& piece) {
      const Lanes<float> maxima = piece.load(y.data<T>());
      Lanes<int64_t> counts = {};
      const float* const largest = maxima.data();
      int64_t* const equal = counts.data();
      piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) equal[c] += int64_t{float(in[at + c]) == largest[c]};
      });
      piece.join(counts, [](int64_t a, int64_t b) { return a + b; });
      const Lanes<float> gradients = piece.load(dy.data<T>());
      const Lanes<float> shares = piece.map([&](size_t lane) {
        return counts[lane] == 0 ? nan : gradients[lane] / static_cast<float>(counts[lane]);
      });
      const Lanes<float> others =
          piece.map([&](size_t lane) { return counts[lane] == 0 ? nan : 0.0f; });
      const float* const share = shares.data();
      const float* const other = others.data();
      piece.each([&](int64_t at, int64_t width) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
          out[at + c] = rounded<T>(float(in[at + c]) == largest[c] ? share[c] : other[c]);
        }
      });
    });
  });
}

}  // namespace tessera::cpu
