#include "optim/tables/table_update.h"

#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/ops/fill.h"

namespace tessera::optim {

TableUpdate::TableUpdate(const TableInfo& info, dist::Communicator& communicator, UpdateRule rule,
                         const ZeroOptions& options)
    : info_(info),
      rule_(std::move(rule)),
      everything_(options.stage == 0),
      sharded_(options.stage == 3),
      all_rows_(options.update_all_rows),
      touched_rows_(info, communicator, DType::f32) {
  const Device device = communicator.device();
  const int64_t rows = range().size();
  // If the ranks compute on the host (Device{}), offload changes nothing, because the optimizer
  // state is on the host anyway.
  if (options.offload == Offload::optimizer && !(device == Device{})) {
    offloaded_.emplace(info, communicator, rows, options.bucket_bytes);
  }
  const Shape matrix{rows, info.width()};
  for (size_t i = 0; i < rule_.state_names().size(); ++i) {
    state_.push_back(zeros(rule_.value_per_row() ? Shape{rows} : matrix, device));
  }
  if (info.dtype() != DType::f32 || offloaded_) masters_ = zeros(matrix, device);
}

Tensor TableUpdate::zeros(const Shape& shape, Device device) const {
  if (offloaded_) return offloaded_->zeros(shape);
  return Tensor::zeros(shape, DType::f32, device, Category::optimizer_state);
}

Tensor TableUpdate::weights(const TableValues& values) const {
  return masters_.defined() ? masters_ : values.values_of(range());
}

void TableUpdate::reset_state() {
  for (const Tensor& state : state_) {
    if (state.elements() > 0) kernels::fill(current_context(state.device()), state, 0.0f);
  }
}

// Returns all rows of range(). Rows that were not touched get slot -1, which means a zero gradient.
TouchedRows TableUpdate::all_rows(const TouchedRows& touched) const {
  const Tensor rows = touched.rows.to_host();
  const Tensor slots = touched.slots.defined() ? touched.slots.to_host() : Tensor();
  std::vector<int32_t> all(static_cast<size_t>(range().size()));
  std::iota(all.begin(), all.end(), static_cast<int32_t>(range().begin));
  std::vector<int32_t> slot_of(all.size(), -1);
  for (int64_t i = 0; i < rows.elements(); ++i) {
    const auto place = static_cast<size_t>(rows.data<int32_t>()[i] - range().begin);
    slot_of[place] = slots.defined() ? slots.data<int32_t>()[i] : static_cast<int32_t>(i);
  }
  const Device device = touched.sums.device();
  return {row_list(all, device), row_list(slot_of, device), touched.sums};
}

void TableUpdate::apply(const TableValues& values, const TouchedRows& touched,
                        const UpdateHyper& hyper, const StepScalars* scalars) {
  const int64_t count = touched.rows.elements();
  if (count == 0) return;
  const int64_t first = range().begin;
  if (offloaded_) {
    TESSERA_CHECK(scalars == nullptr,
                  "offload: the step's scalars are on the device, expected on the host");
    offloaded_->update(rule_, hyper, touched, {masters_, state_, values.values_of(range()), first});
    return;
  }
  const Tensor weights = this->weights(values);
  const Context context = current_context(weights.device());
  rule_.update_rows(context,
                    {.parameters = weights,
                     .state = state_,
                     .gradients = touched.sums,
                     .rows = touched.rows,
                     .slots = touched.slots,
                     .first = first,
                     .count = count,
                     .scalars = scalars},
                    hyper);
  if (!masters_.defined()) return;
  kernels::copy_rows(context, RowList{values.values_of(range()), touched.rows, first},
                     RowList{masters_, touched.rows, first}, count);
}

void TableUpdate::reserve(TableValues& values, int64_t most) {
  if (info_.ranks() == 1) return;
  if (everything_) {
    touched_rows_.reserve(most);
  } else if (!sharded_ && !all_rows_) {
    values.reserve_updated(most);
  }
}

void TableUpdate::update(TableGradients& gradients, TableValues& values,
                         const std::vector<int64_t>& counts, const UpdateHyper& hyper,
                         const StepScalars* scalars) {
  const SortedRows& own = gradients.touched();
  TouchedRows touched{own.device_rows(), own.device_slots(), gradients.sums()};
  if (everything_ && info_.ranks() > 1) {
    // Every rank gets the touched rows of all ranks in ascending order, because the ranks own
    // ascending ranges.
    const RowGather::Gathered all = touched_rows_.gather(
        touched.rows, RowList{touched.sums, touched.slots}, counts, dist::Traffic::gradients);
    all.arrived.wait();
    touched = {all.rows, {}, all.values};
  }
  if (all_rows_) touched = all_rows(touched);
  apply(values, touched, hyper, scalars);
  if (info_.ranks() == 1 || everything_ || sharded_) return;
  if (all_rows_) {
    values.gather_all();
  } else {
    values.gather_updated(touched.rows, counts);
  }
}

}  // namespace tessera::optim
