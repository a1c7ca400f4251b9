#include "apps/support/plan_table.h"

#include <functional>
#include <set>
#include <vector>

#include <fmt/format.h>

namespace tessera::apps {
namespace {

constexpr int64_t first_stage_to_come = 3;

std::string row(int64_t stage, int64_t ranks, const std::vector<int64_t>& bytes) {
  std::string text = fmt::format("{:>5} {:>6}", stage, grouped(ranks));
  for (const int64_t value : bytes) text += fmt::format(" {:>17}", grouped(value));
  return text + "\n";
}

std::string heading(const std::vector<const char*>& columns) {
  std::string text = fmt::format("{:>5} {:>6}", "stage", "ranks");
  for (const char* column : columns) text += fmt::format(" {:>17}", column);
  return text + "\n";
}

int64_t sent(const optim::Plan& plan, dist::Traffic purpose) {
  return plan.traffic[static_cast<size_t>(purpose)];
}

std::vector<int64_t> memory_columns(const optim::Plan& plan) {
  return {plan.parameters,    plan.gradients, plan.optimizer_state,
          plan.communication, plan.memory(),  plan.padding};
}

std::vector<int64_t> traffic_columns(const optim::Plan& plan) {
  return {sent(plan, dist::Traffic::gradients), sent(plan, dist::Traffic::parameters),
          sent(plan, dist::Traffic::norms), sent(plan, dist::Traffic::losses), plan.sent()};
}

}  // namespace

std::string grouped(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool after_digit = i > 0 && digits[i - 1] != '-';
    if (after_digit && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

optim::PlanInput plan_input(const TrainOptions& options, const models::Gpt& model, int64_t ranks,
                            int stage) {
  return {.parameters = optim::layout_parameters(model),
          .ranks = ranks,
          .stage = stage,
          .bucket_bytes = options.bucket_bytes,
          .reduction = options.reduction,
          .batch = options.batch,
          .state_tensors = std::ssize(update_rule(options).state_names())};
}

std::string plan_table(const TrainOptions& options, const models::Gpt& model, int64_t ranks) {
  std::set<int64_t> sizes = {1, 2, 4, 8, 16, 64};
  sizes.insert(ranks);
  const auto table = [&](const std::function<std::vector<int64_t>(const optim::Plan&)>& columns) {
    std::string text;
    for (int stage = 0; stage < first_stage_to_come; ++stage) {
      for (const int64_t size : sizes) {
        text += row(stage, size, columns(plan(plan_input(options, model, size, stage), 0)));
      }
    }
    return text + fmt::format("{:>5} not available yet\n", first_stage_to_come);
  };
  return fmt::format(
      "{}: {} parameters, {}, global batch {} in micro-batches of {}, buckets of {} bytes,\n"
      "{} reduction, overlap {}; this run: {} rank{}, stage {}\n\n"
      "Memory of rank 0, without activations, in bytes\n{}{}\n"
      "Traffic that rank 0 sends in one step, in bytes\n{}{}",
      options.preset, grouped(model.parameter_count()), options.optimizer, options.batch.global,
      options.batch.micro, grouped(options.bucket_bytes), reduction_name(options.reduction),
      options.overlap ? "on" : "off", ranks,
      ranks == 1 ? "" : "s", options.stage,
      heading({"parameters", "gradients", "optimizer state", "communication", "total",
               "padding therein"}),
      table(memory_columns), heading({"gradients", "parameters", "norms", "losses", "total"}),
      table(traffic_columns));
}

}  // namespace tessera::apps
