#include "optim/zero/zero_engine.h"

#include <algorithm>
#include <cmath>

#include "core/autograd.h"
#include "core/trace.h"
#include "optim/kernels/step_end.h"

namespace tessera::optim {
namespace {

/// The values that parameters have, or else their initial ones.
ParameterSource present_values(const std::vector<nn::NamedParameter>& parameters, uint64_t seed) {
  std::map<std::string, Tensor> present;
  for (const auto& named : parameters) {
    const Tensor& tensor = named.parameter.tensor();
    if (!tensor.allocated()) continue;
    const InUse in_use({&tensor});  // an earlier optimizer's last gather may be under way
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

}  // namespace

bool any_f16(const std::vector<nn::NamedParameter>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& named) {
    return named.parameter.dtype() == DType::f16;
  });
}

ZeroEngine::ZeroEngine(const ZeroOptions& zero_options, UpdateRule update_rule,
                       const dist::World& world)
    : options(zero_options),
      rule(std::move(update_rule)),
      communicator(world.communicator),
      norm_(communicator),
      record_(communicator),
      statistics_(communicator),
      values_(communicator->device()) {
  if (options.loss_scaling) scaler_ = std::make_unique<LossScaler>(*options.loss_scaling);
  if (options.graph) loss_ = flat_buffer(*communicator, 1, DType::f32, Category::communication);
}

void ZeroEngine::add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups) {
  const ParameterSource source = present_values(parameters, options.seed);
  if (any_f16(parameters) && !scaler_) scaler_ = std::make_unique<LossScaler>(LossScaling{});
  const size_t first_trainable = trainable_.size();
  const size_t first_frozen = frozen_.size();
  // One flow for each dtype, trainable and frozen, in order of first registration.
  std::vector<std::vector<PlacedParameter>> flows;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nn::Parameter& parameter = parameters[i].parameter;
    const auto fits = [&](const std::vector<PlacedParameter>& flow) {
      const nn::Parameter& first = flow[0].named.parameter;
      return first.dtype() == parameter.dtype() && first.trainable() == parameter.trainable();
    };
    auto flow = std::find_if(flows.begin(), flows.end(), fits);
    if (flow == flows.end()) flow = flows.insert(flows.end(), std::vector<PlacedParameter>{});
    flow->push_back({std::move(parameters[i]), groups[i], registered_++});
  }
  for (auto& flow : flows) add_flow(std::move(flow));
  for (size_t i = first_trainable; i < trainable_.size(); ++i) trainable_[i]->fill(source);
  for (size_t i = first_frozen; i < frozen_.size(); ++i) frozen_[i]->fill(source);
  sort_buckets();
  log_.clear();  // what ranks did together before is not what they will do
  last_log_.clear();
  graphs_.clear();
  ready_to_capture_ = false;
}

void ZeroEngine::add(const std::vector<nn::NamedStatistics>& statistics) {
  statistics_.add(statistics, options.sync_batch_norm);
}

void ZeroEngine::add_flow(std::vector<PlacedParameter> parameters) {
  if (!parameters[0].named.parameter.trainable()) {
    frozen_.push_back(std::make_unique<ParameterFlow>(std::move(parameters), communicator, options,
                                                      log_));
    return;
  }
  auto flow =
      std::make_unique<BucketFlow>(std::move(parameters), rule, communicator, options, log_);
  norm_.add(flow->partition());
  const auto first = static_cast<int64_t>(taken_.size());
  first_.push_back(first);
  taken_.resize(taken_.size() + flow->partition().parameters().size(), 0);
  unreached_.resize(taken_.size(), false);
  flow->on_complete = [this] { launch_complete(); };
  flow->on_gradient = [this, first](int parameter) {
    reached_.push_back(first + parameter);
  };
  trainable_.push_back(std::move(flow));
}

void ZeroEngine::sort_buckets() {
  order_.clear();
  for (const auto& flow : trainable_) {
    for (int b = 0; b < flow->partition().buckets(); ++b) order_.emplace_back(flow.get(), b);
  }
  const auto reached_earlier = [](const auto& a, const auto& b) {
    return a.first->partition().first_registration(a.second) >
           b.first->partition().first_registration(b.second);
  };
  std::sort(order_.begin(), order_.end(), reached_earlier);
}

std::vector<ParameterFlow*> ZeroEngine::flows() const {
  std::vector<ParameterFlow*> list;
  for (const auto& flow : trainable_) list.push_back(flow.get());
  for (const auto& flow : frozen_) list.push_back(flow.get());
  return list;
}

ZeroEngine::Place ZeroEngine::find(const std::string& name) const {
  for (const auto& flow : trainable_) {
    const auto& parameters = flow->partition().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].named.name == name) return {flow.get(), static_cast<int>(i)};
    }
  }
  fail("optimizer: there is no trainable parameter '{}'", name);
}

void ZeroEngine::launch_complete() {
  while (next_ < order_.size() && order_[next_].first->complete(order_[next_].second)) {
    order_[next_].first->launch(order_[next_].second);
    ++next_;
  }
}

void ZeroEngine::begin(int64_t of_step, const MicroStep& of_micro_step, int64_t count) {
  micro_step = of_micro_step;
  micro_batches = count;
  if (!began) {
    step = of_step;
    waited_before_ns_ = dist::waited_ns();
    dist::set_running_step(step);
    record_.begin(micro_step.count, static_cast<int64_t>(taken_.size()));
    statistics_.begin_step(micro_step.count);
    reduced_ = false;
  }
  began = true;
  running = true;
  reached_.clear();
  statistics_.begin_micro_step();
  if (!options.graph) begin_flows();
}

void ZeroEngine::begin_flows() {
  next_ = 0;
  if (!log_.empty()) last_log_ = std::exchange(log_, {});
  for (const auto& flow : trainable_) flow->begin(micro_step, micro_batches);
  for (ParameterFlow* flow : flows()) flow->parameters().begin_forward();
}

void ZeroEngine::backward(const Tensor& loss) {
  statistics_.check_observed();
  if (micro_step.contributes) {
    record_.set_loss(micro_step.index, loss);
    statistics_.keep(micro_step.index);
  }
  propagate(loss);
  end_micro_step();
}

void ZeroEngine::propagate(const Tensor& loss) {
  const auto begin_backward = [this] {
    for (ParameterFlow* flow : flows()) flow->parameters().begin_backward();
  };
  log_.push_back(begin_backward);
  begin_backward();
  // The one place where a gradient is scaled by its share of the step.
  tessera::backward(loss, share() * (scaler_ ? scaler_->scale() : 1.0f));
  end_flows();
}

void ZeroEngine::skip() {
  TESSERA_CHECK(log_.empty(),
                "optimizer: skip after operations have read parameters in this micro-batch, "
                "expected before");
  TESSERA_CHECK(options.stage < 3 || communicator->size() == 1 || !last_log_.empty(),
                "optimizer: a rank without data in its first micro-batch cannot know in which "
                "order the others gather parameters at stage 3");
  const MicroStepLog replay = last_log_;
  for (const auto& together : replay) together();
  log_ = replay;
  end_flows();
  end_micro_step();
}

void ZeroEngine::end_flows() {
  for (const auto& flow : trainable_) flow->complete_missing();
  for (ParameterFlow* flow : flows()) flow->parameters().end_backward();
}

void ZeroEngine::end_micro_step() {
  if (micro_step.contributes) {
    for (const int64_t parameter : reached_) record_.set_reached(parameter);
  }
  running = false;
  ++finished;
}

bool ZeroEngine::all_micro_steps_done() const {
  return began && !running && finished == micro_step.count;
}

void ZeroEngine::reduce() {
  if (reduced_) return;
  record_.exchange();
  statistics_.gather();
  for (const auto& flow : trainable_) flow->finish_reduction();
  norm_.compute(values_.scalars());
  reduced_ = true;
}

int64_t ZeroEngine::batches_with_data() const {
  int64_t count = 0;
  for (int64_t m = 0; m < micro_batches; ++m) count += record_.had_data(m) ? 1 : 0;
  return count;
}

float ZeroEngine::data_correction() const {
  const int64_t with_data = std::max<int64_t>(1, batches_with_data());
  return static_cast<float>(micro_batches) / static_cast<float>(with_data);
}

float ZeroEngine::gradient_factor() const {
  return data_correction() / (scaler_ ? scaler_->scale() : 1.0f);
}

// Loss scaling decides on the host by what the next step multiplies its loss, and offload updates
// on the host: these wait for a step's values before its update.
bool ZeroEngine::deferred() const {
  return !communicator->device().is_cpu() && !scaler_ && options.offload == Offload::none;
}

int64_t ZeroEngine::launch() {
  TESSERA_CHECK(std::ssize(launched_) < StepValues::slots,
                "launch_step: the results of {} steps are not asked for yet, {} may be under way; "
                "call get() of step {} first", launched_.size(), StepValues::slots,
                launched_.front().report.step);
  const trace::Scope scope("step");
  reduce();
  kernels::end_step(current_context(communicator->device()), values_.scalars(), record_.losses(),
                    StepEnd{.ranks = communicator->size(),
                            .micro_steps = micro_step.count,
                            .micro_batches = micro_batches,
                            .share = share(),
                            .correction = data_correction(),
                            .gradient_factor = gradient_factor(),
                            .clip = options.clip,
                            .keep_skipping = !scaler_});
  finished = 0;  // the step is over, also where it fails now
  began = false;
  Launched launched{.number = next_number_++,
                    .report = {},
                    .reached = std::vector<bool>(taken_.size()),
                    .taken = taken_,
                    .failures = failures_,
                    .values = values_.fetch()};
  for (size_t i = 0; i < taken_.size(); ++i) {
    launched.reached[i] = record_.reached(static_cast<int64_t>(i));
  }
  launched.report.step = step;
  launched.report.loss_scale = scaler_ ? scaler_->scale() : 1.0f;
  launched.report.learning_rate = rule.hyper(1, {}).learning_rate * options.schedule(step);
  launched.report.skipped = batches_with_data() == 0;
  if (!deferred()) {
    update_by(launched);
  } else if (!launched.report.skipped) {
    update(launched.reached, 1.0f, values_.scalars());
  }
  launched.report.exposed_ns = dist::waited_ns() - waited_before_ns_;
  launched_.push_back(std::move(launched));
  return launched_.back().number;
}

/// Where the host decides.
void ZeroEngine::update_by(const Launched& launched) {
  const StepScalars values = launched.values.get();
  const bool without_data = batches_with_data() == 0;
  if (scaler_ && (values.skip || !without_data)) scaler_->step(values.skip, step);
  if (!values.skip && !without_data) update(launched.reached, values.gradient_scale, nullptr);
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
                launched_.front().report.step);
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
  if (launched.failures != failures_) {
    throw NonFiniteError(fmt::format("step {}: nothing was updated, because step {} before it was "
                                     "not finite", failed, failed_step_),
                         -1);
  }
  ++failures_;
  failed_step_ = failed;
  taken_ = launched.taken;  // nor has what was launched since then updated anything
  values_.stop_skipping();
  if (!std::isfinite(values.loss)) {
    throw NonFiniteError(
        fmt::format("step {}: the loss is not finite ({})", failed, values.loss),
        values.non_finite);
  }
  throw NonFiniteError(
      fmt::format("step {}: the gradient norm is not finite ({}), the loss is {}", failed,
                  values.norm, values.loss),
      -1);
}

void ZeroEngine::update(const std::vector<bool>& reached, float gradient_scale,
                        const StepScalars* scalars) {
  statistics_.fold(micro_batches, scalars);
  for (size_t f = trainable_.size(); f-- > 0;) {
    const std::vector<PlacedParameter>& parameters = trainable_[f]->partition().parameters();
    std::vector<UpdateHyper> hypers;
    std::map<std::pair<int, int64_t>, int> known;  // group and number of updates -> hypers
    std::vector<int> hyper_of(parameters.size(), -1);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto index = static_cast<size_t>(first_[f]) + i;
      if (!reached[index]) continue;
      const std::pair key{parameters[i].group, ++taken_[index]};
      const auto [entry, is_new] = known.emplace(key, static_cast<int>(hypers.size()));
      if (is_new) hypers.push_back(hyper(key.first, key.second, gradient_scale));
      hyper_of[i] = entry->second;
    }
    trainable_[f]->update({hypers, std::move(hyper_of), scalars});
  }
}

UpdateHyper ZeroEngine::hyper(int group, int64_t count, float gradient_scale) const {
  const GroupOptions own =
      group == 0 ? GroupOptions{} : options.groups[static_cast<size_t>(group) - 1];
  UpdateHyper hyper = rule.hyper(count, own);
  hyper.learning_rate *= options.schedule(step);
  hyper.gradient_scale = gradient_scale;
  return hyper;
}

std::vector<std::string> ZeroEngine::newly_unreached(const std::vector<bool>& reached) {
  std::vector<std::string> names;
  for (size_t f = 0; f < trainable_.size(); ++f) {
    const auto& parameters = trainable_[f]->partition().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto index = static_cast<size_t>(first_[f]) + i;
      if (unreached_[index] || reached[index]) continue;
      unreached_[index] = true;
      names.push_back(parameters[i].named.name);
    }
  }
  return names;
}

}  // namespace tessera::optim
