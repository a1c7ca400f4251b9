#include "optim/rules/update_rule.h"

#include <cmath>

namespace tessera::optim {
namespace {

// Returns 1 - beta^step. The difference is computed in double, because a float would lose digits
// while beta^step is close to 1.
float bias_correction(float beta, int64_t step) {
  return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step)));
}

template <class Rule>
UpdateHyper adam_hyper(const Rule& rule, int64_t step, const GroupOptions& group, bool decoupled) {
  UpdateHyper hyper;
  hyper.learning_rate = group.learning_rate.value_or(rule.learning_rate);
  hyper.beta1 = group.beta1.value_or(rule.beta1);
  hyper.beta2 = group.beta2.value_or(rule.beta2);
  hyper.epsilon = rule.epsilon;
  hyper.weight_decay = group.weight_decay.value_or(rule.weight_decay);
  hyper.bias_correction1 = bias_correction(hyper.beta1, step);
  hyper.bias_correction2 = bias_correction(hyper.beta2, step);
  hyper.decoupled_decay = decoupled;
  return hyper;
}

void adam(const Context& context, const UpdateRanges& ranges,
          std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups) {
  kernels::adam_update(context, ranges.parameters, ranges.state[0], ranges.state[1],
                       ranges.gradients, segments, groups, ranges.scalars);
}

void check_momentum(const UpdateHyper& hyper, bool has_state) {
  TESSERA_CHECK(hyper.beta1 == 0 || has_state,
                "sgd: a momentum of {}, but the rule has no momentum, and so no state for it",
                hyper.beta1);
}

template <class Rule>
UpdateHyper adagrad_hyper(const Rule& rule, const GroupOptions& group) {
  UpdateHyper hyper;
  hyper.learning_rate = group.learning_rate.value_or(rule.learning_rate);
  hyper.epsilon = rule.epsilon;
  hyper.weight_decay = group.weight_decay.value_or(rule.weight_decay);
  return hyper;
}

}  // namespace

std::vector<std::string> Sgd::state_names() const {
  if (momentum == 0) return {};
  return {"momentum_buffer"};
}

UpdateHyper Sgd::hyper(int64_t step, const GroupOptions& group) const {
  UpdateHyper hyper;
  hyper.learning_rate = group.learning_rate.value_or(learning_rate);
  hyper.beta1 = group.beta1.value_or(momentum);
  // Checked here too, so that an invalid parameter group throws when it is added, not in its first
  // update.
  check_momentum(hyper, momentum != 0);
  hyper.weight_decay = group.weight_decay.value_or(weight_decay);
  hyper.nesterov = nesterov;
  hyper.first_step = step == 1;
  return hyper;
}

void Sgd::update(const Context& context, const UpdateRanges& ranges,
                 std::span<const UpdateSegment> segments,
                 std::span<const UpdateHyper> groups) const {
  for (const UpdateHyper& group : groups) check_momentum(group, !ranges.state.empty());
  kernels::sgd_update(context, ranges.parameters, ranges.state.empty() ? Tensor() : ranges.state[0],
                      ranges.gradients, segments, groups, ranges.scalars);
}

std::vector<std::string> Adam::state_names() const { return {"exp_avg", "exp_avg_sq"}; }

UpdateHyper Adam::hyper(int64_t step, const GroupOptions& group) const {
  return adam_hyper(*this, step, group, false);
}

void Adam::update(const Context& context, const UpdateRanges& ranges,
                  std::span<const UpdateSegment> segments,
                  std::span<const UpdateHyper> groups) const {
  adam(context, ranges, segments, groups);
}

std::vector<std::string> AdamW::state_names() const { return {"exp_avg", "exp_avg_sq"}; }

UpdateHyper AdamW::hyper(int64_t step, const GroupOptions& group) const {
  return adam_hyper(*this, step, group, true);
}

void AdamW::update(const Context& context, const UpdateRanges& ranges,
                   std::span<const UpdateSegment> segments,
                   std::span<const UpdateHyper> groups) const {
  adam(context, ranges, segments, groups);
}

void Sgd::update_rows(const Context& context, const RowUpdate& update,
                      const UpdateHyper& hyper) const {
  check_momentum(hyper, !update.state.empty());
  kernels::sgd_update_rows(context, update, hyper);
}

void Adam::update_rows(const Context& context, const RowUpdate& update,
                       const UpdateHyper& hyper) const {
  kernels::adam_update_rows(context, update, hyper);
}

void AdamW::update_rows(const Context& context, const RowUpdate& update,
                        const UpdateHyper& hyper) const {
  kernels::adam_update_rows(context, update, hyper);
}

std::vector<std::string> Adagrad::state_names() const { return {"sum"}; }

UpdateHyper Adagrad::hyper(int64_t, const GroupOptions& group) const {
  return adagrad_hyper(*this, group);
}

void Adagrad::update(const Context& context, const UpdateRanges& ranges,
                     std::span<const UpdateSegment> segments,
                     std::span<const UpdateHyper> groups) const {
  kernels::adagrad_update(context, ranges.parameters, ranges.state[0], ranges.gradients, segments,
                          groups, ranges.scalars);
}

void Adagrad::update_rows(const Context& context, const RowUpdate& update,
                          const UpdateHyper& hyper) const {
  kernels::adagrad_update_rows(context, update, hyper);
}

std::vector<std::string> RowwiseAdagrad::state_names() const { return {"row_sum"}; }

UpdateHyper RowwiseAdagrad::hyper(int64_t, const GroupOptions& group) const {
  return adagrad_hyper(*this, group);
}

void RowwiseAdagrad::update_rows(const Context& context, const RowUpdate& update,
                                 const UpdateHyper& hyper) const {
  kernels::rowwise_adagrad_update_rows(context, update, hyper);
}

}  // namespace tessera::optim
