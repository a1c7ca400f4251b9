// The transforms of Winograd's algorithm F(4 x 4, 3 x 3). A call transforms as many channels as a
// register holds. core/cpu/winograd.h names the matrices.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace tessera::cpu::winograd {

constexpr int tile_side = 4;
constexpr int square_side = 6;  // a tile with its border
constexpr int64_t positions = square_side * square_side;
// The number of channels in a register. Transforms compute with the vector type below. Loops over
// arrays, left to the compiler to vectorise, took six times as long.
#ifdef __AVX512F__
constexpr int64_t lanes = 16;
#else
constexpr int64_t lanes = 8;
#endif
using Vector = float __attribute__((vector_size(4 * lanes)));

inline Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }

// The algorithm interpolates polynomials at the points 0, +-near, +-far and infinity (Toom and
// Cook). The points determine the algorithm's matrices. With the points of Lavin and Gray, near = 1
// and far = 2, the largest error of a result is up to four times as large as with the points below.
// The idea of choosing points that reduce the error is from Barabasz, Anderson, Soodhalter and
// Gregg, "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural
// Networks", 2020, arXiv:1803.10986.
constexpr float near = 0.625f;
constexpr float far = 1.5f;
constexpr float near2 = near * near;
constexpr float far2 = far * far;
constexpr float near3 = near2 * near;
constexpr float far3 = far2 * far;
// For each finite point, 1 / the product of its differences to the other finite points.
constexpr float scale_zero = 1 / (near2 * far2);
constexpr float scale_near = 1 / (2 * near2 * (near2 - far2));
constexpr float scale_far = 1 / (2 * far2 * (far2 - near2));

template <int n>
using Line = std::array<Vector, n>;

/// B^T d
struct InputTransform {
  static constexpr int from = square_side, to = square_side;
  static Line<to> apply(const Line<from>& d) {
    const Vector even_near = d[4] - far2 * d[2], odd_near = near * (d[3] - far2 * d[1]);
    const Vector even_far = d[4] - near2 * d[2], odd_far = far * (d[3] - near2 * d[1]);
    constexpr float product = near2 * far2, sum = near2 + far2;
    return {product * d[0] - sum * d[2] + d[4],
            even_near + odd_near,
            even_near - odd_near,
            even_far + odd_far,
            even_far - odd_far,
            product * d[1] - sum * d[3] + d[5]};
  }
};

/// A^T m, where m is a sum of products
struct OutputTransform {
  static constexpr int from = square_side, to = tile_side;
  static Line<to> apply(const Line<from>& m) {
    const Vector even_near = m[1] + m[2], odd_near = m[1] - m[2];
    const Vector even_far = m[3] + m[4], odd_far = m[3] - m[4];
    return {m[0] + even_near + even_far, near * odd_near + far * odd_far,
            near2 * even_near + far2 * even_far, near3 * odd_near + far3 * odd_far + m[5]};
  }
};

/// A y
struct OutputGradientTransform {
  static constexpr int from = tile_side, to = square_side;
  static Line<to> apply(const Line<from>& y) {
    const Vector even_near = y[0] + near2 * y[2], odd_near = near * y[1] + near3 * y[3];
    const Vector even_far = y[0] + far2 * y[2], odd_far = far * y[1] + far3 * y[3];
    return {y[0],
            even_near + odd_near,
            even_near - odd_near,
            even_far + odd_far,
            even_far - odd_far,
            y[3]};
  }
};

/// G g
struct WeightTransform {
  static constexpr int from = 3, to = square_side;
  static Line<to> apply(const Line<from>& g) {
    const Vector even_near = scale_near * (g[0] + near2 * g[2]);
    const Vector odd_near = scale_near * near * g[1];
    const Vector even_far = scale_far * (g[0] + far2 * g[2]);
    const Vector odd_far = scale_far * far * g[1];
    return {scale_zero * g[0],
            even_near + odd_near,
            even_near - odd_near,
            even_far + odd_far,
            even_far - odd_far,
            g[2]};
  }
};

/// G^T u, where u is the gradient of the transformed weight
struct WeightGradientTransform {
  static constexpr int from = square_side, to = 3;
  static Line<to> apply(const Line<from>& u) {
    const Vector even_near = scale_near * (u[1] + u[2]), odd_near = scale_near * (u[1] - u[2]);
    const Vector even_far = scale_far * (u[3] + u[4]), odd_far = scale_far * (u[3] - u[4]);
    return {scale_zero * u[0] + even_near + even_far, near * odd_near + far * odd_far,
            near2 * even_near + far2 * even_far + u[5]};
  }
};

template <int side, class T>
using Square = std::array<T*, side * side>;  // by rows; each points to `lanes` channels

/// Applies a transform to the columns of a square and then to the rows of the result.
template <class Transform>
void transform(const Square<Transform::from, const float>& in,
               const Square<Transform::to, float>& out) {
  constexpr int from = Transform::from, to = Transform::to;
  Vector columns[to][from];
  for (int j = 0; j < from; ++j) {
    Line<from> line;
    for (int i = 0; i < from; ++i) line[i] = load(in[i * from + j]);
    const Line<to> result = Transform::apply(line);
    for (int i = 0; i < to; ++i) columns[i][j] = result[i];
  }
  for (int i = 0; i < to; ++i) {
    Line<from> line;
    for (int j = 0; j < from; ++j) line[j] = columns[i][j];
    const Line<to> result = Transform::apply(line);
    for (int j = 0; j < to; ++j) store(out[i * to + j], result[j]);
  }
}

}  // namespace tessera::cpu::winograd
