#include "optim/tables/table.h"

#include <numeric>
#include <utility>

#include "core/assign.h"
#include "core/error.h"
#include "core/ops/convert.h"
#include "core/ops/copy.h"
#include "core/ops/fill.h"

namespace tessera::optim {
namespace {

dist::RowLayout layout_of(const PlacedParameter& placed, const UpdateRule& rule, int ranks) {
  const Shape& shape = placed.named.parameter.shape();
  const int64_t multiple = dist::row_multiple(shape[1]);
  // The rows of a rank must end where a block of 256 elements ends, or where the table ends
  // (dist/row_layout.h). If the optimizer state has one value per row, a block of 256 such values
  // belongs to 256 rows. So the rows of a rank must then end at a multiple of 256 rows.
  return {shape[0], shape[1], ranks, rule.value_per_row() ? dist::block_elements : multiple};
}

}  // namespace

Table::Table(PlacedParameter placed, int64_t number, const UpdateRule& rule,
             std::shared_ptr<dist::Communicator> communicator, const ZeroOptions& options,
             MicroStepLog& log, Complete complete)
    : communicator_(std::move(communicator)),
      info_{placed, layout_of(placed, rule, communicator_->size()), communicator_->rank()},
      number_(number),
      values_(info_, *communicator_, options.stage == 3) {
  if (trainable()) {
    gradients_.emplace(info_, *communicator_);
    update_.emplace(info_, *communicator_, rule, options);
  }
  set_hooks(log, std::move(complete));
}

void Table::set_hooks(MicroStepLog& log, Complete complete) {
  Leaf& leaf = info_.placed.named.parameter.leaf();
  const int64_t registration = info_.placed.registration;
  leaf.look_up = [this, &log, registration](const Tensor& indices, int64_t used) {
    const bool evaluates = !values_.running() || !may_be_differentiated();
    TableRows rows =
        evaluates ? values_.look_up_in_evaluation(indices, used) : values_.look_up(indices, used);
    if (!evaluates) looked_up_ = true;
    // Lookups are logged, because a rank without data repeats the log to take part in the fetches
    // of the other ranks. A refused lookup has fetched nothing and is not logged.
    if (values_.running()) {
      const auto kind = evaluates ? ParameterEvent::Kind::done : ParameterEvent::Kind::use;
      log.note({kind, registration});
      log.add([this, kind] { follow(kind); });
    }
    return rows;
  };
  leaf.about_to_be_used = [name = info_.name()] {
    fail(
        "optimizer: '{}' is a row-sparse table, which an operation reads as a whole; expected "
        "lookups (embedding, embedding_bag, row_products), or a dense table",
        name);
  };
  leaf.no_longer_used = [] {};
  leaf.gradient_buffer = [this]() -> Tensor {
    TESSERA_CHECK(gradients_,
                  "optimizer: table '{}' was frozen when the optimizer took it over, so it has no "
                  "memory for a gradient",
                  info_.name());
    // A lookup outside of the micro-batch counts as an evaluation. It does not number rows by the
    // slots of the micro-batch, so its gradient does not fit into the buffer.
    TESSERA_CHECK(looked_up_,
                  "optimizer: a gradient of '{}' arrived, but the running micro-batch has not "
                  "looked up its rows; run the forward within the micro-batch",
                  info_.name());
    return gradients_->open();
  };
  leaf.gradient_complete = [this, &log, registration, complete = std::move(complete)] {
    log.note({ParameterEvent::Kind::complete, registration});
    complete(number_);
  };
}

void Table::follow(ParameterEvent::Kind kind) {
  if (kind == ParameterEvent::Kind::use) values_.follow_look_up();
  if (kind == ParameterEvent::Kind::done) values_.follow_evaluation();
}

Table::~Table() {
  Leaf& leaf = info_.placed.named.parameter.leaf();
  leaf.look_up = nullptr;
  leaf.about_to_be_used = nullptr;
  leaf.no_longer_used = nullptr;
  leaf.gradient_buffer = nullptr;
  leaf.gradient_complete = nullptr;
  leaf.gradient = {};
}

void Table::begin(const MicroStep& micro_step) {
  micro_batches_ = micro_step.micro_batches;
  looked_up_ = false;
  values_.begin_forward();
  if (gradients_) gradients_->begin(micro_step);
  if (update_) update_->reserve(values_, info_.most_touched_of_all(micro_batches_));
}

void Table::begin_backward() {
  values_.begin_backward();
  if (gradients_) gradients_->begin_backward(values_.looked_up(), values_.used());
}

void Table::send(bool overlap) {
  if (!gradients_) return;
  gradients_->send();
  if (!overlap) gradients_->wait();
}

void Table::end_backward() {
  looked_up_ = false;
  values_.end_backward();
}

void Table::finish() {
  gradients_->wait();
  gradients_->close();
}

std::array<int64_t, 2> Table::touched_counts() const {
  return {gradients_->touched().count(), gradients_->blocks().block_count};
}

void Table::set_counts(std::vector<int64_t> rows, std::vector<int64_t> blocks) {
  row_counts_ = std::move(rows);
  block_counts_ = std::move(blocks);
}

int64_t Table::most_blocks() const {
  const int64_t all = dist::blocks_of(info_.rows() * info_.width());
  return std::min(all, info_.most_touched_of_all(micro_batches_) * info_.blocks_per_row());
}

int64_t Table::all_blocks() const {
  return std::accumulate(block_counts_.begin(), block_counts_.end(), int64_t{0});
}

void Table::update(const UpdateHyper& hyper, const StepScalars* scalars) {
  update_->update(*gradients_, values_, row_counts_, hyper, scalars);
  ++updates_;
  updated_rows_ += gradients_->touched().count();
}

RowCounts Table::counts() const {
  RowCounts counts = gradients_ ? gradients_->counts() : RowCounts{};
  counts.asked = values_.counts().asked;
  counts.served = values_.counts().served;
  counts.updated = updated_rows_;
  counts.updates = updates_;
  return counts;
}

Tensor Table::own_of(const Tensor& held) const {
  const dist::Range range = update_->range();
  const dist::Range own = info_.own();
  return held.rows(own.begin - range.begin, own.end - range.begin);
}

Tensor Table::own_weights() const {
  if (!update_) return values_.values_of(info_.own());
  return own_of(update_->weights(values_));
}

void Table::fill(const ParameterSource& source) {
  values_.forget_prefetched();
  const auto fill_rows = [&](const Tensor& target, int64_t first_row) {
    if (target.elements() == 0) return;
    const int64_t first = first_row * info_.width();
    assign(target, [&](int64_t begin, std::span<float> out) {
      source(info_.placed.named, first + begin, out);
    });
  };
  fill_rows(values_.values(), values_.held().begin);
  if (update_ && update_->has_masters()) {
    fill_rows(update_->weights(values_), update_->range().begin);
  }
}

void Table::reset_state() {
  if (update_) update_->reset_state();
}

// Gathers the rows of all ranks in f32, [V, width]. `own`: this rank's rows.
Tensor Table::gather(const Tensor& own, int64_t width, dist::Traffic purpose) const {
  const Tensor whole =
      row_buffer(*communicator_, info_.rows(), width, DType::f32, Category::communication);
  const dist::Range range = info_.own();
  if (range.size() > 0) {
    kernels::convert(current_context(whole.device()), whole.rows(range.begin, range.end),
                     own.view({range.size(), width}));
  }
  if (info_.ranks() == 1) return whole;
  communicator_->all_gather_v(whole, info_.owned_elements(width), info_.call(purpose)).wait();
  return whole;
}

Tensor Table::gather_values(dist::Traffic purpose) const {
  return gather(own_weights(), info_.width(), purpose);
}

Tensor Table::gather_sums() const {
  const Device device = communicator_->device();
  const Tensor own = Tensor::zeros({info_.own().size(), info_.width()}, DType::f32, device);
  const SortedRows& touched = gradients_->touched();
  kernels::copy_rows(current_context(device),
                     RowList{own, touched.device_rows(), info_.own().begin},
                     RowList{gradients_->sums(), touched.device_slots()}, touched.count());
  return gather(own, info_.width(), dist::Traffic::other);
}

StateTensor Table::state_tensor(const std::string& kind, DType dtype, bool value_per_row) const {
  const Shape& shape = info_.placed.named.parameter.shape();
  return {info_.name(), kind, dtype, value_per_row ? Shape{shape[0]} : shape};
}

void Table::list_state(std::vector<StateTensor>& list) const {
  list.push_back(state_tensor(value_kind, trainable() ? DType::f32 : info_.dtype(), false));
  if (!update_) return;
  for (const std::string& name : update_->rule().state_names()) {
    list.push_back(state_tensor(name, DType::f32, update_->rule().value_per_row()));
  }
}

void Table::list_pieces(std::vector<StatePiece>& list) const {
  const dist::Range own = info_.own();
  if (own.size() == 0) return;
  const auto add = [&](const std::string& kind, const Tensor& values, bool value_per_row) {
    const int64_t width = value_per_row ? 1 : info_.width();
    list.push_back({.of = state_tensor(kind, values.dtype(), value_per_row),
                    .begin = own.begin * width,
                    .end = own.end * width,
                    .values = values.flat(0, values.elements())});
  };
  add(value_kind, own_weights(), false);
  if (!update_) return;
  const std::vector<std::string> names = update_->rule().state_names();
  for (size_t i = 0; i < names.size(); ++i) {
    add(names[i], own_of(update_->state()[i]), update_->rule().value_per_row());
  }
}

void Table::restore(const StateSource& source) {
  fill([&source](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
    source.read(state_path(named.name, value_kind), begin, out);
  });
  if (!update_) return;
  const std::vector<std::string> names = update_->rule().state_names();
  const int64_t width = state_width();
  const int64_t first = update_->range().begin * width;
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor& state = update_->state()[i];
    if (state.elements() == 0) continue;
    assign(state, [&](int64_t begin, std::span<float> out) {
      source.read(state_path(info_.name(), names[i]), first + begin, out);
    });
  }
}

int64_t Table::row_state_bytes() const {
  if (!update_) return 0;
  const int64_t values = std::ssize(update_->state()) * state_width() +
                         (update_->has_masters() ? info_.width() : 0);
  return values * dtype_size(DType::f32);
}

void Table::own_state(StateByName& result) const {
  const std::vector<std::string> names = update_->rule().state_names();
  const int64_t width = state_width();
  StateShard& shard = result[info_.name()];
  shard.range = {update_->range().begin * width, update_->range().end * width};
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor values = update_->state()[i].to_host();
    shard.values[names[i]].assign(values.data<float>(), values.data<float>() + values.elements());
  }
}

void Table::gather_state(int root, StateByName& result) const {
  const std::vector<std::string> names = update_->rule().state_names();
  const int64_t width = state_width();
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor whole = gather(own_of(update_->state()[i]), width, dist::Traffic::other).to_host();
    if (communicator_->rank() != root) continue;
    StateShard& shard = result[info_.name()];
    shard.range = {0, whole.elements()};
    shard.values[names[i]].assign(whole.data<float>(), whole.data<float>() + whole.elements());
  }
}

}  // namespace tessera::optim
