#include "optim/tables/row_exchange.h"

#include <numeric>
#include <utility>

#include "core/ops/copy.h"

namespace tessera::optim {

Tensor row_buffer(dist::Communicator& communicator, int64_t rows, int64_t width, DType dtype,
                  Category category) {
  return uninitialised_buffer(communicator, {rows, width}, dtype, category);
}

std::vector<int64_t> in_elements(std::vector<int64_t> rows, int64_t columns) {
  for (int64_t& count : rows) count *= columns;
  return rows;
}

Tensor row_list(const std::vector<int32_t>& rows, Device device) {
  const Tensor list = Tensor::empty({std::ssize(rows)}, DType::i32, Device{}, Category::workspace);
  std::ranges::copy(rows, list.data<int32_t>());
  return list.to(device, Category::workspace);
}

Tensor on_device(const Tensor& list, const Tensor& buffer) {
  if (!buffer.defined() || list.elements() == 0) return list;
  const Tensor copy = buffer.flat(0, list.elements());
  copy.copy_from(list);
  return copy;
}

RowCountsOfRanks::RowCountsOfRanks(const TableInfo& info, dist::Communicator& communicator)
    : info_(info),
      communicator_(communicator),
      counts_(info.ranks() * info.ranks(), DType::i64, communicator),
      by_owner_(static_cast<size_t>(info.ranks())),
      by_source_(static_cast<size_t>(info.ranks())) {}

void RowCountsOfRanks::gather(const SortedRows& rows, dist::Traffic purpose) {
  rows.count_by_owner(info_.layout, by_owner_);
  std::copy(by_owner_.begin(), by_owner_.end(),
            counts_.data<int64_t>() + info_.rank * info_.ranks());
  work_ = counts_.all_gather(communicator_, purpose);
}

void RowCountsOfRanks::wait() {
  std::exchange(work_, {}).wait();
  for (int64_t source = 0; source < info_.ranks(); ++source) {
    by_source_[static_cast<size_t>(source)] =
        counts_.data<int64_t>()[source * info_.ranks() + info_.rank];
  }
}

int64_t RowCountsOfRanks::incoming() const {
  return std::accumulate(by_source_.begin(), by_source_.end(), int64_t{0});
}

int64_t RowCountsOfRanks::of_others(const std::vector<int64_t>& counts) const {
  return std::accumulate(counts.begin(), counts.end(), -counts[static_cast<size_t>(info_.rank)]);
}

dist::ExchangeCounts exchange_counts(const std::vector<int64_t>& send,
                                     const std::vector<int64_t>& receive, int64_t width) {
  return {in_elements(send, width), in_elements(receive, width)};
}

RowFetch::RowFetch(const TableInfo& info, dist::Communicator& communicator)
    : info_(info),
      communicator_(communicator),
      counts_(info, communicator),
      wanted_(info.distinct(), communicator.device()) {
  const int64_t asked = info.ranks() * info.most_asked();
  constexpr Category category = Category::communication;
  asked_rows_ = row_buffer(communicator, asked, 1, DType::i32, category);
  asked_values_ = row_buffer(communicator, asked, info.width(), info.dtype(), category);
  values_ = row_buffer(communicator, info.distinct(), info.width(), info.dtype(), category);
}

void RowFetch::request(std::span<const int32_t> rows, int64_t first_slot, Purpose purpose) {
  purpose_ = purpose;
  wanted_.sort(rows, first_slot);
  counts_.gather(wanted_, traffic(dist::Traffic::rows));
}

void RowFetch::start(const Tensor& own) {
  counts_.wait();
  const int64_t asked = counts_.incoming();
  const int64_t width = info_.width();
  const Tensor asked_rows = asked_rows_.rows(0, asked);
  const Tensor asked_values = asked_values_.rows(0, asked);
  const Tensor values = values_.rows(0, wanted_.count());
  communicator_.exchange_v(wanted_.device_rows(), asked_rows,
                           exchange_counts(counts_.by_owner(), counts_.by_source(), 1),
                           info_.call(traffic(dist::Traffic::rows)));
  const int64_t first = info_.own().begin;
  // The communicator runs this copy after it has received the row indices, and before it sends the
  // copied values. So this function need not wait for the row indices.
  communicator_.run([asked_rows, asked_values, own, first, asked] {
    kernels::copy_rows(current_context(own.device()), RowList{asked_values},
                       RowList{own, asked_rows.view({asked}), first}, asked);
  });
  arrived_ = communicator_.exchange_v(
      asked_values, values, exchange_counts(counts_.by_source(), counts_.by_owner(), width),
      info_.call(traffic(dist::Traffic::parameters)));
}

void RowFetch::count(RowCounts& total) const {
  total.asked += counts_.of_others(counts_.by_owner());
  total.served += counts_.of_others(counts_.by_source());
}

void RowFetch::finish(const Tensor& to) {
  std::exchange(arrived_, {}).wait();
  kernels::copy_rows(current_context(to.device()), RowList{to, wanted_.device_slots()},
                     RowList{values_}, wanted_.count());
}

void RowGather::reserve(int64_t most) {
  if (most <= capacity()) return;
  rows_ = values_ = {};  // freed before larger buffers are allocated
  rows_ = row_buffer(communicator_, most, 1, DType::i32, Category::communication);
  values_ = row_buffer(communicator_, most, info_.width(), dtype_, Category::communication);
}

RowGather::Gathered RowGather::gather(const Tensor& changed, const RowList& from,
                                      const std::vector<int64_t>& counts, dist::Traffic purpose) {
  Gathered result;
  result.begin = std::accumulate(counts.begin(), counts.begin() + info_.rank, int64_t{0});
  result.end = result.begin + changed.elements();
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor rows = rows_.rows(0, all);
  result.rows = rows.view({all});
  result.values = values_.rows(0, all);
  const Context context = current_context(values_.device());
  kernels::copy(context, result.rows.flat(result.begin, result.end), changed);
  kernels::copy_rows(context, RowList{result.values.rows(result.begin, result.end)}, from,
                     changed.elements());
  communicator_.all_gather_v(rows, counts, info_.call(dist::Traffic::rows));
  result.arrived = communicator_.all_gather_v(result.values, in_elements(counts, info_.width()),
                                              info_.call(purpose));
  return result;
}

}  // namespace tessera::optim
