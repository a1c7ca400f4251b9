#include "course/lib/reference.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace course {

std::vector<float> reference_losses(const Training& training, DType dtype,
                                    optim::ZeroOptions options) {
  Task task(dtype);
  const dist::World alone{.communicator = dist::single_communicator()};
  optim::ZeroOptimizer optimizer(task.model(), training.rule, alone, std::move(options));
  std::vector<float> losses;
  for (int64_t step = 0; step < training.steps; ++step) {
    losses.push_back(optimizer.step(step, training.batch, task.losses()).loss);
  }
  forget_steps();
  return losses;
}

std::string nan_hint(std::span<const float> values) {
  if (std::ranges::none_of(values, [](float value) { return std::isnan(value); })) return "";
  return "\n      AdamW divides by 1 - beta^t: is updates_ counted before the rule is applied?";
}

void forget_steps() {
  dist::set_running_step(-1);
  dist::set_finished_step(-1);
}

std::string difference(const std::vector<float>& found, const std::vector<float>& expected) {
  for (size_t step = 0; step < expected.size(); ++step) {
    if (step < found.size() && found[step] == expected[step]) continue;
    if (step >= found.size()) return fmt::format("there are only {} losses", found.size());
    return fmt::format("the loss of step {} is {:.9g}, expected {:.9g}", step + 1, found[step],
                       expected[step]);
  }
  if (found.size() > expected.size()) {
    return fmt::format("there are {} losses, expected {}", found.size(), expected.size());
  }
  return "";
}

}  // namespace course
