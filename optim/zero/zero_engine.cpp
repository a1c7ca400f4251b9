#include "optim/zero/zero_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <map>

#include "core/autograd.h"
#include "core/text/step_number.h"
#include "core/trace.h"
#include "optim/kernels/step_end.h"
#include "optim/zero/graphs.h"

namespace tessera::optim {
namespace {

/// Returns a source of the parameters' present values, or initial values if they have none yet.
ParameterSource present_values(const std::vector<nn::NamedParameter>& parameters, uint64_t seed) {
  std::map<std::string, Tensor> present;
  for (const auto& named : parameters) {
    const Tensor& tensor = named.parameter.tensor();
    if (!tensor.allocated()) continue;
    const InUse in_use({&tensor});  // the last gather of an earlier optimizer may be in flight
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

/// Returns the lowest rank whose `failed` is true, or -1 if none failed. Collective.
int first_that_failed(dist::Communicator& communicator, bool failed) {
  // Allocated outside of the communicator, whose memory may be exhausted.
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

ZeroEngine::ZeroEngine(const ZeroOptions& options, UpdateRule rule, const dist::World& world)
    : options_(options),
      rule_(std::move(rule)),
      communicator_(world.communicator),
      record_(communicator_),
      statistics_(communicator_),
      values_(communicator_->device()) {
  if (options.loss_scaling) scaler_ = std::make_unique<LossScaler>(*options.loss_scaling);
  const Reducer::Notes notes{log_, record_, statistics_};
  reducer_ = options.graph ? std::make_unique<GraphedReducer>(options, communicator_, notes)
                           : std::make_unique<Reducer>(options, communicator_, notes);
}

void ZeroEngine::add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups,
                     std::vector<nn::NamedStatistics> statistics) {
  const Extent before{trainable_.size(),     frozen_.size(), tables_.size(),
                      update_counts_.size(), registered_,    scaler_ != nullptr};
  // Everything that can fail comes first. If the optimizer already has parameters, the ranks then
  // tell each other if they failed. Without this exchange, a rank that succeeded would wait forever
  // in the next step for a rank that rolled back.
  GradientNorm norm;
  BatchStatistics::Addition addition;
  std::exception_ptr failure;
  try {
    add_partitions(std::move(parameters), groups);
    norm = norm_of_all();
    addition = statistics_.prepare(std::move(statistics));
  } catch (...) {
    failure = std::current_exception();
  }
  const bool at_work = before.trainable + before.frozen + before.tables > 0;
  const int failed = at_work ? first_that_failed(*communicator_, failure != nullptr)
                             : (failure ? communicator_->rank() : -1);
  if (failed < 0) {
    norm_ = std::move(norm);
    statistics_.add(std::move(addition), options_.sync_batch_norm);
    reducer_->forget();  // micro-steps differ from now on
    return;
  }
  shrink_to(before);  // also on ranks where nothing failed
  if (failure) std::rethrow_exception(failure);
  fail(
      "optimizer: rank {} could not take the parameters over, so no rank has; its own message "
      "says why",
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
  // One partition for each dtype, trainable and frozen, in order of first registration. Tables are
  // sorted with them, so that the norm adds the blocks of a table where it would add those of a
  // dense parameter.
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
  TESSERA_CHECK(rule_.updates_ranges(),
                "optimizer: the rule updates row-sparse tables only, and '{}' is dense; give the "
                "rule as table_rule",
                parameters[0].named.name);
  const size_t count = parameters.size();
  trainable_.push_back(std::make_unique<TrainablePartition>(
      std::move(parameters), std::ssize(update_counts_), rule_, communicator_, options_, log_));
  reducer_->add(*trainable_.back());
  add_counts(count);
}

void ZeroEngine::add_table(PlacedParameter placed) {
  const bool trainable = placed.named.parameter.trainable();
  tables_.push_back(std::make_unique<Table>(
      std::move(placed), trainable ? std::ssize(update_counts_) : -1, table_rule(), communicator_,
      options_, log_, [this](int64_t number) { reducer_->note_completed_table(number); }));
  reducer_->add_table(*tables_.back());
  if (trainable) add_counts(1);
}

void ZeroEngine::add_counts(size_t parameters) {
  update_counts_.resize(update_counts_.size() + parameters, 0);
  warned_without_gradient_.resize(update_counts_.size(), false);
}

void ZeroEngine::reset_rule_state() {
  for (const auto& partition : trainable_) partition->reset_state();
  for (const auto& table : tables_) table->reset_state();
  update_counts_.assign(update_counts_.size(), 0);
}

std::vector<StagedPartition*> ZeroEngine::partitions() const {
  std::vector<StagedPartition*> list;
  for (const auto& partition : trainable_) list.push_back(partition.get());
  for (const auto& partition : frozen_) list.push_back(partition.get());
  return list;
}

ZeroEngine::Place ZeroEngine::find(const std::string& name) const {
  for (const auto& partition : trainable_) {
    const auto& parameters = partition->partition().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].named.name == name) return {partition.get(), static_cast<int>(i)};
    }
  }
  fail("optimizer: there is no trainable parameter '{}'", name);
}

const Table* ZeroEngine::find_table(const std::string& name) const {
  const auto found = std::ranges::find_if(tables_, [&name](const auto& table) {
    return table->trainable() && table->info().name() == name;
  });
  return found == tables_.end() ? nullptr : found->get();
}

void ZeroEngine::begin(int64_t step, const MicroStep& micro_step) {
  if (!state_.began()) {
    waited_before_ns_ = dist::waited_ns();
    dist::set_running_step(step);
    // Cleared before the first micro-step writes its own entries.
    record_.begin(micro_step.count, static_cast<int64_t>(update_counts_.size()));
    statistics_.begin_step(micro_step.count);
    reduced_ = false;
  }
  state_.begin(step, micro_step);
  reducer_->begin(micro_step);
}

// Gradients are scaled by the micro-batch's share of the step here and nowhere else.
float ZeroEngine::backward_scale() const { return state_.share() * loss_scale(); }

void ZeroEngine::backward(const Tensor& loss) {
  reducer_->backward(loss, backward_scale());
  state_.end_micro_step();
}

void ZeroEngine::skip() {
  reducer_->skip();
  state_.end_micro_step();
}

void ZeroEngine::run_micro_step(const std::function<Tensor()>& loss) {
  reducer_->run(loss, backward_scale());
  state_.end_micro_step();
}

void ZeroEngine::reduce() {
  // gradient() or gradient_norms() may have reduced this step already. Below, finish() completes
  // the gradient sums that the norm reads.
  if (reduced_) return;
  record_.set_notes(std::exchange(notes_, uint8_t{0}));
  record_.exchange();
  statistics_.gather();
  reducer_->finish();
  gather_touched_counts();
  norm_.compute(values_.scalars());
  reduced_ = true;
}

void ZeroEngine::gather_touched_counts() {
  std::vector<Table*> trainable;
  for (const auto& table : tables_) {
    if (table->trainable()) trainable.push_back(table.get());
  }
  if (trainable.empty()) return;
  const int64_t ranks = communicator_->size();
  const auto per_rank = 2 * std::ssize(trainable);
  if (!touched_counts_.values().defined() ||
      touched_counts_.values().elements() != ranks * per_rank) {
    touched_counts_ = dist::HostBuffer(ranks * per_rank, DType::i64, *communicator_);
  }
  const dist::HostBuffer& counts = touched_counts_;
  auto* own = counts.data<int64_t>() + communicator_->rank() * per_rank;
  for (Table* const table : trainable) {
    table->finish();
    for (const int64_t count : table->touched_counts()) *own++ = count;
  }
  counts.all_gather(*communicator_, dist::Traffic::rows).wait();
  for (size_t t = 0; t < trainable.size(); ++t) {
    std::array<std::vector<int64_t>, 2> of;  // rows and blocks, by rank
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t* const at = counts.data<int64_t>() + rank * per_rank;
      of[0].push_back(at[2 * t]);
      of[1].push_back(at[2 * t + 1]);
    }
    trainable[t]->set_counts(std::move(of[0]), std::move(of[1]));
  }
}

std::map<std::string, double> ZeroEngine::norms() const {
  std::map<std::string, double> norms;
  const std::vector<double> values = norm_.of_parts();
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [partition, parameter, table] = norm_.parts()[i];
    norms[table != nullptr ? table->info().name() : partition->parameter(parameter).named.name] =
        values[i];
  }
  return norms;
}

int64_t ZeroEngine::batches_with_data() const {
  int64_t count = 0;
  for (int64_t m = 0; m < state_.micro_batches(); ++m) count += record_.had_data(m) ? 1 : 0;
  return count;
}

float ZeroEngine::data_correction() const {
  const int64_t with_data = std::max<int64_t>(1, batches_with_data());
  return static_cast<float>(state_.micro_batches()) / static_cast<float>(with_data);
}

float ZeroEngine::gradient_factor() const { return data_correction() / loss_scale(); }

// With loss scaling the host sets the next scale, and with offload it runs the update. For either,
// the host needs a step's loss and norm before the update.
bool ZeroEngine::deferred() const {
  return !communicator_->device().is_cpu() && !scaler_ && options_.offload == Offload::none;
}

int64_t ZeroEngine::launch() {
  TESSERA_CHECK(std::ssize(launched_) < StepValues::slots,
                "launch_step: the results of {} steps are not asked for yet, {} may be under way; "
                "call get() of step {} first",
                launched_.size(), StepValues::slots, step_number(launched_.front().report.step));
  const trace::Scope scope("step");
  reduce();
  Launched launched = end_step();
  if (!deferred()) {
    update_by(launched);  // waits for loss and norm
  } else if (!launched.report.skipped) {
    update_and_gather(launched.reached, 1.0f, values_.scalars());  // scalars stay on the device
  }
  for (const auto& table : tables_) table->updated();
  launched.report.exposed_ns = dist::waited_ns() - waited_before_ns_;
  launched_.push_back(std::move(launched));
  return launched_.back().number;
}

// Computes loss, norm and clip factor on the ranks' device, and starts their copy to the host.
ZeroEngine::Launched ZeroEngine::end_step() {
  kernels::end_step(current_context(communicator_->device()), values_.scalars(), record_.losses(),
                    StepEnd{.ranks = communicator_->size(),
                            .micro_steps = state_.micro_step().count,
                            .micro_batches = state_.micro_batches(),
                            .share = state_.share(),
                            .correction = data_correction(),
                            .gradient_factor = gradient_factor(),
                            .clip = options_.clip,
                            .keep_skipping = !scaler_});
  state_.end();  // before any call that may throw, so that a failed step does not stay open
  // The copy to the host is launched before the update, so that get() does not wait for the update.
  Launched launched{.number = next_number_++,
                    .report = {},
                    .reached = std::vector<bool>(update_counts_.size()),
                    .update_counts = update_counts_,
                    .failures = failures_,
                    .values = values_.fetch()};
  for (size_t i = 0; i < update_counts_.size(); ++i) {
    launched.reached[i] = record_.reached(static_cast<int64_t>(i));
  }
  launched.report.step = state_.step();
  launched.report.loss_scale = loss_scale();
  launched.report.learning_rate =
      rule_.hyper(1, {}).learning_rate * options_.schedule(state_.step());
  launched.report.skipped = batches_with_data() == 0;
  launched.report.notes = record_.notes();
  return launched;
}

// Waits on the host for the step's loss and norm, then runs or skips the update.
void ZeroEngine::update_by(const Launched& launched) {
  const StepScalars values = launched.values.get();
  // A step without data must not count as a step without overflow.
  const bool without_data = batches_with_data() == 0;
  if (scaler_ && (values.skip || !without_data)) scaler_->step(values.skip, state_.step());
  if (values.skip || without_data) return;
  update_and_gather(launched.reached, values.gradient_scale, nullptr);
}

bool ZeroEngine::ready(int64_t number) const {
  return std::all_of(launched_.begin(), launched_.end(), [number](const Launched& launched) {
    return launched.number != number || launched.values.ready();
  });
}

StepReport ZeroEngine::result(int64_t number) {
  TESSERA_CHECK(!launched_.empty() && launched_.front().number <= number,
                "get: the result of this step was asked for before");
  TESSERA_CHECK(launched_.front().number == number,
                "get: the result of step {} must be asked for first",
                step_number(launched_.front().report.step));
  Launched launched = std::move(launched_.front());
  launched_.pop_front();
  const StepScalars values = launched.values.get();
  StepReport& report = launched.report;
  if (values.skip && !scaler_) fail_non_finite(launched, values);
  report.loss = values.loss;
  report.grad_norm = values.norm;
  report.skipped = report.skipped || values.skip;
  if (!report.skipped) report.without_gradient = newly_unreached(launched.reached);
  dist::set_finished_step(report.step);
  return report;
}

void ZeroEngine::fail_non_finite(const Launched& launched, const StepScalars& values) {
  const int64_t failed = launched.report.step;
  // If a failure was reported after this step's launch, the device has skipped this step too.
  if (launched.failures != failures_) {
    throw NonFiniteError(fmt::format("step {}: nothing was updated, because step {} before it was "
                                     "not finite",
                                     step_number(failed), step_number(failed_step_)),
                         -1);
  }
  ++failures_;
  failed_step_ = failed;
  update_counts_ =
      launched.update_counts;  // later launches were skipped too, so their counts are undone
  values_.stop_skipping();
  if (!std::isfinite(values.loss)) {
    throw NonFiniteError(
        fmt::format("step {}: the loss is not finite ({})", step_number(failed), values.loss),
        values.non_finite);
  }
  throw NonFiniteError(fmt::format("step {}: the gradient norm is not finite ({}), the loss is {}",
                                   step_number(failed), values.norm, values.loss),
                       -1);
}

void ZeroEngine::update_and_gather(const std::vector<bool>& reached, float gradient_scale,
                                   const StepScalars* scalars) {
  statistics_.fold(state_.micro_batches(), scalars);
  // Tables come first, because most models look up rows at the begin of a forward.
  update_tables(reached, gradient_scale, scalars);
  for (size_t f = trainable_.size(); f-- > 0;) {
    TrainablePartition& partition = *trainable_[f];
    const std::vector<PlacedParameter>& parameters = partition.partition().parameters();
    std::vector<UpdateHyper> hypers;
    std::map<std::pair<int, int64_t>, int> known;  // group and number of updates -> hypers
    std::vector<int> hyper_of(parameters.size(), -1);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto index = static_cast<size_t>(partition.first()) + i;
      if (!reached[index]) continue;
      const std::pair key{parameters[i].group,
                          ++update_counts_[index]};  // undone by fail_non_finite()
      const auto [entry, is_new] = known.emplace(key, static_cast<int>(hypers.size()));
      if (is_new) hypers.push_back(hyper(rule_, key.first, key.second, gradient_scale));
      hyper_of[i] = entry->second;
    }
    partition.update_and_gather({hypers, std::move(hyper_of), scalars});
  }
}

void ZeroEngine::update_tables(const std::vector<bool>& reached, float gradient_scale,
                               const StepScalars* scalars) {
  for (const auto& table : tables_) {
    if (!table->trainable() || !reached[static_cast<size_t>(table->number())]) continue;
    const int64_t count = ++update_counts_[static_cast<size_t>(table->number())];
    table->update(hyper(table_rule(), table->info().placed.group, count, gradient_scale), scalars);
  }
}

UpdateHyper ZeroEngine::hyper(const UpdateRule& rule, int group, int64_t count,
                              float gradient_scale) const {
  const GroupOptions own =
      group == 0 ? GroupOptions{} : options_.groups[static_cast<size_t>(group) - 1];
  UpdateHyper hyper = rule.hyper(count, own);
  hyper.learning_rate *= options_.schedule(state_.step());
  hyper.gradient_scale = gradient_scale;
  return hyper;
}

std::vector<std::string> ZeroEngine::newly_unreached(const std::vector<bool>& reached) {
  std::vector<std::string> names;
  for (const auto& partition : trainable_) {
    const auto& parameters = partition->partition().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto index = static_cast<size_t>(partition->first()) + i;
      if (warned_without_gradient_[index] || reached[index]) continue;
      warned_without_gradient_[index] = true;
      names.push_back(parameters[i].named.name);
    }
  }
  for (const auto& table : tables_) {
    const auto index = static_cast<size_t>(table->number());
    if (!table->trainable() || warned_without_gradient_[index] || reached[index]) continue;
    warned_without_gradient_[index] = true;
    names.push_back(table->info().name());
  }
  return names;
}

}  // namespace tessera::optim
