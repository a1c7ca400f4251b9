// Lists the state of a ZeroEngine as named tensors, and restores the state from such tensors.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "optim/zero/zero_engine.h"

namespace tessera::optim {
namespace {

constexpr const char* scaler_name = "loss_scaler";
constexpr const char* scale_kind = "scale";
constexpr const char* good_steps_kind = "good_steps";

StateTensor count_tensor(const std::string& name, const std::string& kind) {
  return {name, kind, DType::i64, {}};
}

// Makes a piece of the state (StatePiece) that has one value. The optimizer holds the value as a
// plain number and not as a tensor, so the piece has a copy rather than a view.
template <class T>
StatePiece scalar_piece(const std::string& name, const std::string& kind, T value) {
  const Tensor values = Tensor::empty({1}, dtype_of<T>, Device{}, Category::checkpoint);
  *values.data<T>() = value;
  return {
      .of = {name, kind, dtype_of<T>, {}}, .begin = 0, .end = 1, .values = values, .is_copy = true};
}

StatePiece statistics_piece(const StateTensor& tensor, const Tensor& values) {
  return {.of = tensor,
          .begin = 0,
          .end = tensor.shape.elements(),
          .values = values,
          .always_copied = true};
}

void read_statistics(const StateSource& source, const std::string& path, Tensor to) {
  // source.read() writes to host memory, but the statistics may be in GPU memory.
  const Tensor values = Tensor::empty(to.shape(), DType::f32, Device{}, Category::workspace);
  source.read(path, 0, values.values<float>());
  to.copy_from(values);
}

// An event is stored as one number: parameter * event_kinds + kind (docs/checkpoints.md).
constexpr int64_t event_kinds = 4;

ParameterEvent event_of(int64_t number, int64_t parameters) {
  if (number < 0 || number / event_kinds >= parameters) {
    fail_input(
        "the order in which parameters are used has the event {}, which belongs to none of the {} "
        "parameters",
        number, parameters);
  }
  return {static_cast<ParameterEvent::Kind>(number % event_kinds), number / event_kinds};
}

}  // namespace

std::vector<StateTensor> ZeroEngine::state_tensors() const {
  std::vector<StateTensor> list;
  // The list depends on the model, the update rules and loss scaling, never on stage or ranks.
  for (const StagedPartition* partition : partitions()) partition->list_state(list);
  for (const auto& table : tables_) table->list_state(list);
  for (const auto& partition : trainable_) {
    for (const PlacedParameter& placed : partition->partition().parameters()) {
      list.push_back(count_tensor(placed.named.name, updates_kind));
    }
  }
  for (const auto& table : tables_) {
    if (table->trainable()) list.push_back(count_tensor(table->info().name(), updates_kind));
  }
  for (const auto& [name, statistics] : statistics_.all()) {
    list.push_back({name, running_mean_kind, DType::f32, statistics->mean.shape()});
    list.push_back({name, running_variance_kind, DType::f32, statistics->variance.shape()});
  }
  if (scaler_) {
    list.push_back({scaler_name, scale_kind, DType::f32, {}});
    list.push_back(count_tensor(scaler_name, good_steps_kind));
  }
  return list;
}

std::vector<StatePiece> ZeroEngine::own_state() const {
  std::vector<StatePiece> list;
  for (const StagedPartition* partition : partitions()) partition->list_pieces(list);
  for (const auto& table : tables_) table->list_pieces(list);
  // The remaining state is the same on every rank, so rank 0 alone saves it.
  if (communicator_->rank() != 0) return list;
  for (const auto& partition : trainable_) {
    auto number = static_cast<size_t>(partition->first());
    for (const PlacedParameter& placed : partition->partition().parameters()) {
      list.push_back(scalar_piece(placed.named.name, updates_kind, update_counts_[number++]));
    }
  }
  for (const auto& table : tables_) {
    if (!table->trainable()) continue;
    const int64_t count = update_counts_[static_cast<size_t>(table->number())];
    list.push_back(scalar_piece(table->info().name(), updates_kind, count));
  }
  for (const auto& [name, statistics] : statistics_.all()) {
    const Shape& shape = statistics->mean.shape();
    const StateTensor mean{name, running_mean_kind, DType::f32, shape};
    const StateTensor variance{name, running_variance_kind, DType::f32, shape};
    list.push_back(statistics_piece(mean, statistics->mean.detach()));
    list.push_back(statistics_piece(variance, statistics->variance.detach()));
  }
  if (scaler_) {
    list.push_back(scalar_piece(scaler_name, scale_kind, scaler_->scale()));
    list.push_back(scalar_piece(scaler_name, good_steps_kind, scaler_->good_steps()));
  }
  return list;
}

std::vector<int64_t> ZeroEngine::read_update_counts(const StateSource& source) const {
  std::vector<int64_t> counts = update_counts_;
  const auto read_count = [&](const std::string& name, int64_t number) {
    const int64_t count = source.count(state_path(name, updates_kind));
    constexpr int64_t most = int64_t{1} << 62;  // later steps add to the count
    if (count < 0 || count > most) {
      fail_input("{} has {} updates, expected 0 to 2^62", name, count);
    }
    counts[static_cast<size_t>(number)] = count;
  };
  for (const auto& partition : trainable_) {
    int64_t number = partition->first();
    for (const PlacedParameter& placed : partition->partition().parameters()) {
      read_count(placed.named.name, number++);
    }
  }
  for (const auto& table : tables_) {
    if (table->trainable()) read_count(table->info().name(), table->number());
  }
  return counts;
}

void ZeroEngine::restore(const StateSource& source) {
  // Events, counts and loss scale are checked before anything is changed. So if one of them is
  // refused, the engine is as it was.
  std::vector<ParameterEvent> events;
  for (const int64_t number : source.parameter_events()) {
    events.push_back(event_of(number, registered_));
  }
  std::vector<int64_t> update_counts = read_update_counts(source);
  if (scaler_) {
    float scale = 0;
    source.read(state_path(scaler_name, scale_kind), 0, std::span(&scale, 1));
    // If this call throws, it has changed nothing.
    scaler_->restore(scale, source.count(state_path(scaler_name, good_steps_kind)));
  }
  update_counts_ = std::move(update_counts);
  // Each rank reads only what it holds: ranges of the values, of the master weights and of the
  // update rule's state.
  for (StagedPartition* partition : partitions()) partition->restore(source);
  for (const auto& table : tables_) table->restore(source);
  for (const auto& [name, statistics] : statistics_.all()) {
    read_statistics(source, state_path(name, running_mean_kind), statistics->mean);
    read_statistics(source, state_path(name, running_variance_kind), statistics->variance);
  }
  log_.set_events(std::move(events));
}

std::vector<int64_t> ZeroEngine::parameter_events() const {
  std::vector<int64_t> numbers;
  for (const auto& [kind, parameter] : log_.events()) {
    numbers.push_back(parameter * event_kinds + static_cast<int64_t>(kind));
  }
  return numbers;
}

}  // namespace tessera::optim
