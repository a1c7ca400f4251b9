// Shared by row_products and its gradient on the CPU.
#pragma once

#include "core/ops/embedding_rows.h"
#include "core/ops/row_products.h"

namespace tessera::cpu {

template <class T>
T* data_or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

/// Pointers to the memory of a Lookup.
template <class T>
struct Rows {
  const T* table;
  const T* bias;           // null if there is none
  // False: row b of the results uses row b of `table`. `indices` does not tell this, because an
  // empty tensor has no address.
  bool looks_up;
  const int32_t* indices;
  int64_t channels;

  explicit Rows(const ops::Lookup& at)
      : table(at.table.data<T>()),
        bias(data_or_null<T>(at.bias)),
        looks_up(at.indices.defined()),
        indices(data_or_null<int32_t>(at.indices)),
        channels(at.table.size(1)) {}

  int64_t index(int64_t place) const { return looks_up ? indices[place] : place; }
  const T* row(int64_t index) const { return table + index * channels; }
  float bias_of(int64_t index) const { return bias == nullptr ? 0.0f : float(bias[index]); }
};

}  // namespace tessera::cpu
