// Loops over ReducedRuns on the CPU. A thread handles one piece at a time. If inner is 1, a piece
// is one run, whose elements are contiguous. Otherwise a piece is up to 64 runs whose first
// elements are contiguous, as are their second elements, and so on. Both kinds of piece are read in
// strips of at most 64 contiguous elements. An accumulator has 64 lanes, one for each place in a
// strip. Therefore one loop over lanes vectorises for both kinds of piece:
//
//   parallel_pieces(runs, cost, [&](const RunPiece& piece) {
//     Lanes<float> sums = {};
//     piece.each([&](int64_t at, int64_t width) {
//       for (int64_t c = 0; c < width; ++c) sums[c] += x[at + c];
//     });
//     piece.join(sums, [](float a, float b) { return a + b; });  // if one run: adds up the lanes
//     piece.store(y, sums);
//   });
//
// The sizes of the runs alone decide which elements a lane accumulates, and in which order lanes
// are combined. The bits of the result therefore do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/context.h"
#include "core/half.h"
#include "core/ops/reduced_runs.h"

namespace tessera::cpu {

inline constexpr int64_t strip_width = 64;

template <class V>
using Lanes = std::array<V, strip_width>;

template <class V>
Lanes<V> lanes_of(V value) {
  Lanes<V> lanes;
  lanes.fill(value);
  return lanes;
}

struct RunPiece {
  int64_t first_run;
  bool one_run;
  int64_t offset;  // first element of the first strip
  int64_t step;    // elements from one strip to the next
  int64_t strips;
  int64_t width;  // elements of every strip but the last one
  int64_t last_width;

  /// Calls body(at, width) for every strip.
  template <class Body>
  void each(const Body& body) const {
    for (int64_t strip = 0; strip < strips; ++strip) {
      body(offset + strip * step, strip + 1 < strips ? width : last_width);
    }
  }

  /// If the piece is one run, combines the lanes with `f` in ascending order and gives every lane
  /// the result. Otherwise does nothing, because each lane already has the result of its own run.
  template <class V, class F>
  void join(Lanes<V>& lanes, const F& f) const {
    if (!one_run) return;
    V value = lanes[0];
    for (size_t lane = 1; lane < static_cast<size_t>(width); ++lane) value = f(value, lanes[lane]);
    lanes.fill(value);
  }

  /// Returns f(lane) for every lane in use, or f(0) for all lanes if the piece is one run.
  template <class F>
  Lanes<float> map(const F& f) const {
    if (one_run) return lanes_of(f(size_t{0}));
    Lanes<float> lanes = {};
    for (size_t lane = 0; lane < static_cast<size_t>(width); ++lane) lanes[lane] = f(lane);
    return lanes;
  }

  /// Reads a tensor with one element for each run. Returns for each lane the element of its run.
  template <class T>
  Lanes<float> load(const T* values) const {
    return map([&](size_t lane) { return float(values[first_run + static_cast<int64_t>(lane)]); });
  }
  /// Writes the lanes' values to a tensor with one element for each run.
  template <class T>
  void store(T* values, const Lanes<float>& lanes) const {
    const int64_t count = one_run ? 1 : width;
    for (int64_t c = 0; c < count; ++c) {
      values[first_run + c] = rounded<T>(lanes[static_cast<size_t>(c)]);
    }
  }
};

/// Calls body(piece) for all pieces, split over threads.
template <class Body>
void parallel_pieces(const ReducedRuns& runs, int64_t cost_per_element, const Body& body) {
  const bool one_run = runs.inner == 1;
  const int64_t chunks = (runs.inner + strip_width - 1) / strip_width;
  const int64_t side_by_side = std::min(runs.inner, strip_width);
  const int64_t cost = std::max<int64_t>(1, runs.reduced * side_by_side * cost_per_element);
  parallel_ranges(runs.outer * chunks, cost, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t row = index / chunks;
      const int64_t first = index % chunks * strip_width;
      RunPiece piece{.first_run = row * runs.inner + first,
                     .one_run = one_run,
                     .offset = row * runs.reduced * runs.inner + first,
                     .step = runs.inner,
                     .strips = runs.reduced,
                     .width = std::min(strip_width, runs.inner - first),
                     .last_width = std::min(strip_width, runs.inner - first)};
      if (one_run) {
        piece.step = strip_width;
        piece.strips = (runs.reduced + strip_width - 1) / strip_width;
        piece.width = std::min(strip_width, runs.reduced);
        piece.last_width = runs.reduced - (piece.strips - 1) * strip_width;
      }
      body(piece);
    }
  });
}

}  // namespace tessera::cpu
