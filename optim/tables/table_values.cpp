#include "optim/tables/table_values.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace tessera::optim {

TableValues::TableValues(const TableInfo& info, dist::Communicator& communicator, bool sharded)
    : info_(info),
      communicator_(communicator),
      sharded_(sharded),
      values_(row_buffer(communicator, held().size(), info.width(), info.dtype(),
                         Category::parameters)),
      current_(make_looked_up_rows()),
      updated_rows_(info, communicator, info.dtype()) {
  // At stage 3 the parameter has no memory. At other stages the parameter is a view of the table.
  Tensor tensor = info.placed.named.parameter.tensor();
  tensor.attach(sharded ? nullptr : values_.storage(), 0);
  tensor.leaf()->name = info.name();
  if (!communicator.device().is_cpu()) {
    device_rows_ = row_buffer(communicator, info.distinct(), 1, DType::i32, Category::communication)
                       .view({info.distinct()});
  }
  if (!sharded || info.ranks() == 1) return;
  fetch_.emplace(info, communicator);
  rounds_ = dist::HostBuffer(info.ranks(), DType::i64, communicator);
}

// The destructor does not wait, because it may run while an exception unwinds. Instead, the first
// operation that reads the table waits for values in flight.
TableValues::~TableValues() {
  if (gathered_.done()) return;
  info_.placed.named.parameter.leaf().about_to_be_used = [work = gathered_] { work.wait(); };
}

TableValues::LookedUpRows TableValues::make_looked_up_rows() const {
  return {RowSlots(info_.distinct()), row_buffer(communicator_, info_.distinct(), info_.width(),
                                                 info_.dtype(), Category::parameters)};
}

Tensor TableValues::values_of(const dist::Range& range) const {
  return values_.rows(range.begin - held().begin, range.end - held().begin);
}

void TableValues::begin_forward() {
  phase_ = Phase::forward;
  current_.slots.clear();
  prefetched_ = ahead_ == Ahead::started;
  if (!prefetched_) return;
  if (next_fetch_) next_fetch_->finish(next_->values);
  std::swap(current_, *next_);
  ahead_ = Ahead::none;
  std::ranges::fill(used_.values<uint8_t>(), uint8_t{0});
}

void TableValues::begin_backward() {
  phase_ = Phase::backward;
  if (ahead_ == Ahead::in_backward) start_prefetch();
}

void TableValues::end_backward() { phase_ = Phase::evaluation; }

Tensor TableValues::host_indices(const Tensor& indices, int64_t used) const {
  TESSERA_CHECK(indices.dtype() == DType::i32,
                "lookup: indices of '{}' have dtype {}, expected i32", info_.name(),
                dtype_name(indices.dtype()));
  const Tensor here = indices.to(Device{}, host_category());
  TESSERA_CHECK(0 <= used && used <= here.elements(),
                "lookup: {} indices in use, expected 0 to {}, for '{}'", used, here.elements(),
                info_.name());
  for (const int32_t row : here.values<int32_t>().first(static_cast<size_t>(used))) {
    if (row >= 0 && row < info_.rows()) continue;
    fail_input("lookup: row {} of '{}', which has {} rows", row, info_.name(), info_.rows());
  }
  return here;
}

// Adds rows that `slots` does not have if `may_add` is true, and throws for them otherwise.
Tensor TableValues::slots_of(RowSlots& slots, const Tensor& indices, int64_t used,
                             bool may_add) const {
  const Tensor result = Tensor::empty(indices.shape(), DType::i32, Device{}, host_category());
  const auto from = indices.values<int32_t>();
  const auto to = result.values<int32_t>();
  for (size_t i = 0; i < static_cast<size_t>(used); ++i) {
    to[i] = may_add ? slots.add(from[i]) : slots.slot_of(from[i]);
    if (to[i] >= 0) continue;
    if (!may_add) refuse_new_row(from[i]);
    fail_input(
        "lookup: a micro-batch looks up more than {} distinct rows of '{}'; give the table a "
        "larger "
        "number of distinct rows, or the micro-batch fewer samples",
        slots.capacity(), info_.name());
  }
  std::fill(to.begin() + used, to.end(), 0);
  return result;
}

TableRows TableValues::look_up(const Tensor& indices, int64_t used) {
  const Tensor here = host_indices(indices, used);
  const int64_t before = current_.slots.count();
  try {
    const Tensor slots = slots_of_micro_batch(here, used);
    if (phase_ == Phase::forward && !prefetched_) bring(before);
    // Returns the whole buffer of info_.distinct() rows, even if fewer rows are in use. The memory
    // that operations allocate then does not depend on the data.
    return {current_.values, slots.to(communicator_.device())};
  } catch (...) {
    // The new rows of a refused lookup have no values yet. A later lookup must not find them.
    current_.slots.truncate(before);
    throw;
  }
}

void TableValues::refuse_new_row(int32_t row) const {
  TESSERA_CHECK(phase_ == Phase::forward,
                "lookup: backward looks up rows of '{}' that the forward has not looked up",
                info_.name());
  fail("lookup: row {} of '{}' was not prefetched; prefetch all rows of a micro-batch", row,
       info_.name());
}

// Returns the slots of the rows, and adds the rows to looked_up() if they may be added. If this
// function throws, some of the new rows may have been added.
Tensor TableValues::slots_of_micro_batch(const Tensor& indices, int64_t used) {
  const bool may_add = phase_ == Phase::forward && !prefetched_;
  const Tensor slots = slots_of(current_.slots, indices, used, may_add);
  if (!prefetched_) return slots;
  for (const int32_t slot : slots.values<int32_t>().first(static_cast<size_t>(used))) {
    used_.data<uint8_t>()[slot] = 1;
  }
  return slots;
}

// Writes the values of current_'s rows with slots from `first_slot` on. A rank that has the whole
// table copies the values from it. Any other rank fetches the values from their owners.
void TableValues::bring(int64_t first_slot) {
  if (fetch_) {
    const auto rows = current_.slots.rows().subspan(static_cast<size_t>(first_slot));
    fetch_->request(rows, first_slot);
    fetch_->start(values_);
    fetch_->count(counts_);
    fetch_->finish(current_.values);
    return;
  }
  copy_rows_to(current_, first_slot);
}

// Copies the rows of `to` with slots from `first_slot` on, from this rank's table to to.values.
void TableValues::copy_rows_to(const LookedUpRows& to, int64_t first_slot) {
  synchronize();
  const Tensor rows = to.slots.rows_from(first_slot);
  const int64_t count = rows.elements();
  if (count == 0) return;
  kernels::copy_rows(current_context(values_.device()),
                     RowList{to.values.rows(first_slot, first_slot + count)},
                     RowList{values_, on_device(rows, device_rows_)}, count);
}

void TableValues::follow_look_up() {
  if (phase_ == Phase::forward && !prefetched_ && fetch_) bring(current_.slots.count());
}

// An evaluation may look up any number of rows. A rank that has the whole table returns the table
// without a copy. Any other rank fetches at most info_.distinct() rows at a time, into memory that
// is freed with the result.
TableRows TableValues::look_up_in_evaluation(const Tensor& indices, int64_t used) {
  synchronize();
  if (!fetch_) return {values_, indices.to(values_.device())};
  const Tensor here = host_indices(indices, used);
  const int64_t most = std::max<int64_t>(1, std::min(here.elements(), info_.rows()));
  RowSlots slots(most, host_category());
  const Tensor places = slots_of(slots, here, used);
  const Tensor values = Tensor::empty({most, info_.width()}, info_.dtype(), communicator_.device());
  fetch_all(slots, values);
  return {values, places.to(communicator_.device())};
}

void TableValues::follow_evaluation() {
  if (fetch_) look_up_in_evaluation(Tensor::empty({0}, DType::i32), 0);
}

void TableValues::fetch_all(const RowSlots& slots, const Tensor& values) {
  const int64_t n = info_.distinct();
  const auto rounds_of = [n](int64_t rows) { return (rows + n - 1) / n; };
  // A fetch is collective, so ranks that need fewer rows take part in the rounds of other ranks.
  auto* const rounds = rounds_.data<int64_t>();
  rounds[info_.rank] = rounds_of(slots.count());
  rounds_.all_gather(communicator_, dist::Traffic::other).wait();
  const int64_t most = *std::max_element(rounds, rounds + info_.ranks());
  for (int64_t round = 0; round < most; ++round) {
    const int64_t begin = std::min(slots.count(), round * n);
    const int64_t end = std::min(slots.count(), begin + n);
    fetch_->request(
        slots.rows().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), begin,
        RowFetch::Purpose::evaluation);
    fetch_->start(values_);
    fetch_->finish(values);
  }
}

// Only records the rows. Every rank must start the fetch at the same place in its sequence of
// collectives, so the fetch starts at the beginning of backward or after the update.
void TableValues::prefetch(const Tensor& indices, bool updates_next) {
  TESSERA_CHECK(ahead_ == Ahead::none && phase_ == Phase::forward,
                "prefetch: the rows of '{}' for the next micro-batch are prefetched already, or "
                "backward has begun",
                info_.name());
  if (!next_) {
    next_ = make_looked_up_rows();
    used_ = Tensor::zeros({info_.distinct()}, DType::u8, Device{}, Category::communication);
    if (fetch_) next_fetch_.emplace(info_, communicator_);
  }
  next_->slots.clear();
  const int64_t count = indices.elements();
  slots_of(next_->slots, host_indices(indices, count), count);
  ahead_ = updates_next ? Ahead::after_update : Ahead::in_backward;
}

void TableValues::start_prefetch() {
  ahead_ = Ahead::started;
  if (next_fetch_) {
    next_fetch_->request(next_->slots.rows(), 0);
    next_fetch_->start(values_);
    next_fetch_->count(counts_);
    return;
  }
  copy_rows_to(*next_, 0);
}

void TableValues::updated() {
  if (ahead_ == Ahead::after_update) start_prefetch();
}

void TableValues::forget_prefetched() {
  if (ahead_ == Ahead::started && next_fetch_) next_fetch_->finish(next_->values);
  ahead_ = Ahead::none;
}

std::span<const uint8_t> TableValues::used() const {
  if (!prefetched_) return {};
  return {used_.data<uint8_t>(), static_cast<size_t>(current_.slots.count())};
}

void TableValues::reserve_updated(int64_t most) {
  if (most <= updated_rows_.capacity()) return;
  synchronize();  // the last gather may still use the smaller buffers
  updated_rows_.reserve(most);
}

void TableValues::gather_updated(const Tensor& changed, const std::vector<int64_t>& counts) {
  synchronize();  // an earlier gather may still read the buffers
  const RowGather::Gathered all =
      updated_rows_.gather(changed, RowList{values_, changed}, counts, dist::Traffic::parameters);
  // Writes only the rows of other ranks. This rank's rows already have their new values, and other
  // code may read them while the communicator writes.
  gathered_ = communicator_.run([table = values_, all] {
    const auto write = [&](int64_t from, int64_t to) {
      kernels::copy_rows(current_context(table.device()), RowList{table, all.rows.flat(from, to)},
                         RowList{all.values.rows(from, to)}, to - from);
    };
    write(0, all.begin);
    write(all.end, all.rows.elements());
  });
}

void TableValues::gather_all() {
  gathered_ = communicator_.all_gather_v(values_, info_.owned_elements(info_.width()),
                                         info_.call(dist::Traffic::parameters));
}

void TableValues::synchronize() { std::exchange(gathered_, {}).wait(); }

}  // namespace tessera::optim
