#include "core/cpu/winograd.h"

#include <algorithm>
#include <cstddef>

#include <omp.h>

#include "core/context.h"
#include "core/cpu/gemm.h"
#include "core/cpu/winograd_transforms.h"

namespace tessera::cpu::winograd {
namespace {

constexpr int64_t cache_line = 16;  // f32 values

/// Images (N, H, W, C), cut into tiles.
struct Images {
  float* data = nullptr;
  int64_t height = 0, width = 0, channels = 0;

  int64_t tile_columns() const { return (width + tile_side - 1) / tile_side; }
  int64_t tiles_per_image() const {
    return (height + tile_side - 1) / tile_side * tile_columns();
  }
  /// Returns pointers to a tile's pixels, and to its border if `side` is 6. Pointers to pixels
  /// outside of the image are null.
  template <int side>
  Square<side, float> square(int64_t tile) const {
    constexpr int64_t border = (side - tile_side) / 2;
    const int64_t image = tile / tiles_per_image(), place = tile % tiles_per_image();
    const int64_t row = place / tile_columns() * tile_side - border;
    const int64_t column = place % tile_columns() * tile_side - border;
    Square<side, float> pixels{};
    for (int64_t i = std::max<int64_t>(0, -row); i < std::min<int64_t>(side, height - row); ++i) {
      for (int64_t j = std::max<int64_t>(0, -column); j < std::min<int64_t>(side, width - column);
           ++j) {
        pixels[static_cast<size_t>(i * side + j)] =
            data + ((image * height + row + i) * width + column + j) * channels;
      }
    }
    return pixels;
  }
};

/// One matrix for each of the 36 positions. A gap of one cache line follows each matrix. Without
/// the gaps, the matrices could lie a multiple of 4 KiB apart, and the 36 values that a transform
/// writes would displace each other in the cache.
struct Matrices {
  float* data = nullptr;
  int64_t rows = 0, columns = 0;

  int64_t stride() const { return rows * columns + cache_line; }
  int64_t elements() const { return positions * stride(); }
  Square<square_side, float> square(int64_t row, int64_t column) const {
    Square<square_side, float> places;
    for (int64_t i = 0; i < positions; ++i) {
      places[static_cast<size_t>(i)] = data + i * stride() + row * columns + column;
    }
    return places;
  }
};

/// Tiles that are transformed and multiplied together.
struct Round {
  int64_t first = 0, tiles = 0;
};

/// Writes the transformed tiles of a round to the rows of `to`.
template <class Transform>
void transform_images(const Images& from, const Round& round, const Matrices& to) {
  alignas(64) static constexpr float zeros[lanes] = {};
  parallel_ranges(round.tiles, positions * from.channels, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const auto pixels = from.square<Transform::from>(round.first + tile);
      for (int64_t channel = 0; channel < from.channels; channel += lanes) {
        Square<Transform::from, const float> in;
        for (size_t i = 0; i < in.size(); ++i) in[i] = pixels[i] ? pixels[i] + channel : zeros;
        transform<Transform>(in, to.square(tile, channel));
      }
    }
  });
}

/// Transforms the rows of `from` back to the pixels of a round's tiles, adds the bias unless it is
/// null, and writes the pixels to the images `to`.
void transform_back(const Matrices& from, const Round& round, const Images& to,
                    const float* bias) {
  parallel_ranges(round.tiles, positions * to.channels, [&](int64_t begin, int64_t end) {
    alignas(64) float tile_values[tile_side * tile_side][lanes];
    Square<tile_side, float> out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = tile_values[i];
    for (int64_t tile = begin; tile < end; ++tile) {
      const auto pixels = to.square<tile_side>(round.first + tile);
      for (int64_t channel = 0; channel < to.channels; channel += lanes) {
        Square<square_side, const float> in;
        std::ranges::copy(from.square(tile, channel), in.begin());
        transform<OutputTransform>(in, out);
        for (size_t i = 0; i < out.size(); ++i) {
          if (pixels[i] == nullptr) continue;
          const Vector value = load(out[i]);
          store(pixels[i] + channel, bias ? value + load(bias + channel) : value);
        }
      }
    }
  });
}

/// Writes the transformed weight (O, C, 3, 3) to matrices (O, C). If `turned`, turns each kernel by
/// 180 degrees.
void transform_weight(const float* weight, bool turned, const Matrices& to) {
  constexpr int64_t taps = 9;
  parallel_ranges(to.rows, positions * to.columns, [&](int64_t begin, int64_t end) {
    alignas(64) float kernels[taps][lanes];
    Square<3, const float> in;
    for (size_t i = 0; i < in.size(); ++i) in[i] = kernels[turned ? taps - 1 - i : i];
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t c = 0; c < to.columns; c += lanes) {
        const float* from = weight + (o * to.columns + c) * taps;
        for (int64_t lane = 0; lane < lanes; ++lane) {
          for (int64_t tap = 0; tap < taps; ++tap) kernels[tap][lane] = from[lane * taps + tap];
        }
        transform<WeightTransform>(in, to.square(o, c));
      }
    }
  });
}

/// Computes the weight's gradient (O, C, 3, 3) from the gradient of the transformed weight.
void transform_weight_gradient(const Matrices& from, float* dweight) {
  constexpr int64_t taps = 9;
  parallel_ranges(from.rows, positions * from.columns, [&](int64_t begin, int64_t end) {
    alignas(64) float kernels[taps][lanes];
    Square<3, float> out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = kernels[i];
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t c = 0; c < from.columns; c += lanes) {
        Square<square_side, const float> in;
        std::ranges::copy(from.square(o, c), in.begin());
        transform<WeightGradientTransform>(in, out);
        float* to = dweight + (o * from.columns + c) * taps;
        for (int64_t lane = 0; lane < lanes; ++lane) {
          for (int64_t tap = 0; tap < taps; ++tap) to[lane * taps + tap] = kernels[tap][lane];
        }
      }
    }
  });
}

/// A convolution's matrices in the workspace, and the scratch memory of the products.
class Convolution {
 public:
  Convolution(const onednn::ConvArgs& args, const onednn::ConvMemory& memory)
      : args_(args), memory_(memory) {
    const Conv2dSizes& s = args.sizes;
    x_ = {static_cast<float*>(memory.x), s.height, s.width, s.channels};
    y_ = {static_cast<float*>(memory.y), s.height, s.width, s.out_channels};
    tiles_ = s.images * x_.tiles_per_image();
    // A round has as many tiles as fit in 4 MiB, so that the transformed tiles stay in the second
    // and third level of the cache. If fewer than 64 tiles fit, a round still has up to 64, because
    // tiles are the rows of the matrices, and products of fewer rows would be slower.
    constexpr int64_t cached_elements = 1 << 20, least_tiles = 64;
    const int64_t fitting = cached_elements / (positions * (s.channels + s.out_channels));
    round_ = std::min(tiles_, std::max(fitting, least_tiles));
    weight_ = {nullptr, s.out_channels, s.channels};
    of_x_ = {nullptr, round_, s.channels};
    of_y_ = {nullptr, round_, s.out_channels};
    threads_ = omp_in_parallel() ? 1 : std::min<int64_t>(positions, thread_count());
    auto* next = static_cast<float*>(memory.workspace);
    for (Matrices* matrices : {&weight_, &of_x_, &of_y_}) {
      if (next == nullptr) break;
      matrices->data = next;
      next += matrices->elements();
    }
    scratch_ = reinterpret_cast<std::byte*>(next);
    for (const int64_t tiles : {round_, tiles_ % round_}) {
      for (const int64_t share : {positions / threads_, (positions - 1) / threads_ + 1}) {
        if (tiles == 0) continue;
        for (const bool accumulate : {false, true}) {
          if (accumulate && !accumulates()) continue;
          const ProductArgs product = product_of(0, share, tiles, accumulate);
          scratch_bytes_ = std::max(scratch_bytes_, gemm_workspace_bytes(product, {.threads = 1}));
        }
      }
    }
    constexpr int64_t line_bytes = 4 * cache_line;
    scratch_bytes_ = (scratch_bytes_ + line_bytes - 1) / line_bytes * line_bytes;
  }

  int64_t workspace_bytes() const {
    return 4 * (weight_.elements() + of_x_.elements() + of_y_.elements()) +
           threads_ * scratch_bytes_;
  }

  void compute() const {
    const auto* const weight = static_cast<const float*>(memory_.weight);
    const auto* const bias = static_cast<const float*>(memory_.bias);
    switch (args_.pass) {
      case Conv2dPass::forward:
        transform_weight(weight, false, weight_);
        return for_each_round([&](const Round& round) {
          transform_images<InputTransform>(x_, round, of_x_);
          multiply(round);
          transform_back(of_y_, round, y_, args_.has_bias ? bias : nullptr);
        });
      case Conv2dPass::input_gradient:
        transform_weight(weight, true, weight_);
        return for_each_round([&](const Round& round) {
          transform_images<InputTransform>(y_, round, of_y_);
          multiply(round);
          transform_back(of_x_, round, x_, nullptr);
        });
      case Conv2dPass::weight_gradient:
        for_each_round([&](const Round& round) {
          transform_images<InputTransform>(x_, round, of_x_);
          transform_images<OutputGradientTransform>(y_, round, of_y_);
          multiply(round);
        });
        return transform_weight_gradient(weight_, static_cast<float*>(memory_.weight));
    }
  }

 private:
  template <class Body>
  void for_each_round(Body&& body) const {
    for (int64_t first = 0; first < tiles_; first += round_) {
      body(Round{first, std::min(round_, tiles_ - first)});
    }
  }

  /// True if each round after the first adds its products to those of the earlier rounds. The
  /// constructor must know this, because a product that is added may need more scratch memory.
  bool accumulates() const {
    return args_.pass == Conv2dPass::weight_gradient && round_ < tiles_;
  }

  /// Returns the products of positions [begin, end) for a round of `tiles` tiles.
  ProductArgs product_of(int64_t begin, int64_t end, int64_t tiles, bool accumulate) const {
    const auto at = [begin](const Matrices& m) {
      return m.data ? m.data + begin * m.stride() : nullptr;
    };
    const auto by_rows = [&](const Matrices& m) {
      return ConstMatrix{at(m), m.columns, 1, m.stride()};
    };
    const auto transposed = [&](const Matrices& m) {
      return ConstMatrix{at(m), 1, m.columns, m.stride()};
    };
    const auto result = [&](const Matrices& m) {
      return MutableMatrix{at(m), m.columns, m.stride()};
    };
    const int64_t channels = of_x_.columns, out_channels = of_y_.columns;
    ProductArgs product{.batch = end - begin, .accumulate = accumulate};
    switch (args_.pass) {
      case Conv2dPass::forward:
        product.m = tiles, product.n = out_channels, product.k = channels;
        product.a = by_rows(of_x_), product.b = transposed(weight_), product.c = result(of_y_);
        break;
      case Conv2dPass::input_gradient:
        product.m = tiles, product.n = channels, product.k = out_channels;
        product.a = by_rows(of_y_), product.b = by_rows(weight_), product.c = result(of_x_);
        break;
      case Conv2dPass::weight_gradient:
        product.m = out_channels, product.n = channels, product.k = tiles;
        product.a = transposed(of_y_), product.b = by_rows(of_x_), product.c = result(weight_);
        break;
    }
    return product;
  }

  /// Multiplies the matrices of a round. Each thread takes a share of the positions.
  void multiply(const Round& round) const {
    const bool accumulate = accumulates() && round.first > 0;
    const auto share = [&](int64_t thread) {
      const int64_t begin = positions * thread / threads_;
      const int64_t end = positions * (thread + 1) / threads_;
      gemm(product_of(begin, end, round.tiles, accumulate),
           {.threads = 1, .workspace = scratch_ + thread * scratch_bytes_});
    };
    TeamErrors errors;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(threads_))
    for (int64_t thread = 0; thread < threads_; ++thread) {
      errors.guard([&] { share(thread); });
    }
    errors.rethrow();
  }

  onednn::ConvArgs args_;
  onednn::ConvMemory memory_;
  Images x_, y_;
  int64_t tiles_ = 0;      // of all images
  int64_t round_ = 0;      // tiles per round
  Matrices weight_;        // (O, C), or its gradient
  Matrices of_x_, of_y_;   // (round_, C) and (round_, O)
  int64_t threads_ = 1;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;  // per thread
};

}  // namespace

bool suits(const onednn::ConvArgs& args) {
  const Conv2dSizes& s = args.sizes;
  const auto& [stride, padding, dilation, groups] = s.options;
  constexpr int64_t block = 16;  // the largest `lanes`, so that the answer is the same on all CPUs
  return args.dtype == DType::f32 && s.kernel_height == 3 && s.kernel_width == 3 &&
         stride == Size2(1) && padding == Size2(1) && dilation == Size2(1) && groups == 1 &&
         s.channels % block == 0 && s.out_channels % block == 0 &&
         2 * s.images * s.out_height * s.out_width >= std::max(s.channels, s.out_channels);
}

void convolve(const onednn::ConvArgs& args, const onednn::ConvMemory& memory) {
  Convolution(args, memory).compute();
}

int64_t workspace_bytes(const onednn::ConvArgs& args) {
  return Convolution(args, {}).workspace_bytes();
}

}  // namespace tessera::cpu::winograd
