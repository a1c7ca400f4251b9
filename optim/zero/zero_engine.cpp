#include "optim/zero/zero_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <map>

#include "core/autograd.h"
#include "core/text/number_text.h"
#include "core/text/step_number.h"
#include "core/trace.h"
#include "optim/kernels/step_end.h"
#include "optim/zero/graphs.h"

namespace tessera::optim {
namespace {

// Throws unless the loss is one f32 number with history. Returns the loss. If the loss is itself a
// parameter, returns a copy, because the reducer reads the loss outside of operations, and at stage
// 3 a parameter has values only while operations use the parameter.
//
// Without this check, the reducer would throw later, with worse errors. For a wrong shape or dtype,
// its error would only say that a copy does not fit. For a loss without history, its error would
// come after the reducer has logged the beginning of backward. The caller could then no longer
// skip() the micro-batch.
Tensor checked_loss(const Tensor& given) {
  TESSERA_CHECK(given.elements() == 1 && given.dtype() == DType::f32,
                "backward: the loss is {} {}, expected one f32 number", dtype_name(given.dtype()),
                given.shape());
  return loss_with_history(given);
}

}  // namespace

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
  const auto is_it = [&name](const PlacedParameter& placed) { return placed.named.name == name; };
  bool is_frozen =
      std::ranges::any_of(tables_, [&](const auto& table) { return is_it(table->info().placed); });
  for (const auto& partition : frozen_) {
    is_frozen |= std::ranges::any_of(partition->partition().parameters(), is_it);
  }
  TESSERA_CHECK(!is_frozen, "optimizer: parameter '{}' is frozen, so it has no gradient", name);
  fail("optimizer: there is no parameter '{}'", name);
}

void ZeroEngine::begin(int64_t step, const MicroStep& micro_step) {
  if (!state_.began()) {
    trace_.begin_step();
    waited_before_ns_ = dist::waited_ns();
    dist::set_running_step(step);
    // The records are cleared before the first micro-step writes its entries.
    record_.begin(micro_step.count, static_cast<int64_t>(update_counts_.size()));
    statistics_.begin_step(micro_step.count);
    reduced_ = false;
  }
  state_.begin(step, micro_step);
  trace_.begin_micro_batch();
  reducer_->begin(micro_step);
}

void ZeroEngine::check_open(const char* call) const {
  TESSERA_CHECK(state_.running() || !state_.began(),
                "optimizer: {}() was called after the backward() or skip() of this micro-batch, "
                "which has only one such call: add its losses, and call backward() for the sum",
                call);
  TESSERA_CHECK(state_.running(), "optimizer: {} outside of micro_batches", call);
}

// Gradients are scaled by the micro-batch's share of the step here and nowhere else.
float ZeroEngine::backward_scale() const { return state_.share() * loss_scale(); }

void ZeroEngine::end_micro_step() {
  const MicroStep& micro_step = state_.micro_step();
  const int64_t index = micro_step.index * communicator_->size() + communicator_->rank();
  trace_.end_micro_batch(micro_step.contributes ? std::optional(index) : std::nullopt);
  state_.end_micro_step();
}

void ZeroEngine::backward(const Tensor& given) {
  const Tensor loss = checked_loss(given);
  trace_.begin_backward();
  reducer_->backward(loss, backward_scale());
  end_micro_step();
}

void ZeroEngine::check_skip() const {
  TESSERA_CHECK(!options_.sync_batch_norm,
                "optimizer: a rank without data would leave the other ranks waiting in their "
                "synchronized batch norms");
}

void ZeroEngine::skip() {
  check_skip();
  reducer_->skip();
  end_micro_step();
}

void ZeroEngine::run_micro_step(const std::function<Tensor()>& loss) {
  const auto traced_loss = [&] {
    Tensor value = loss();
    if (value.defined()) {
      value = checked_loss(value);
    } else {
      check_skip();
    }
    trace_.begin_backward();
    return value;
  };
  reducer_->run(traced_loss, backward_scale());
  end_micro_step();
}

void ZeroEngine::reduce() {
  // gradient() or gradient_norms() may have reduced this step already.
  if (reduced_) return;
  record_.set_notes(std::exchange(notes_, uint8_t{0}));
  record_.exchange();
  statistics_.gather();
  // The norm reads complete gradient sums. finish() completes the sums of buckets, and
  // gather_touched_counts() those of tables.
  reducer_->finish();
  gather_touched_counts();
  norm_.compute(values_.scalars());
  reduced_ = true;
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

// On GPUs, the host launches the update before it knows the step's loss and norm, except with loss
// scaling and with offload. With loss scaling, the host needs both values to set the scale of the
// next step. With offload, the host needs both values to run the update itself.
bool ZeroEngine::deferred() const {
  return !communicator_->device().is_cpu() && !scaler_ && options_.offload == Offload::none;
}

int64_t ZeroEngine::launch() {
  TESSERA_CHECK(std::ssize(launched_) < StepValues::slots,
                "launch_step: the results of {} steps have not been asked for yet, and at most {} "
                "may be under way; call get() of step {} first",
                launched_.size(), StepValues::slots, step_number(launched_.front().report.step));
  const int64_t number = launch_end();
  trace_.end_step(launched_.back().report.step);
  return number;
}

int64_t ZeroEngine::launch_end() {
  const trace::Scope scope("end of step");
  reduce();
  state_.end();  // before the calls below, which may throw: a failed step must not stay open
  call_schedule();
  Launched launched = end_step();
  if (!deferred()) {
    update_by(launched);  // waits for loss and norm
  } else if (!launched.report.skipped) {
    update_and_gather(launched.reached, 1.0f, values_.scalars());  // scalars stay on the device
  }
  close_step();
  launched.report.exposed_ns = dist::waited_ns() - waited_before_ns_;
  launched_.push_back(std::move(launched));
  // If a launch throws before here, the next launch gets the same number. So the numbers in
  // launched_ are consecutive, and no two steps of launched_ share a copy of StepValues.
  return next_number_++;
}

int64_t ZeroEngine::most_updates() const {
  return update_counts_.empty() ? 0 : *std::ranges::max_element(update_counts_);
}

void ZeroEngine::close_step() {
  for (const auto& partition : trainable_) partition->end_step();
  for (const auto& table : tables_) table->updated();
}

void ZeroEngine::call_schedule() {
  try {
    schedule_factor_ = options_.schedule(state_.step());
    TESSERA_CHECK(std::isfinite(schedule_factor_) && schedule_factor_ >= 0,
                  "optimizer: the schedule gives step {} the factor {}, expected a finite number "
                  "of at least 0",
                  step_number(state_.step()), without_nan_sign(schedule_factor_));
  } catch (...) {
    close_step();  // all ranks have the same schedule, so all ranks throw
    throw;
  }
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
  // The copy to the host is launched before the update, so that get() does not wait for the update.
  Launched launched{.number = next_number_,
                    .report = {},
                    .reached = std::vector<bool>(update_counts_.size()),
                    .update_counts = update_counts_,
                    .failures = failures_,
                    .values = values_.fetch(next_number_)};
  for (size_t i = 0; i < update_counts_.size(); ++i) {
    launched.reached[i] = record_.reached(static_cast<int64_t>(i));
  }
  launched.report.step = state_.step();
  launched.report.loss_scale = loss_scale();
  launched.report.learning_rate =
      rule_.hyper(1 + most_updates(), {}).learning_rate * schedule_factor_;
  launched.report.skipped = batches_with_data() == 0;
  launched.report.notes = record_.notes();
  return launched;
}

// Waits on the host for the step's loss and norm, then runs or skips the update.
void ZeroEngine::update_by(const Launched& launched) {
  const StepScalars values = launched.values.get();
  // A step without data has zero gradients, which cannot overflow at any scale. So such a step says
  // nothing about the scale, and the loss scaler does not count it.
  const bool without_data = batches_with_data() == 0;
  if (scaler_ && (values.skip || !without_data)) {
    try {
      scaler_->step(values.skip, state_.step(), values.loss);
    } catch (...) {
      close_step();  // all ranks have the same scale and values, so all ranks throw
      throw;
    }
  }
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
  if (!report.skipped) report.without_gradient = newly_without_gradient(launched.reached);
  dist::set_finished_step(report.step);
  return report;
}

void ZeroEngine::fail_non_finite(const Launched& launched, const StepScalars& values) {
  const int64_t failed = launched.report.step;
  // If a failure was reported after this step's launch, the device has skipped this step too.
  if (launched.failures != failures_) {
    throw NonFiniteError(
        fmt::format("step {}: nothing was updated, because the earlier step {} was not finite",
                    step_number(failed), step_number(failed_step_)),
        -1);
  }
  ++failures_;
  failed_step_ = failed;
  // Undoes the counts of this step and of steps launched after it, because none of these steps
  // updates anything.
  update_counts_ = launched.update_counts;
  values_.stop_skipping();
  if (!std::isfinite(values.loss)) {
    throw NonFiniteError(fmt::format("step {}: the loss is not finite ({})", step_number(failed),
                                     without_nan_sign(values.loss)),
                         values.non_finite);
  }
  throw NonFiniteError(fmt::format("step {}: the gradient norm is not finite ({}), the loss is {}",
                                   step_number(failed), without_nan_sign(values.norm), values.loss),
                       -1);
}

void ZeroEngine::update_and_gather(const std::vector<bool>& reached, float gradient_scale,
                                   const StepScalars* scalars) {
  statistics_.fold(state_.micro_batches(), scalars);
  // Tables come first, because most models look up rows at the beginning of a forward.
  update_tables(reached, gradient_scale, scalars);
  for (size_t f = trainable_.size(); f-- > 0;) {
    TrainablePartition& partition = *trainable_[f];
    const std::vector<PlacedParameter>& parameters = partition.partition().parameters();
    std::vector<UpdateHyper> hypers;
    std::map<std::pair<int, int64_t>, int> known;  // (group, number of updates) -> index in hypers
    std::vector<int> hyper_of(parameters.size(), -1);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto index = static_cast<size_t>(partition.first()) + i;
      if (!reached[index]) continue;
      const std::pair key{parameters[i].group,
                          ++update_counts_[index]};  // undone by fail_non_finite() after a failure
      const auto [entry, is_new] = known.emplace(key, static_cast<int>(hypers.size()));
      if (is_new) hypers.push_back(hyper(rule_, key.first, key.second, gradient_scale));
      hyper_of[i] = entry->second;
    }
    partition.update_and_gather({hypers, std::move(hyper_of), scalars});
  }
}

UpdateHyper ZeroEngine::hyper(const UpdateRule& rule, int group, int64_t count,
                              float gradient_scale) const {
  const GroupOptions own =
      group == 0 ? GroupOptions{} : options_.groups[static_cast<size_t>(group) - 1];
  UpdateHyper hyper = rule.hyper(count, own);
  hyper.learning_rate *= schedule_factor_;
  hyper.gradient_scale = gradient_scale;
  return hyper;
}

std::vector<std::string> ZeroEngine::newly_without_gradient(const std::vector<bool>& reached) {
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
