// Adds parameters to a ZeroEngine: lays them out in partitions and tables, and rolls back if adding
// fails on any rank.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <utility>

#include "core/autograd.h"
#include "optim/zero/zero_engine.h"

namespace tessera::optim {
namespace {

/// Returns a source that gives each parameter its present values, or initial values if the
/// parameter has no memory yet.
ParameterSource present_values(const std::vector<nn::NamedParameter>& parameters, uint64_t seed) {
  std::map<std::string, Tensor> present;
  for (const auto& named : parameters) {
    const Tensor& tensor = named.parameter.tensor();
    if (!tensor.allocated()) continue;
    const InUse in_use({&tensor});  // waits for a gather of an earlier optimizer, if any
    present[named.name] = tensor.detach().to_host();
  }
  return [present, seed](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
    const auto found = present.find(named.name);
    if (found == present.end()) {
      nn::initialize(named.parameter.initializer(), seed, named.name, begin, out);
      return;
    }
    visit_float(found->second.dtype(), "optimizer", [&]<class T>() {
      const T* values = found->second.data<T>() + begin;
      for (size_t i = 0; i < out.size(); ++i) out[i] = float(values[i]);
    });
  };
}

// Keeps the parameters' old values and gradients, so that restore() can put them back if
// ZeroEngine::add fails.
class ParametersBefore {
 public:
  void keep(const std::vector<nn::NamedParameter>& parameters) {
    for (const auto& named : parameters) {
      const Tensor tensor = named.parameter.tensor();
      places_.push_back(
          {tensor, tensor.storage(), offset_bytes(tensor), named.parameter.gradient()});
    }
  }
  void restore() const {
    for (Place place : places_) {
      place.tensor.attach(place.storage, place.offset_bytes);
      place.tensor.leaf()->gradient = place.gradient;
    }
  }

 private:
  static int64_t offset_bytes(const Tensor& tensor) {
    if (!tensor.allocated()) return 0;
    return static_cast<std::byte*>(tensor.raw()) -
           static_cast<std::byte*>(tensor.storage()->data());
  }

  struct Place {
    Tensor tensor;
    std::shared_ptr<Storage> storage;
    int64_t offset_bytes;
    Tensor gradient;
  };
  std::vector<Place> places_;
};

/// Returns the lowest rank whose `failed` is true, or -1 if none failed. Collective.
int first_that_failed(dist::Communicator& communicator, bool failed) {
  // Plain host memory is used, because communicator.allocate() may have no memory left.
  const Tensor flags =
      Tensor::zeros({communicator.size()}, DType::u8, Device{}, Category::communication);
  auto* const values = flags.data<uint8_t>();
  values[communicator.rank()] = failed ? 1 : 0;
  communicator.all_gather_host(flags, {dist::Traffic::other}).wait();
  const auto* const found = std::find(values, values + communicator.size(), 1);
  return found == values + communicator.size() ? -1 : static_cast<int>(found - values);
}

}  // namespace

bool any_f16(const std::vector<nn::NamedParameter>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& named) { return named.parameter.dtype() == DType::f16; });
}

void ZeroEngine::add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups,
                     std::vector<nn::NamedStatistics> statistics) {
  const Extent before{trainable_.size(),     frozen_.size(), tables_.size(),
                      update_counts_.size(), registered_,    scaler_ != nullptr};
  // Everything that can fail is in the try block. The optimizer's constructor makes the first call
  // of add(). If a rank fails in this call, only this rank throws, because it has no optimizer and
  // the job ends. After a failure in a later call, the job may go on. So in later calls the ranks
  // tell each other whether they failed. If any rank failed, all ranks roll back and throw. If only
  // the failed rank rolled back, the other ranks would wait for it forever in the next step.
  GradientNorm norm;
  BatchStatistics::Addition addition;
  ParametersBefore parameters_before;
  std::exception_ptr failure;
  try {
    parameters_before.keep(parameters);
    add_partitions(std::move(parameters), groups);
    norm = norm_of_all();
    addition = statistics_.prepare(std::move(statistics));
  } catch (...) {
    failure = std::current_exception();
  }
  const bool is_first = std::exchange(is_first_add_, false);
  const int failed = is_first ? (failure ? communicator_->rank() : -1)
                              : first_that_failed(*communicator_, failure != nullptr);
  if (failed < 0) {
    norm_ = std::move(norm);
    statistics_.add(std::move(addition), options_.sync_batch_norm);
    reducer_->forget();  // logs and graphs of earlier micro-steps lack the new parameters
    return;
  }
  shrink_to(before);  // also on ranks where nothing failed
  parameters_before.restore();
  if (failure) std::rethrow_exception(failure);
  fail(
      "optimizer: rank {} could not take over the parameters, so no rank has taken them over; that "
      "rank's message says why",
      failed);
}

void ZeroEngine::shrink_to(const Extent& extent) {
  // The hooks refer to the partitions, so the hooks are removed first.
  for (size_t i = extent.trainable; i < trainable_.size(); ++i) reducer_->remove(*trainable_[i]);
  for (size_t i = extent.frozen; i < frozen_.size(); ++i) reducer_->remove_frozen(*frozen_[i]);
  for (size_t i = extent.tables; i < tables_.size(); ++i) reducer_->remove_table(*tables_[i]);
  tables_.resize(extent.tables);
  norm_parts_.resize(std::min(norm_parts_.size(), extent.parameters));
  trainable_.resize(extent.trainable);
  frozen_.resize(extent.frozen);
  update_counts_.resize(extent.parameters);
  warned_without_gradient_.resize(extent.parameters);
  registered_ = extent.registered;
  if (!extent.scales_losses) scaler_ = nullptr;
}

GradientNorm ZeroEngine::norm_of_all() const { return {communicator_, norm_parts_}; }

void ZeroEngine::add_partitions(std::vector<nn::NamedParameter> parameters,
                                const std::vector<int>& groups) {
  const ParameterSource source = present_values(parameters, options_.seed);
  if (any_f16(parameters) && !scaler_) scaler_ = std::make_unique<LossScaler>(LossScaling{});
  const size_t first_trainable = trainable_.size();
  const size_t first_frozen = frozen_.size();
  const size_t first_table = tables_.size();
  // A part has all trainable parameters of one dtype, or all frozen parameters of one dtype, in the
  // order of their registration. Parts are in the order of their first parameters. add_part() makes
  // one partition of a part's dense parameters. Row-sparse tables are in parts too, because the
  // gradient norm adds up squares in the order of the parts. So a table has the same place in this
  // sum as a dense parameter would have.
  std::vector<std::vector<PlacedParameter>> parts;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nn::Parameter& parameter = parameters[i].parameter;
    const auto fits = [&](const std::vector<PlacedParameter>& part) {
      const nn::Parameter& first = part[0].named.parameter;
      return first.dtype() == parameter.dtype() && first.trainable() == parameter.trainable();
    };
    auto part = std::find_if(parts.begin(), parts.end(), fits);
    if (part == parts.end()) part = parts.insert(parts.end(), std::vector<PlacedParameter>{});
    part->push_back({std::move(parameters[i]), groups[i], registered_++});
  }
  for (auto& part : parts) add_part(std::move(part));
  for (size_t i = first_table; i < tables_.size(); ++i) tables_[i]->fill(source);
  for (size_t i = first_trainable; i < trainable_.size(); ++i) trainable_[i]->fill(source);
  for (size_t i = first_frozen; i < frozen_.size(); ++i) frozen_[i]->fill(source);
}

void ZeroEngine::add_part(std::vector<PlacedParameter> parameters) {
  std::vector<PlacedParameter> dense;
  const bool trainable = parameters[0].named.parameter.trainable();
  for (const PlacedParameter& placed : parameters) {
    if (placed.named.parameter.distinct_rows() == 0) dense.push_back(placed);
  }
  if (!dense.empty()) add_partition(std::move(dense));
  int next_dense = 0;
  for (PlacedParameter& placed : parameters) {
    GradientNorm::Part part;
    if (placed.named.parameter.distinct_rows() > 0) {
      add_table(std::move(placed));
      part.table = tables_.back().get();
    } else if (trainable) {
      part = {.partition = &trainable_.back()->partition(), .parameter = next_dense++};
    }
    if (trainable) norm_parts_.push_back(part);
  }
}

void ZeroEngine::add_partition(std::vector<PlacedParameter> parameters) {
  if (!parameters[0].named.parameter.trainable()) {
    frozen_.push_back(
        std::make_unique<StagedPartition>(std::move(parameters), communicator_, options_, log_));
    reducer_->add_frozen(*frozen_.back());
    return;
  }
  const size_t count = parameters.size();
  trainable_.push_back(std::make_unique<TrainablePartition>(
      std::move(parameters), std::ssize(update_counts_), rule_, communicator_, options_, log_));
  reducer_->add(*trainable_.back());
  add_counts(count);
}

void ZeroEngine::add_counts(size_t parameters) {
  update_counts_.resize(update_counts_.size() + parameters, 0);
  warned_without_gradient_.resize(update_counts_.size(), false);
}

void ZeroEngine::add_table(PlacedParameter placed) {
  const bool trainable = placed.named.parameter.trainable();
  tables_.push_back(std::make_unique<Table>(
      std::move(placed), trainable ? std::ssize(update_counts_) : -1, table_rule(), communicator_,
      options_, log_, [this](int64_t number) { reducer_->note_completed_table(number); }));
  reducer_->add_table(*tables_.back());
  if (trainable) add_counts(1);
}

}  // namespace tessera::optim
