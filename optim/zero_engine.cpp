#include "optim/zero_engine.h"

#include <algorithm>
#include <cmath>

#include "core/autograd.h"
#include "core/trace.h"

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

bool is_f16(const nn::NamedParameter& named) { return named.parameter.dtype() == DType::f16; }

}  // namespace

ZeroEngine::ZeroEngine(const ZeroOptions& zero_options, UpdateRule update_rule,
                       const dist::World& world)
    : options(zero_options),
      rule(std::move(update_rule)),
      communicator(world.communicator),
      norm_(communicator),
      record_(communicator) {
  if (options.loss_scaling) scaler_ = std::make_unique<LossScaler>(*options.loss_scaling);
}

void ZeroEngine::add(std::vector<nn::NamedParameter> parameters, const std::vector<int>& groups) {
  const ParameterSource source = present_values(parameters, options.seed);
  const bool half = std::any_of(parameters.begin(), parameters.end(), is_f16);
  if (half && !scaler_) scaler_ = std::make_unique<LossScaler>(LossScaling{});
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
    if (micro_step.contributes) record_.set_reached(first + parameter);
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
    reduced_ = false;
  }
  began = true;
  running = true;
  next_ = 0;
  if (!log_.empty()) last_log_ = std::exchange(log_, {});
  for (const auto& flow : trainable_) flow->begin(micro_step, micro_batches);
  for (ParameterFlow* flow : flows()) flow->parameters().begin_forward();
}

void ZeroEngine::backward(const Tensor& loss) {
  if (micro_step.contributes) record_.set_loss(micro_step.index, loss.item());
  const auto begin_backward = [this] {
    for (ParameterFlow* flow : flows()) flow->parameters().begin_backward();
  };
  log_.push_back(begin_backward);
  begin_backward();
  // The one place where a gradient is scaled by its share of the step.
  tessera::backward(loss, share() * (scaler_ ? scaler_->scale() : 1.0f));
  end_micro_step();
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
  end_micro_step();
}

void ZeroEngine::end_micro_step() {
  for (const auto& flow : trainable_) flow->complete_missing();
  for (ParameterFlow* flow : flows()) flow->parameters().end_backward();
  running = false;
  ++finished;
}

bool ZeroEngine::all_micro_steps_done() const {
  return began && !running && finished == micro_step.count;
}

void ZeroEngine::reduce() {
  if (reduced_) return;
  record_.exchange();
  for (const auto& flow : trainable_) flow->finish_reduction();
  norm_value_ = norm_.compute();
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

float ZeroEngine::fold_losses() const {
  // The same left fold over micro-batches as the gradients'.
  float total = 0;
  for (int64_t m = 0; m < micro_batches; ++m) {
    if (record_.had_data(m)) total += share() * record_.loss(m);
  }
  return total * data_correction();
}

int64_t ZeroEngine::first_non_finite() const {
  for (int64_t m = 0; m < micro_batches; ++m) {
    if (record_.had_data(m) && !std::isfinite(record_.loss(m))) return m;
  }
  return -1;
}

void ZeroEngine::check_finite(float loss, float norm) const {
  if (!std::isfinite(loss)) {
    throw NonFiniteError(fmt::format("step {}: the loss is not finite ({})", step, loss),
                         first_non_finite());
  }
  if (!std::isfinite(norm)) {
    throw NonFiniteError(
        fmt::format("step {}: the gradient norm is not finite ({}), the loss is {}", step, norm,
                    loss),
        -1);
  }
}

StepReport ZeroEngine::finish() {
  const trace::Scope scope("step");
  reduce();
  StepReport report;
  report.step = step;
  report.loss = fold_losses();
  const float factor = gradient_factor();
  report.grad_norm = static_cast<float>(norm_value_ * factor);
  report.loss_scale = scaler_ ? scaler_->scale() : 1.0f;
  report.learning_rate = rule.hyper(1, {}).learning_rate * options.schedule(step);
  const bool finite = std::isfinite(report.loss) && std::isfinite(report.grad_norm);
  report.skipped = !finite || batches_with_data() == 0;
  finished = 0;  // the step is over, also where it fails now
  began = false;
  if (!scaler_) {
    check_finite(report.loss, report.grad_norm);
  } else if (!finite || !report.skipped) {
    scaler_->step(!finite, step);
  }
  if (!report.skipped) {
    // As torch.nn.utils.clip_grad_norm_ defines it.
    const float clip = options.clip > 0
                           ? std::min(1.0f, options.clip / (report.grad_norm + 1e-6f))
                           : 1.0f;
    update(clip * factor);
    report.without_gradient = newly_unreached();
  }
  report.exposed_ns = dist::waited_ns() - waited_before_ns_;
  dist::set_finished_step(step);
  return report;
}

void ZeroEngine::update(float gradient_scale) {
  for (size_t f = trainable_.size(); f-- > 0;) {
    const std::vector<PlacedParameter>& parameters = trainable_[f]->partition().parameters();
    std::vector<UpdateHyper> hypers;
    std::map<std::pair<int, int64_t>, int> known;  // group and number of updates -> hypers
    std::vector<int> hyper_of(parameters.size(), -1);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto index = static_cast<size_t>(first_[f]) + i;
      if (!record_.reached(static_cast<int64_t>(index))) continue;
      const std::pair key{parameters[i].group, ++taken_[index]};
      const auto [entry, is_new] = known.emplace(key, static_cast<int>(hypers.size()));
      if (is_new) hypers.push_back(hyper(key.first, key.second, gradient_scale));
      hyper_of[i] = entry->second;
    }
    trainable_[f]->update({hypers, std::move(hyper_of)});
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

std::vector<std::string> ZeroEngine::newly_unreached() {
  std::vector<std::string> names;
  for (size_t f = 0; f < trainable_.size(); ++f) {
    const auto& parameters = trainable_[f]->partition().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto index = static_cast<size_t>(first_[f]) + i;
      if (unreached_[index] || record_.reached(static_cast<int64_t>(index))) continue;
      unreached_[index] = true;
      names.push_back(parameters[i].named.name);
    }
  }
  return names;
}

}  // namespace tessera::optim
