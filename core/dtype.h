// Element types. Parameters, activations and gradients are f32, bf16 or f16. Indices, counts and
// bytes are i32, i64 or u8.
//
// A kernel is a template over its storage type T. The kernel reads with `float(x)`, computes in f32
// (some sums in f64) and writes with `rounded<T>(value)`. `visit_float` picks T from a tensor's
// dtype. `visit_float` has the only list of the floating-point types that kernels support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "core/half.h"

namespace tessera {

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8 };

constexpr int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  constexpr std::string_view names[] = {"f32", "bf16", "f16", "i32", "i64", "u8"};
  return names[static_cast<size_t>(dtype)];
}

template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "no dtype stores this C++ type");
  return DType::f32;
}();
template <> inline constexpr DType dtype_of<float> = DType::f32;
template <> inline constexpr DType dtype_of<BFloat16> = DType::bf16;
template <> inline constexpr DType dtype_of<Float16> = DType::f16;
template <> inline constexpr DType dtype_of<int32_t> = DType::i32;
template <> inline constexpr DType dtype_of<int64_t> = DType::i64;
template <> inline constexpr DType dtype_of<uint8_t> = DType::u8;

constexpr bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// Calls `body.template operator()<T>()` with the storage type of `dtype`.
/// Throws an error that names the operation if kernels do not support the dtype.
template <class Body>
void visit_float(DType dtype, std::string_view operation, Body&& body) {
  switch (dtype) {
    case DType::f32: body.template operator()<float>(); return;
    case DType::bf16: body.template operator()<BFloat16>(); return;
    case DType::f16: body.template operator()<Float16>(); return;
    default: fail("{}: dtype {} is not supported, expected f32, bf16 or f16", operation,
                  dtype_name(dtype));
  }
}

}  // namespace tessera
