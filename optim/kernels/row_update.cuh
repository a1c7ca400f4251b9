// Shared by the update rules on CUDA: the loop over the rows of a RowUpdate. Each thread updates
// one element. Neighbouring threads update neighbouring elements of a row.
#pragma once

#include "core/cuda/kernel.cuh"
#include "optim/kernels/row_update.h"

namespace tessera::cuda {

/// A RowUpdate with pointers to device memory.
struct RowUpdateTable {
  const float* gradients;
  const int32_t* rows;
  const int32_t* slots;  // nullptr: slots[i] is i
  int64_t first;
  int64_t width;
  int64_t count;
  const StepScalars* scalars;  // or nullptr

  explicit RowUpdateTable(const RowUpdate& update)
      : gradients(update.gradients.data<float>()),
        rows(update.rows.data<int32_t>()),
        slots(update.slots.defined() ? update.slots.data<int32_t>() : nullptr),
        first(update.first),
        width(update.parameters.size(1)),
        count(update.count),
        scalars(update.scalars) {}

  /// Multiplies hyper.gradient_scale by the scalars' gradient_scale. Returns false if the update
  /// must change nothing.
  __device__ bool scale(UpdateHyper& hyper) const {
    if (scalars == nullptr) return true;
    hyper.gradient_scale *= scalars->gradient_scale;
    return scalars->skip == 0;
  }
  __device__ float gradient(int64_t i, int64_t column) const {
    const int64_t slot = slots == nullptr ? i : slots[i];
    return slot < 0 ? 0.0f : gradients[slot * width + column];
  }
};

inline constexpr int row_update_threads = 256;

template <class Rule>
__global__ void __launch_bounds__(row_update_threads)
    row_update_kernel(Rule rule, RowUpdateTable table, UpdateHyper hyper) {
  const int64_t element = int64_t{blockIdx.x} * row_update_threads + threadIdx.x;
  if (element >= table.count * table.width || !table.scale(hyper)) return;
  const int64_t i = element / table.width;
  const int64_t column = element % table.width;
  rule.update_one((table.rows[i] - table.first) * table.width + column, table.gradient(i, column),
                  hyper);
}

/// Calls rule.update_one(place, gradient, hyper) for every element of the update's rows. `place` is
/// the element's index in the parameters and in each state tensor. update.scalars are applied as
/// update.h says.
template <class Rule>
void launch_row_update(const Context& context, const char* name, const Rule& rule,
                       const RowUpdate& update, const UpdateHyper& hyper) {
  if (update.count == 0) return;
  const RowUpdateTable table(update);
  launch(context, name,
         {blocks_for(table.count * table.width, row_update_threads), row_update_threads},
         row_update_kernel<Rule>, rule, table, hyper);
}

}  // namespace tessera::cuda
