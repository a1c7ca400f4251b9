// The division of work in the kernels of max_pool and avg_pool: a thread writes n neighbouring
// channels of a pixel, and a block writes at most one row of pixels.
#pragma once

#include "core/ops/pool.h"
#include "core/ops/rows.cuh"

namespace tessera::cuda {

/// The part of a pixel that one thread writes: channels [channel, channel + n), which begin at
/// element `at` of the tensor.
struct PixelPart {
  int64_t image, row, column;
  int64_t channel;
  int64_t at;
};

/// A grid of threads over a tensor of shape (N, H, W, C), with n channels per thread.
struct PixelGrid {
  PixelGrid(const Shape& shape, int n)
      : rows(shape[0] * shape[1]), height(shape[1]), parts(shape[3] / n), places(shape[2] * parts) {
    const int64_t warps = (places + warp_size - 1) / warp_size;
    threads = static_cast<unsigned>(std::min<int64_t>(max_threads, warps * warp_size));
    row_blocks = blocks_for(places, threads);
  }

  LaunchShape launch_shape() const { return {blocks_for(rows * row_blocks, 1), threads}; }

  /// Calls body(part), unless this thread is past the end of its row.
  template <int n, class Body>
  __device__ void visit(const Body& body) const {
    const int64_t row = blockIdx.x / row_blocks;
    const int64_t place = int64_t{blockIdx.x % row_blocks} * blockDim.x + threadIdx.x;
    if (place >= places) return;
    body(PixelPart{row / height, row % height, place / parts, place % parts * n,
                   (row * places + place) * n});
  }

  static constexpr int64_t max_threads = 256;
  int64_t rows;         // rows of pixels in all images
  int64_t height;       // rows of pixels in one image
  int64_t parts;        // threads per pixel
  int64_t places;       // threads per row of pixels
  unsigned threads;     // threads per block
  unsigned row_blocks;  // blocks per row of pixels
};

}  // namespace tessera::cuda
