// dropout on CUDA: y = x * keep_scale where kept, 0 elsewhere. The draws equal the CPU's
// (dropout.cpp): one call of philox draws the words for elements 4k to 4k + 3 of a sample.
#include "core/cuda/elementwise.cuh"
#include "core/cuda/graph.h"
#include "core/ops/dropout.h"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

/// The random words that decide whether elements [element, element + n) of a sample are kept.
/// `element` is a multiple of 4.
template <int n>
struct Draws {
  __device__ Draws(const DropoutDraws& draws, uint64_t layer, int64_t sample, int64_t element) {
    static_assert(n % 4 == 0);
    for (int group = 0; group < n / 4; ++group) {
      const PhiloxCounter words =
          philox({static_cast<uint32_t>(element / 4 + group),
                  draws.first_sample + static_cast<uint32_t>(sample),
                  static_cast<uint32_t>(layer), static_cast<uint32_t>(layer >> 32)},
                 draws.key);
      for (int k = 0; k < 4; ++k) word[4 * group + k] = words[static_cast<size_t>(k)];
    }
  }
  uint32_t word[n];
};

__device__ inline float drop(float x, uint32_t draw, const DropoutArgs& args) {
  const float scaled = x * args.keep_scale;
  return draw >= args.threshold ? scaled : 0.0f;
}

/// `tiles` blocks process a sample, and a thread processes n neighbouring elements. If `aligned`, x
/// and y are aligned for accesses to n elements, and n divides the number of elements in a sample.
/// In a CUDA graph, the kernel's arguments cannot change, so the kernel reads `state` from
/// `in_graph` instead. Outside of graphs, `in_graph` is null.
template <bool aligned, class T>
__global__ void __launch_bounds__(threads)
    dropout_kernel(T* y, const T* x, unsigned tiles, DropoutArgs args, DropoutDraws state,
                   const DropoutDraws* in_graph) {
  constexpr int n = neighbours<T>;
  const int64_t sample = blockIdx.x / tiles;
  // The index, within the sample, of the thread's pack of n elements.
  const int64_t pack = int64_t{blockIdx.x % tiles} * threads + threadIdx.x;
  const int64_t element = pack * n;
  if (element >= args.elements_per_sample) return;
  if (in_graph != nullptr) state = *in_graph;
  if constexpr (aligned) {
    // The index is computed in packs of n elements. If it were computed in elements, nvcc 13.0
    // would split the store into n stores.
    const int64_t at = (sample * (args.elements_per_sample / n) + pack) * n;
    Floats<n> values = load<n>(x + at);
    const Draws<n> draws(state, args.layer, sample, element);
    for (int k = 0; k < n; ++k) values.value[k] = drop(values.value[k], draws.word[k], args);
    store<n>(y + at, values);
  } else {
    const int64_t at = sample * args.elements_per_sample + element;
    const Draws<n> draws(state, args.layer, sample, element);
    for (int k = 0; k < n && element + k < args.elements_per_sample; ++k) {
      y[at + k] = rounded<T>(drop(float(x[at + k]), draws.word[k], args));
    }
  }
}

__global__ void store_draws_kernel(DropoutDraws* to, DropoutDraws draws) { *to = draws; }

}  // namespace

void store_draws(const Context& context, DropoutDraws* to, const DropoutDraws& draws) {
  launch(context, "dropout", {1, 1}, store_draws_kernel, to, draws);
}

void dropout(const Context& context, const Tensor& y, const Tensor& x, DropoutArgs args) {
  if (x.elements() == 0) return;
  const int64_t samples = x.elements() / args.elements_per_sample;
  const DropoutDraws* const in_graph = captured_dropout(args.state, samples);
  visit_float(x.dtype(), "dropout", [&]<class T>() {
    constexpr int n = neighbours<T>;
    const unsigned tiles = blocks_for(args.elements_per_sample, threads * n);
    T* out = y.data<T>();
    const T* in = x.data<T>();
    const bool aligned =
        args.elements_per_sample % n == 0 && aligned_for<n>(out) && aligned_for<n>(in);
    launch(context, "dropout", {blocks_for(samples * tiles, 1), threads},
           aligned ? dropout_kernel<true, T> : dropout_kernel<false, T>, out, in, tiles, args,
           dropout_draws(args.state), in_graph);
  });
}

}  // namespace tessera::cuda
