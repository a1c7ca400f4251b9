// rotary: x (B, T, H, D) -> y. At position p, pair i of the D elements of each attention head is
// rotated by
//   angle = p base^(-2i/D):   (a, b) -> (a cos - b sin, a sin + b cos)
// (Su et al., arXiv:2104.09864). Positions then affect the product of a rotated query and a rotated
// key only through the distance between the two positions.
//
// Cosines and sines come from an f32 table in the workspace, with a row for each position. The
// angles are computed in f64, because the angle of a far position is many turns. Rounding such an
// angle to f32 would lose a noticeable part of a turn. The backward computes the table again and
// rotates the gradient by the negative angles.
#include "core/ops/rotary.h"

#include <cmath>

#include "core/autograd.h"
#include "core/cpu/vector_math.h"
#include "core/ops.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
void check_shapes(const Tensor& x, const Tensor& positions, float base) {
  TESSERA_CHECK(x.rank() == 4 && x.size(3) % 2 == 0,
                "rotary: x has shape {}, expected (B, T, H, D) with even D", x.shape());
  TESSERA_CHECK(base > 0 && std::isfinite(base), "rotary: base is {}, expected finite and above 0",
                base);
  if (!positions.defined()) return;
  const Shape for_all{x.size(1)};
  const Shape for_each{x.size(0), x.size(1)};
  TESSERA_CHECK(positions.dtype() == DType::i32 &&
                    (positions.shape() == for_all || positions.shape() == for_each),
                "rotary: positions are {} {}, expected i32 {} or {}", dtype_name(positions.dtype()),
                positions.shape(), for_all, for_each);
}

void rotate(const Tensor& y, const Tensor& x, const Tensor& positions, const RotaryOptions& options,
            bool inverse) {
  if (x.elements() == 0) return;
  const Context context = current_context(x.device());
  const int64_t rows = positions.defined() ? positions.elements() : x.size(1);
  const Tensor table = context.workspace({rows, 2, x.size(3) / 2});
  kernels::rotary_table(context, table, positions, options.base, options.offset);
  kernels::rotate_pairs(context, y, x, table,
                        Rotation{options.pairs == RotaryPairs::interleaved, inverse});
}
}  // namespace

Tensor rotary(const Tensor& x, const Tensor& positions, RotaryOptions options) {
  check_shapes(x, positions, options.base);
  const trace::Scope scope("rotary");
  const InUse in_use({&x, &positions});
  const Tensor places = positions.defined() ? saved(positions) : Tensor{};
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  rotate(y, x, places, options, false);
  return record("rotary", y, {x}, [places, options](const Tensor& dy, InputGradients& grads) {
    rotate(grads.destination(0), dy, places, options, true);
  });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void rotary_table(const Context&, const Tensor& table, const Tensor& positions, float base,
                  int64_t offset) {
  const int64_t pairs = table.size(2);
  const int32_t* position = positions.defined() ? positions.data<int32_t>() : nullptr;
  float* out = table.data<float>();
  constexpr int64_t cost = 50;  // operations for a cosine and a sine
  parallel_ranges(table.size(0), pairs * cost, [=](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double frequency = std::pow(double{base}, -static_cast<double>(i) / double(pairs));
      for (int64_t p = begin; p < end; ++p) {
        const int64_t at = (position == nullptr ? p : position[p]) + offset;
        const double angle = static_cast<double>(at) * frequency;
        out[2 * p * pairs + i] = static_cast<float>(std::cos(angle));
        out[(2 * p + 1) * pairs + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

namespace {

/// Rotates one head of one token.
template <class T>
void rotate_row(T* y, const T* x, const float* cosines, const float* sines, int64_t pairs,
                Rotation rotation) {
  const float sign = rotation.inverse ? -1.0f : 1.0f;
  const int64_t across = rotation.interleaved ? 1 : pairs;  // distance of a pair's two elements
  const int64_t step = rotation.interleaved ? 2 : 1;        // distance from one pair to the next
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const auto a = float(x[i * step]);
    const auto b = float(x[i * step + across]);
    const float sine = sign * sines[i];
    y[i * step] = rounded<T>(multiply_add(a, cosines[i], -(b * sine)));
    y[i * step + across] = rounded<T>(multiply_add(a, sine, b * cosines[i]));
  }
}

}  // namespace

void rotate_pairs(const Context&, const Tensor& y, const Tensor& x, const Tensor& table,
                  Rotation rotation) {
  const int64_t heads = x.size(2);
  const int64_t size = x.size(3);
  const int64_t pairs = size / 2;
  const float* turns = table.data<float>();
  visit_float(x.dtype(), "rotary", [&]<class T>() {
    T* out = y.data<T>();
    const T* in = x.data<T>();
    parallel_ranges(x.elements() / size, size, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* cosines = turns + row / heads % table.size(0) * size;
        rotate_row(out + row * size, in + row * size, cosines, cosines + pairs, pairs, rotation);
      }
    });
  });
}

}  // namespace tessera::cpu
