// Shared by the update rules: checks of a RowUpdate, and the CPU's loop over the update's rows.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/ops/embedding_rows.h"
#include "optim/kernels/rows.h"

namespace tessera {

/// Throws unless parameters are f32 (R, C), gradients are f32, and the update has at least `states`
/// state tensors. Each of the first `states` tensors must have R C elements, or R if
/// `value_per_row` is true.
inline void check_row_update(std::string_view rule, const RowUpdate& update, size_t states,
                             bool value_per_row = false) {
  const Tensor& p = update.parameters;
  TESSERA_CHECK(
      p.rank() == 2 && p.dtype() == DType::f32 && update.gradients.dtype() == DType::f32,
      "{}: parameters are {} {} and gradients {}, expected f32 parameters (R, C) and f32 gradients",
      rule, dtype_name(p.dtype()), p.shape(), dtype_name(update.gradients.dtype()));
  TESSERA_CHECK(update.state.size() >= states, "{}: {} state tensors, expected {}", rule,
                update.state.size(), states);
  for (size_t i = 0; i < states; ++i) {
    const int64_t expected = value_per_row ? p.size(0) : p.elements();
    TESSERA_CHECK(update.state[i].elements() == expected, "{}: state of {} elements, expected {}",
                  rule, update.state[i].elements(), expected);
  }
}

namespace cpu {

/// Calls body(place, gradient, hyper) for each row of the update. `place` is the row's index in the
/// parameters and in each state tensor. `gradient` points to the row's C gradients. update.scalars
/// are applied as update.h says.
template <class Body>
void for_each_row(const RowUpdate& update, UpdateHyper hyper, Body&& body) {
  if (update.scalars != nullptr) {
    if (update.scalars->skip != 0) return;
    hyper.gradient_scale *= update.scalars->gradient_scale;
  }
  const int64_t width = update.parameters.size(1);
  // The gradient of each row i with slots[i] = -1. Memory plans (optim/plan) expect no workspace
  // for an update of rows, so this is a std::vector, which the memory ledger does not count.
  const std::vector<float> zeros(static_cast<size_t>(width), 0.0f);
  const int32_t* const rows = update.rows.data<int32_t>();
  const int32_t* const slots = update.slots.defined() ? update.slots.data<int32_t>() : nullptr;
  const float* const parameters = update.parameters.data<float>();
  const auto gradient_at = [&, all = update.gradients.data<float>()](int64_t i) {
    const int64_t slot = slots == nullptr ? i : slots[i];
    return slot < 0 ? zeros.data() : all + slot * width;
  };
  parallel_ranges(update.count, 8 * width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + rows_ahead < end) {
        const int64_t ahead = (rows[i + rows_ahead] - update.first) * width;
        prefetch_row(parameters + ahead, width);
        for (const Tensor& state : update.state) {
          if (state.elements() == update.parameters.elements()) {
            prefetch_row(state.data<float>() + ahead, width);
          }
        }
      }
      body(rows[i] - update.first, gradient_at(i), hyper);
    }
  });
}

}  // namespace cpu
}  // namespace tessera
