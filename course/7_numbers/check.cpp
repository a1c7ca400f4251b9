// Grades lesson 7: order of sums, master weights, loss scaling; all by bits.
#include <cmath>

#include <fmt/format.h>

#include "core/half.h"
#include "core/random.h"
#include "course/7_numbers/mixed.h"
#include "course/lib/trial.h"

namespace course {

// What the check reads of the student's optimizer.
class MixedInspector {
 public:
  explicit MixedInspector(DataParallel& trainer) : mixed_(dynamic_cast<Mixed&>(trainer)) {}
  const Tensor& masters() const { return mixed_.masters_; }
  float scale() const { return mixed_.loss_scale_; }

 private:
  Mixed& mixed_;
};

namespace {

constexpr int64_t elements = 1000;
constexpr int64_t micro_batches = 7;
constexpr optim::LossScaling f16_scaling{.initial = 0x1p22f, .growth_interval = 3};

// In f32 a 1 is lost where it is added to 2^25.
const std::vector<float> absorbing{0x1p25f, 1, 1, 1, 1, -0x1p25f};

Training training() {
  Training result;
  result.steps = 8;
  return result;
}

// The contribution of micro-batch m to element i of a gradient, of very different sizes.
std::vector<float> contributions(int64_t i) {
  std::vector<float> values;
  for (int64_t m = 0; m < micro_batches; ++m) {
    const PhiloxCounter words =
        philox({static_cast<uint32_t>(i), static_cast<uint32_t>(m), 0, 0}, {7, 7});
    const auto unit = static_cast<float>(static_cast<int32_t>(words[0])) * 0x1p-31f;
    values.push_back(std::ldexp(unit, static_cast<int>(words[1] % 12)));
  }
  return values;
}

// The elements whose sum on `ranks` ranks has other bits than on one.
int64_t differing(int ranks) {
  int64_t count = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const std::vector<float> values = contributions(i);
    count += sum_by_ranks(values, ranks) != sum_by_ranks(values, 1) ? 1 : 0;
  }
  return count;
}

std::string order_message() {
  const float in_order = sum_in_order(absorbing);
  if (in_order != 0) {
    return fmt::format(
        "2^25 + 1 + 1 + 1 + 1 - 2^25 is {}, expected 0: in f32 each 1 is lost where it "
        "is added to 2^25. Are the contributions added one by one, in order, in f32?",
        in_order);
  }
  if (std::signbit(sum_in_order(std::vector<float>{-0.0f}))) {
    return "the sum of one contribution of -0.0 is -0.0, expected +0.0: begin from 0.0";
  }
  return "";
}

std::string by_ranks_message() {
  const std::vector<float>& values = absorbing;
  const float two = sum_by_ranks(values, 2);
  const float three = sum_by_ranks(values, 3);
  if (sum_by_ranks(values, 1) != sum_in_order(values)) {
    return "on one rank it differs from sum_in_order";
  }
  // On 2 ranks: (2^25 + 1 + 1) + (1 + 1 - 2^25) = 2^25 - (2^25 - 2). On 3 ranks: (2^25 + 1) + (1 +
  // 1) + (1 - 2^25), where every addition to 2^25 is lost.
  if (two == 2 && three == 0) return "";
  return fmt::format(
      "of 2^25, 1, 1, 1, 1, -2^25 it gives {} on 2 ranks and {} on 3, expected 2 and 0: "
      "rank r adds contributions r, r + N, ... first, and then the ranks' sums are "
      "added in order of rank",
      two, three);
}

Make make_mixed(std::optional<optim::LossScaling> scaling) {
  return [scaling](nn::Module& model, dist::Communicator& communicator) {
    const Training of = training();
    return std::make_unique<Mixed>(model, of.rule, communicator, of.bucket_bytes, scaling);
  };
}

std::string state_message(const Trial& trial, int64_t ranks) {
  const int64_t expected = 3 * 4 * trial.elements() / ranks;
  if (trial.state == expected) return "";
  std::string text = fmt::format(
      "the state has {} bytes, expected {}: two moments and the master "
      "weights, 4 bytes each for {} elements over {} ranks",
      grouped(trial.state), grouped(expected), grouped(trial.elements()), ranks);
  if (trial.state == expected / 3 * 2) text += "\n      There are no master weights";
  return text;
}

struct Masters {
  bool exact_at_start = true;  // they are not all bf16 numbers
  int64_t moved = 0;           // how many a step has moved
  float largest_move = 0;
};

// A run in which the learning rate is far below what bf16 resolves.
Masters masters_of_slow_run(Grade& grade) {
  Training slow = training();
  slow.steps = 1;
  Masters found;
  const auto coarse = [](const Tensor& masters) {
    for (const float value : masters.values<float>()) {
      if (static_cast<float>(BFloat16(value)) != value) return false;
    }
    return true;
  };
  Task task(DType::bf16);
  slow.rule.learning_rate = 1e-6f;
  Mixed mixed(task.model(), slow.rule, grade.communicator(), slow.bucket_bytes, std::nullopt);
  mixed.start();
  const MixedInspector inspector(mixed);
  found.exact_at_start = !coarse(inspector.masters());
  const Tensor before = Tensor::empty(inspector.masters().shape());
  before.copy_from(inspector.masters());
  mixed.step(0, slow.batch, task.losses());
  for (int64_t i = 0; i < before.elements(); ++i) {
    const float move = std::abs(inspector.masters().data<float>()[i] - before.data<float>()[i]);
    found.moved += move > 0 ? 1 : 0;
    found.largest_move = std::max(found.largest_move, move);
  }
  return found;
}

std::string move_message(const Masters& masters) {
  if (masters.moved == 0) {
    return "with a learning rate of 1e-6 no master weight moves: is the rule applied to them?";
  }
  if (masters.largest_move < 1e-5f) return "";
  return fmt::format(
      "with a learning rate of 1e-6 a master weight moves by {:.2g} in one step: is it "
      "replaced by the rounded weight before the update? Then small updates are lost",
      masters.largest_move);
}

std::string bf16_message(const std::vector<float>& found) {
  const std::string text = difference(found, reference_losses(training(), DType::bf16));
  if (text.empty()) return text;
  const auto rounded_sums = reference_losses(training(), DType::bf16, {.grad_shard = DType::bf16});
  if (difference(found, rounded_sums).empty()) {
    return text +
           "\n      These are the losses of sums that are rounded to bf16 after each addition: "
           "add in f32";
  }
  return text;
}

struct Scales {
  std::vector<float> losses;
  std::vector<float> scales;  // with which each step's loss was multiplied
};

Scales reference_f16() {
  Task task(DType::f16);
  const dist::World alone{.communicator = dist::single_communicator()};
  optim::ZeroOptimizer optimizer(task.model(), training().rule, alone,
                                 {.loss_scaling = f16_scaling});
  Scales result;
  for (int64_t step = 0; step < training().steps; ++step) {
    const optim::StepReport report = optimizer.step(step, training().batch, task.losses());
    result.losses.push_back(report.loss);
    result.scales.push_back(report.loss_scale);
  }
  return result;
}

std::string scale_message(const std::vector<float>& found, const std::vector<float>& expected) {
  for (size_t step = 0; step < expected.size(); ++step) {
    if (found[step] == expected[step]) continue;
    std::string text = fmt::format("in step {} the loss is multiplied by {}, expected {}", step + 1,
                                   found[step], expected[step]);
    if (step > 0 && expected[step] < expected[step - 1]) {
      text +=
          "\n      A sum of the step before was infinite, on this rank or on another: all ranks "
          "must skip that step, and halve the scale";
    } else if (step > 0 && expected[step] > expected[step - 1]) {
      text +=
          fmt::format("\n      After {} good steps the scale doubles", f16_scaling.growth_interval);
    }
    return text;
  }
  return "";
}

void check_f16(Grade& grade) {
  const Scales expected = reference_f16();
  std::vector<float> scales{f16_scaling.initial};
  const Trial trial =
      train(grade, training(), make_mixed(f16_scaling), DType::f16, true,
            [&](DataParallel& trainer) { scales.push_back(MixedInspector(trainer).scale()); });
  grade.require("f16: the scale follows the overflows", scale_message(scales, expected.scales));
  std::string wrong = difference(trial.losses, expected.losses);
  if (!wrong.empty()) {
    wrong +=
        "\n      The scales are right. Is this step's scale divided out of the sums, and is the "
        "scale changed only afterwards?";
  }
  grade.require("f16: the losses have the bits of ZeroOptimizer", wrong);
  if (grade.world().size != 3) return;
  grade.predicted("sum of 2^25, 1, 1, 1, 1, -2^25 on 2 ranks",
                  std::llround(sum_by_ranks(absorbing, 2)));
  grade.predicted("bytes of state on a rank", trial.state);
  grade.predicted("bytes of parameters between steps", trial.parameters);
  grade.predicted("power of two of the scale in step 7", std::llround(std::log2(scales[6])));
}

void check(Grade& grade) {
  grade.require("sum_in_order", order_message());
  grade.require("sum_by_ranks", by_ranks_message());
  for (const int ranks : {2, 3, 5}) {
    grade.note(fmt::format("of {} sums of {} contributions, {} differ between 1 and {} ranks",
                           elements, micro_batches, differing(ranks), ranks));
  }
  const Trial trial = train(grade, training(), make_mixed(std::nullopt), DType::bf16);
  grade.require("bf16: a rank has master weights of its shards",
                state_message(trial, grade.world().size));
  const Masters masters = masters_of_slow_run(grade);
  grade.require("bf16: master weights begin with the exact initial values",
                masters.exact_at_start
                    ? ""
                    : "all master weights are bf16 numbers: they were copied from "
                      "the rounded values, which have lost 16 bits");
  grade.require("bf16: small updates are not lost", move_message(masters));
  require_order(grade, trial);
  grade.require("bf16: the losses have the bits of ZeroOptimizer", bf16_message(trial.losses));
  check_f16(grade);
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 7: numbers", course::check);
}
