// The kernel launchers of rotary. There are B sequences of T tokens, and H attention heads of size
// D. P is the number of positions: T if all sequences share their positions, else B T.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

/// Writes table f32 (P, 2, D/2), the cosines and sines of the angles
///   (positions[p] + offset) base^(-2i/D),
/// computed in f64. positions is i32 of shape (T) or (B, T). If it is an undefined tensor, the
/// positions are 0, 1, ...
TESSERA_KERNEL(rotary_table, const Tensor& table, const Tensor& positions, float base,
               int64_t offset)

struct Rotation {
  bool interleaved = false;  // pair i: elements 2i and 2i + 1 if true, i and i + D/2 if false
  bool inverse = false;      // true: rotate by the negative angles
};
/// y (B, T, H, D) = x with each pair of elements rotated. Token t of sequence b uses row
/// (b T + t) mod P of the table.
TESSERA_KERNEL(rotate_pairs, const Tensor& y, const Tensor& x, const Tensor& table,
               Rotation rotation)

}  // namespace tessera
