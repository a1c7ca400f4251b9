// dropout: x (S, ...) -> y (S, ...). Zeroes elements with a probability p and scales all other
// elements by 1 / (1 - p). Dimension 0 is the sample; a scalar is one sample. The backward calls
// the same launcher with the same DropoutArgs. The launcher draws the same mask again, so no mask
// is stored.
//
// The random word that decides whether an element is kept is a function of (seed, step, sample,
// layer, element) alone. Each call of philox(counter, key) draws the words of four elements:
//   key      is the first two words of philox((step, purpose), seed), where `purpose` is a hash of
//            "dropout". So each training step of each seed has its own stream of random numbers,
//            unless two of these 64-bit keys are equal by chance.
//   counter  is (element / 4, sample, layer low, layer high), where the last two words are the
//            halves of the 64-bit `layer`. ops::dropout checks that the first two numbers fit into
//            32-bit words. So if each dropout of a model has its own `layer`, each group of four
//            elements has its own counter within a step.
// philox returns four words. The word at index (element % 4) decides whether the element is kept.
#include <cmath>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/dropout.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor dropout(const Tensor& x, float probability, uint64_t layer) {
  TESSERA_CHECK(0.0f <= probability && probability < 1.0f,
                "dropout: probability is {}, expected at least 0 and less than 1", probability);
  if (probability == 0.0f) return x;
  dropout_state().check_unambiguous();
  TESSERA_CHECK(dropout_state().is_set(),
                "dropout: no step is running on this thread, so the mask to draw is unknown; "
                "expected seed, step and first sample: run the forward within a "
                "ZeroOptimizer's micro_batches(), on the thread that asks for them, or set "
                "dropout_state() = {{.seed = ..., .step = ..., .first_sample = ...}} before each "
                "forward, or call the model's eval(), which turns dropout off");
  const int64_t samples = x.rank() == 0 ? 1 : x.size(0);
  const DropoutArgs args{
      .state = dropout_state(),
      .layer = layer,
      .threshold = static_cast<uint32_t>(std::ldexp(double{probability}, 32)),
      .keep_scale = 1.0f / (1.0f - probability),
      .elements_per_sample = samples == 0 ? 0 : x.elements() / samples,
  };
  constexpr int64_t limit = int64_t{1} << 32;  // number of values that a counter's word can have
  TESSERA_CHECK((args.elements_per_sample + 3) / 4 <= limit && args.state.has_samples(samples),
                "dropout: {} elements in each of {} samples from sample {} on, expected at most "
                "2^34 elements, and samples from 0 to 2^32 - 1",
                args.elements_per_sample, samples, args.state.first_sample);
  const trace::Scope scope("dropout");
  const InUse in_use({&x});
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::dropout(current_context(x.device()), y, x, args);
  return record("dropout", y, {x}, [args](const Tensor& dy, InputGradients& grads) {
    kernels::dropout(current_context(dy.device()), grads.destination(0), dy, args);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

constexpr int64_t tile = 256;  // elements whose random words are drawn together
constexpr int64_t tile_groups = tile / 4;

/// Draws the random words of a tile's elements. A group is four elements, and `first_group` is the
/// tile's first group. Computes philox() of core/random.h for each group. Each round is a loop over
/// all groups, because such loops vectorise and calls of philox() do not.
void draw_tile(uint32_t* draws, uint32_t first_group, uint32_t sample, uint64_t layer,
               PhiloxKey key) {
  uint32_t c0[tile_groups], c1[tile_groups], c2[tile_groups], c3[tile_groups];
  for (int64_t g = 0; g < tile_groups; ++g) {
    c0[g] = first_group + static_cast<uint32_t>(g);
    c1[g] = sample;
    c2[g] = static_cast<uint32_t>(layer);
    c3[g] = static_cast<uint32_t>(layer >> 32);
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t g = 0; g < tile_groups; ++g) {
      const uint64_t product0 = uint64_t{0xD2511F53} * c0[g];
      const uint64_t product1 = uint64_t{0xCD9E8D57} * c2[g];
      c0[g] = static_cast<uint32_t>(product1 >> 32) ^ c1[g] ^ key[0];
      c1[g] = static_cast<uint32_t>(product1);
      c2[g] = static_cast<uint32_t>(product0 >> 32) ^ c3[g] ^ key[1];
      c3[g] = static_cast<uint32_t>(product0);
    }
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  for (int64_t g = 0; g < tile_groups; ++g) {
    draws[4 * g + 0] = c0[g];
    draws[4 * g + 1] = c1[g];
    draws[4 * g + 2] = c2[g];
    draws[4 * g + 3] = c3[g];
  }
}

template <class T>
void apply_tile(T* y, const T* x, const uint32_t* draws, uint32_t threshold, float keep_scale,
                int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = float(x[i]) * keep_scale;
    y[i] = rounded<T>(draws[i] >= threshold ? scaled : 0.0f);
  }
}

}  // namespace

void dropout(const Context&, const Tensor& y, const Tensor& x, DropoutArgs args) {
  if (x.elements() == 0) return;
  const int64_t samples = x.elements() / args.elements_per_sample;
  const int64_t tiles = (args.elements_per_sample + tile - 1) / tile;  // of one sample
  const DropoutDraws draws_of = dropout_draws(args.state);
  visit_float(x.dtype(), "dropout", [&]<class T>() {
    parallel_ranges(samples * tiles, 8 * tile, [&](int64_t first, int64_t last) {
      uint32_t draws[tile];
      for (int64_t i = first; i < last; ++i) {
        const int64_t sample = i / tiles;
        const int64_t begin = i % tiles * tile;
        draw_tile(draws, static_cast<uint32_t>(begin / 4),
                  draws_of.first_sample + static_cast<uint32_t>(sample), args.layer,
                  draws_of.key);
        const int64_t at = sample * args.elements_per_sample + begin;
        apply_tile(y.data<T>() + at, x.data<T>() + at, draws, args.threshold, args.keep_scale,
                   std::min(tile, args.elements_per_sample - begin));
      }
    });
  });
}

}  // namespace tessera::cpu
