#include "optim/tables/offloaded_rows.h"

#include <algorithm>

#include "core/ops/fill.h"
#include "optim/kernels/rows.h"

namespace tessera::optim {
namespace {

int64_t rows_at_once(int64_t rows, int64_t width, int64_t bucket_bytes) {
  const int64_t row_bytes = width * dtype_size(DType::f32);
  return std::min(rows, std::max<int64_t>(1, bucket_bytes / row_bytes));
}

int chunks_of(int64_t rows, int64_t at_once) {
  return at_once == 0 ? 0 : static_cast<int>((rows + at_once - 1) / at_once);
}

Tensor flat(const Tensor& matrix) { return matrix.view({matrix.elements()}); }

}  // namespace

OffloadedRows::OffloadedRows(const TableInfo& info, dist::Communicator& communicator, int64_t rows,
                             int64_t bucket_bytes)
    : width_(info.width()),
      rows_at_once_(rows_at_once(rows, width_, bucket_bytes)),
      device_(communicator.device()),
      place_(device_, {.buckets = chunks_of(rows, rows_at_once_),
                       .largest = rows_at_once_ * width_,
                       .sums = DType::f32,
                       .values = info.dtype()}),
      values_(
          row_buffer(communicator, rows_at_once_, width_, info.dtype(), Category::communication)) {
  const int slots = place_.ahead() ? std::clamp(chunks_of(rows, rows_at_once_), 1, 2) : 1;
  for (int i = 0; i < slots; ++i) {
    sums_.push_back(
        row_buffer(communicator, rows_at_once_, width_, DType::f32, Category::communication));
  }
}

Tensor OffloadedRows::zeros(const Shape& shape) const {
  return place_.zeros(shape.elements()).view(shape);
}

dist::Range OffloadedRows::chunk(int64_t number, int64_t count) const {
  const int64_t begin = number * rows_at_once_;
  return {begin, std::min(count, begin + rows_at_once_)};
}

void OffloadedRows::pack(const TouchedRows& touched, const Tensor& host_slots,
                         const dist::Range& range, const Tensor& to) const {
  const Context context = current_context(device_);
  if (!touched.slots.defined()) {
    kernels::copy_rows(context, RowList{to}, RowList{touched.sums.rows(range.begin, range.end)},
                       range.size());
    return;
  }
  const Tensor slots = touched.slots.flat(range.begin, range.end);
  const auto slot_of = host_slots.flat(range.begin, range.end).values<int32_t>();
  if (std::ranges::none_of(slot_of, [](int32_t slot) { return slot < 0; })) {
    kernels::copy_rows(context, RowList{to}, RowList{touched.sums, slots}, range.size());
    return;
  }
  // Rows without a gradient get zeros. Row places[i] of `to` gets row from[i] of the sums.
  kernels::fill(context, to, 0.0f);
  std::vector<int32_t> places;
  std::vector<int32_t> from;
  for (size_t i = 0; i < slot_of.size(); ++i) {
    if (slot_of[i] < 0) continue;
    places.push_back(static_cast<int32_t>(i));
    from.push_back(slot_of[i]);
  }
  if (places.empty()) return;
  kernels::copy_rows(context, RowList{to, row_list(places, device_)},
                     RowList{touched.sums, row_list(from, device_)}, std::ssize(places));
}

void OffloadedRows::start(int64_t number, const TouchedRows& touched, const Tensor& host_slots) {
  const dist::Range range = chunk(number, touched.rows.elements());
  // The buffer may be overwritten, because its previous chunk has already been copied to the host.
  const Tensor packed = sums_[static_cast<size_t>(number) % sums_.size()].rows(0, range.size());
  pack(touched, host_slots, range, packed);
  place_.start(static_cast<int>(number), flat(packed));
}

void OffloadedRows::update(const UpdateRule& rule, const UpdateHyper& hyper,
                           const TouchedRows& touched, const Target& target) {
  const int64_t count = touched.rows.elements();
  if (count == 0) return;
  const Context host = current_context(place_.device());
  // The lists are copied to the host before the first chunk. A copy between two chunks would wait
  // for the device's work on earlier chunks.
  const Tensor rows = touched.rows.to_host();
  const Tensor host_slots = touched.slots.defined() ? touched.slots.to_host() : Tensor();
  const int chunks = chunks_of(count, rows_at_once_);
  start(0, touched, host_slots);
  for (int number = 0; number < chunks; ++number) {
    const bool more = number + 1 < chunks;
    const dist::Range range = chunk(number, count);
    const Tensor sums = place_.take(number).view({range.size(), width_});
    if (more && place_.ahead()) start(number + 1, touched, host_slots);
    const Tensor chunk_rows = rows.flat(range.begin, range.end);
    rule.update_rows(host,
                     {.parameters = target.masters,
                      .state = target.state,
                      .gradients = sums,
                      .rows = chunk_rows,
                      .first = target.first,
                      .count = range.size()},
                     hyper);
    // The sums are not needed after the update, so the packed weights reuse their memory.
    const Tensor& weights = sums;
    kernels::copy_rows(host, RowList{weights}, RowList{target.masters, chunk_rows, target.first},
                       range.size());
    const Tensor values = values_.rows(0, range.size());
    place_.round(number, flat(weights), flat(values));
    kernels::copy_rows(
        current_context(device_),
        RowList{target.values, touched.rows.flat(range.begin, range.end), target.first},
        RowList{values}, range.size());
    if (more && !place_.ahead()) start(number + 1, touched, host_slots);
  }
}

}  // namespace tessera::optim
