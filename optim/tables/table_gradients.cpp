#include "optim/tables/table_gradients.h"

#include <algorithm>
#include <utility>

#include "core/ops/fill.h"

namespace tessera::optim {
namespace {

Tensor list_buffer(int64_t elements, DType dtype, Device device = {}) {
  return Tensor::empty({elements}, dtype, device, Category::communication);
}

}  // namespace

TouchedSums::TouchedSums(const TableInfo& info, dist::Communicator& communicator, int64_t capacity,
                         int64_t asked)
    : rows_(capacity),
      sums_(row_buffer(communicator, capacity, info.width(), DType::f32, Category::gradients)),
      slots_(list_buffer(asked, DType::i32)) {
  const Device device = communicator.device();
  if (!device.is_cpu()) device_slots_ = list_buffer(asked, DType::i32, device);
}

void TouchedSums::add(std::span<const int32_t> rows, const RowList& values) {
  const auto count = std::ssize(rows);
  if (count == 0) return;
  const int64_t fresh = rows_.count();
  const Tensor slots = slots_.flat(0, count);
  std::ranges::transform(rows, slots.data<int32_t>(),
                         [this](int32_t row) { return rows_.add(row); });
  kernels::fold_rows(current_context(sums_.device()),
                     RowList{sums_, on_device(slots, device_slots_)}, fresh, values, count);
}

void TouchedSums::add_all(const Tensor& rows, const Tensor& values,
                          const std::vector<int64_t>& counts) {
  if (rows.elements() == 0) return;
  const Tensor here = rows.to_host();
  const auto all = here.values<int32_t>();
  int64_t begin = 0;
  // Within a micro-step, the ascending order of ranks is the order of micro-batches.
  for (const int64_t count : counts) {
    add(all.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
        RowList{values.rows(begin, begin + count)});
    begin += count;
  }
}

TableGradients::TableGradients(const TableInfo& info, dist::Communicator& communicator)
    : info_(info),
      communicator_(communicator),
      gradient_(row_buffer(communicator, info.distinct(), info.width(), info.dtype(),
                           Category::gradients)),
      sent_(info.distinct(), communicator.device()) {
  const int64_t asked = info.most_asked();
  if (info.ranks() == 1) return;
  counts_.emplace(info, communicator);
  constexpr Category category = Category::communication;
  outgoing_ = row_buffer(communicator, info.distinct(), info.width(), info.dtype(), category);
  incoming_rows_ = row_buffer(communicator, info.ranks() * asked, 1, DType::i32, category);
  incoming_values_ =
      row_buffer(communicator, info.ranks() * asked, info.width(), info.dtype(), category);
}

void TableGradients::begin(const MicroStep& micro_step) {
  contributes_ = micro_step.contributes;
  opened_ = begun_ = false;
  if (micro_step.index > 0) return;
  wait();  // an abandoned step may have left contributions in flight
  if (touched_) touched_->clear();
  grow(micro_step.micro_batches);
}

void TableGradients::grow(int64_t micro_batches) {
  const int64_t most = info_.most_touched(micro_batches);
  if (touched_ && touched_->rows().capacity() >= most) return;
  // The old buffers are freed before larger ones are allocated.
  touched_ = nullptr;
  block_numbers_ = block_firsts_ = device_numbers_ = device_firsts_ = {};
  sorted_ = {};
  blocks_ = {};
  touched_ = std::make_shared<TouchedSums>(info_, communicator_, most, info_.most_asked());
  sorted_ = SortedRows(most, communicator_.device());
  block_numbers_ = list_buffer(most * info_.blocks_per_row(), DType::i64);
  block_firsts_ = list_buffer(most * info_.blocks_per_row(), DType::i32);
  const Device device = communicator_.device();
  if (device.is_cpu()) return;
  device_numbers_ = list_buffer(block_numbers_.elements(), DType::i64, device);
  device_firsts_ = list_buffer(block_firsts_.elements(), DType::i32, device);
}

void TableGradients::begin_backward(const RowSlots& rows, std::span<const uint8_t> used) {
  if (begun_) return;
  begun_ = true;
  looked_up_ = rows.count();
  wait();  // the previous micro-step's exchange may still read the buffers
  sent_.sort(contributes_ ? rows.rows() : std::span<const int32_t>{}, 0, used);
  total_.looked_up += sent_.count();
  if (counts_) counts_->gather(sent_);
}

Tensor TableGradients::open() {
  TESSERA_CHECK(begun_ && !opened_,
                "optimizer: a gradient of '{}' arrived outside of a micro-batch, or twice in one",
                info_.name());
  opened_ = true;
  // Rows of gradient_ from index looked_up_ on are neither written nor sent, so they need no zeros.
  const Tensor rows = gradient_.rows(0, looked_up_);
  if (looked_up_ > 0) kernels::fill(current_context(rows.device()), rows, 0.0f);
  return gradient_;
}

void TableGradients::send() {
  if (!opened_ && sent_.count() > 0) open();
  const Context context = current_context(gradient_.device());
  if (!counts_) {
    touched_->add(sent_.rows(), {gradient_, sent_.device_slots()});
    return;
  }
  const int64_t count = sent_.count();
  const Tensor outgoing = outgoing_.rows(0, count);
  kernels::copy_rows(context, RowList{outgoing}, RowList{gradient_, sent_.device_slots()}, count);
  counts_->wait();
  const int64_t incoming = counts_->incoming();
  const Tensor rows = incoming_rows_.rows(0, incoming);
  const Tensor values = incoming_values_.rows(0, incoming);
  const auto& to = counts_->by_owner();
  const auto& from = counts_->by_source();
  total_.sent += counts_->of_others(to);
  communicator_.exchange_v(sent_.device_rows(), rows, exchange_counts(to, from, 1),
                           info_.call(dist::Traffic::rows));
  communicator_.exchange_v(outgoing, values, exchange_counts(to, from, info_.width()),
                           info_.call(dist::Traffic::gradients));
  arrived_ = communicator_.run(
      [touched = touched_, rows, values, from] { touched->add_all(rows, values, from); });
}

void TableGradients::wait() { std::exchange(arrived_, {}).wait(); }

void TableGradients::close() {
  sorted_.sort(touched_->rows().rows());
  find_blocks();
  total_.touched += sorted_.count();
  total_.blocks += blocks_.block_count;
}

void TableGradients::find_blocks() {
  constexpr int64_t size = dist::block_elements;
  int64_t count = 0;
  const auto rows = sorted_.rows();
  auto* const numbers = rows.empty() ? nullptr : block_numbers_.data<int64_t>();
  auto* const firsts = rows.empty() ? nullptr : block_firsts_.data<int32_t>();
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    const int64_t begin = rows[static_cast<size_t>(i)] * info_.width();
    const int64_t end = (begin + info_.width() - 1) / size;
    int64_t block = begin / size;
    // This row's first block may already be in the list, as the last block of the previous row.
    if (count > 0 && numbers[count - 1] == block) ++block;
    for (; block <= end; ++block) {
      numbers[count] = block;
      firsts[count++] = static_cast<int32_t>(i);
    }
  }
  blocks_ = {.sums = touched_->sums(),
             .slots = sorted_.device_slots(),
             .rows = sorted_.device_rows(),
             .blocks = on_device(block_numbers_.flat(0, count), device_numbers_),
             .first = on_device(block_firsts_.flat(0, count), device_firsts_),
             .row_count = std::ssize(rows),
             .block_count = count};
}

}  // namespace tessera::optim
