// Grades lesson 7: the order of additions, master weights, and loss scaling.
#include <cmath>

#include <fmt/format.h>

#include "core/half.h"
#include "core/random.h"
#include "course/7_numbers/mixed.h"
#include "course/lib/trial.h"

namespace course {

// Gives the check access to private parts of the student's optimizer.
class MixedInspector {
 public:
  explicit MixedInspector(DataParallel& trainer) : mixed_(dynamic_cast<Mixed&>(trainer)) {}
  const Tensor& masters() const { return mixed_.masters_; }
  const Tensor& values() const { return mixed_.values_; }
  const Tensor& sums() const { return mixed_.sums_; }
  float scale() const { return mixed_.loss_scale_; }
  bool all_finite() const { return mixed_.all_finite(); }
  /// Returns the parts of a buffer of shards that belong to parameters, in order of the parameters.
  std::vector<std::span<const float>> own(const Tensor& shards) const {
    std::vector<std::span<const float>> list;
    for (const Tensor& sums : mixed_.own_sums()) {
      const int64_t begin = sums.data<float>() - mixed_.sums_.data<float>();
      list.push_back({shards.data<float>() + begin, static_cast<size_t>(sums.elements())});
    }
    return list;
  }
  /// Fills the gaps of sums_ with `gap`, and the elements of parameters with 0.
  void clear_sums(float gap) const {
    std::ranges::fill(mixed_.sums_.values<float>(), gap);
    for (const Tensor& sums : mixed_.own_sums()) std::ranges::fill(sums.values<float>(), 0.0f);
  }

 private:
  Mixed& mixed_;
};

namespace {

constexpr int64_t elements = 1000;
constexpr int64_t micro_batches = 7;
// With these settings, the scales show whether an overflow resets the count of good steps.
constexpr optim::LossScaling f16_scaling{.initial = 0x1p22f, .growth_interval = 2};
// This initial scale is so small that no gradient sum overflows in seven steps. So only a doubling
// can reset the count of good steps, and the scales of the steps show whether it does.
constexpr optim::LossScaling low_scaling{.initial = 0x1p10f, .growth_interval = 2};

// In f32, 2^25 + 1 is rounded to 2^25, so a 1 that is added to 2^25 is lost.
const std::vector<float> absorbing{0x1p25f, 1, 1, 1, 1, -0x1p25f};
// In f32, sum_by_ranks gives (2^25 - 2^25 + 1) + (1 + 1 + 1) = 4 on 2 ranks, and
// (2^25 + 1) + (1 + 1) + (-2^25 + 1) = 0 on 3 ranks.
const std::vector<float> by_turns{0x1p25f, 1, -0x1p25f, 1, 1, 1};

Training training(int64_t steps = 12) {
  Training result;
  result.steps = steps;
  return result;
}

// Returns the contributions of all micro-batches to element i of a gradient. The contributions
// differ greatly in size.
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

// Returns the number of elements whose sum on `ranks` ranks differs from the sum on one rank.
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
  const float two = sum_by_ranks(by_turns, 2);
  const float three = sum_by_ranks(by_turns, 3);
  if (sum_by_ranks(by_turns, 1) != sum_in_order(by_turns)) {
    return "on one rank sum_by_ranks differs from sum_in_order";
  }
  if (two == 4 && three == 0) return "";
  return fmt::format(
      "for 2^25, 1, -2^25, 1, 1, 1 sum_by_ranks gives {} on 2 ranks and {} on 3, expected 4 and 0: "
      "rank r adds contributions r, r + N, ... first, and then the ranks' sums are added in order "
      "of rank",
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
  if (trial.state == expected / 3 * 2) {
    text += "\n      There are no master weights, or they are not of Category::optimizer_state";
  }
  return text;
}

// The check's findings about the master weights.
struct Masters {
  std::string at_start;  // a message if the initial values are wrong
  std::string nan;       // a hint if a step makes master weights NaN
  int64_t owned = 0;     // number of master weights of this rank
  int64_t moved = 0;     // number of these weights that a step changed
  float largest_move = 0;
  std::string values;  // a message if 16-bit values are not the rounded masters after a step
};

std::string start_message(const std::vector<std::span<const float>>& masters,
                          const std::vector<std::vector<float>>& expected) {
  bool zeros = true;
  bool rounded = true;
  bool equal = true;
  for (size_t p = 0; p < expected.size(); ++p) {
    for (size_t i = 0; i < expected[p].size(); ++i) {
      const float value = masters[p][i];
      zeros = zeros && value == 0;
      rounded = rounded && value == static_cast<float>(BFloat16(expected[p][i]));
      equal = equal && value == expected[p][i];
    }
  }
  if (equal) return "";
  if (zeros) return "all master weights are 0: they are not initialised";
  if (rounded) {
    return "all master weights are bf16 numbers: they were copied from the rounded values, which "
           "have lost 16 bits";
  }
  return "master weights are not the initial values of the elements that this rank owns";
}

// Runs one step with a learning rate that is so small that most bf16 weights would not change.
Masters masters_of_slow_run(Grade& grade) {
  Training slow = training();
  Masters found;
  Task task(DType::bf16);
  slow.rule.learning_rate = 1e-6f;
  Mixed mixed(task.model(), slow.rule, grade.communicator(), slow.bucket_bytes, std::nullopt);
  mixed.start();
  const MixedInspector inspector(mixed);
  std::vector<std::vector<float>> expected;
  for (int p = 0; p < std::ssize(mixed.parameters()); ++p) {
    const nn::NamedParameter& named = mixed.parameters()[static_cast<size_t>(p)];
    const dist::Range own = mixed.layout().owned(p, grade.world().rank);
    if (own.size() == 0) continue;
    expected.emplace_back(own.size());
    found.owned += own.size();
    nn::initialize(named.parameter.initializer(), 0, named.name, own.begin, expected.back());
  }
  found.at_start = start_message(inspector.own(inspector.masters()), expected);
  const Tensor before = Tensor::empty(inspector.masters().shape());
  before.copy_from(inspector.masters());
  mixed.step(0, slow.batch, task.losses());
  found.nan = nan_hint(inspector.masters().values<float>());
  for (int64_t i = 0; i < before.elements(); ++i) {
    const float move = std::abs(inspector.masters().data<float>()[i] - before.data<float>()[i]);
    found.moved += move > 0 ? 1 : 0;
    found.largest_move = std::max(found.largest_move, move);
  }
  for (int64_t i = 0; i < before.elements() && found.values.empty(); ++i) {
    const float master = inspector.masters().data<float>()[i];
    const auto value = static_cast<float>(inspector.values().data<BFloat16>()[i]);
    if (value == static_cast<float>(BFloat16(master))) continue;
    found.values = fmt::format(
        "after a step a value is {:.9g}, and its master weight {:.9g}: the "
        "master weights are rounded into the shards of values_",
        value, master);
  }
  return found;
}

std::string move_message(const Masters& masters) {
  if (!masters.nan.empty()) return "after a step master weights are NaN" + masters.nan;
  if (masters.owned > 0 && masters.moved == 0) {
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
  std::vector<float> scales;  // [step]: the factor by which the step's loss is multiplied
};

Scales reference_f16(const optim::LossScaling& scaling, int64_t steps) {
  Task task(DType::f16);
  const dist::World alone{.communicator = dist::single_communicator()};
  optim::ZeroOptimizer optimizer(task.model(), training().rule, alone, {.loss_scaling = scaling});
  Scales result;
  for (int64_t step = 0; step < steps; ++step) {
    const optim::StepReport report = optimizer.step(step, training().batch, task.losses());
    result.losses.push_back(report.loss);
    result.scales.push_back(report.loss_scale);
  }
  forget_steps();
  return result;
}

// Returns the last rank that owns an element. With many ranks, the ranks after it own only padding.
int last_owner(const Mixed& mixed, int ranks) {
  for (int rank = ranks - 1; rank > 0; --rank) {
    for (int p = 0; p < std::ssize(mixed.parameters()); ++p) {
      if (mixed.layout().owned(p, rank).size() > 0) return rank;
    }
  }
  return 0;
}

// Checks that all_finite() ignores NaN in the gaps between parameters, and that it notices an
// infinite or NaN gradient sum of the last rank that owns elements (last_owner). Its calls are
// late, so that an answer from before the wait is wrong in every run.
std::string finite_message(Grade& grade) {
  Task task(DType::f16);
  Events events;
  Observer observer(grade.communicator(), events);
  Mixed mixed(task.model(), training().rule, observer, training().bucket_bytes, f16_scaling);
  mixed.start();
  const MixedInspector inspector(mixed);
  const int victim = last_owner(mixed, grade.world().size);
  // Every rank makes all calls of all_finite(), whatever it returns, because it is collective.
  std::string wrong;
  inspector.clear_sums(NAN);
  if (!inspector.all_finite()) {
    wrong =
        "all sums of parameters are finite, but all_finite() says no: gaps between parameters "
        "(which own_sums() leaves out) do not count";
  }
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    inspector.clear_sums(0);
    const auto own = inspector.own(inspector.sums());
    if (grade.world().rank == victim) const_cast<float&>(own.back().back()) = bad;
    if (!inspector.all_finite() || !wrong.empty()) continue;
    wrong = fmt::format(
        "a sum of rank {} is {}, and this rank says that all are finite: every rank must come to "
        "the same answer",
        victim, bad);
  }
  observer.finish();
  return wrong;
}

std::string scale_message(size_t step, float found, float expected, float before) {
  std::string text = fmt::format("in step {} the loss is multiplied by {}, expected {}", step + 1,
                                 found, expected);
  if (expected < before) {
    text +=
        "\n      A sum of the step before was infinite, on this rank or on another: all ranks "
        "must skip that step, and halve the scale";
  } else {
    text += fmt::format(
        "\n      After {} good steps the scale doubles; a doubling or an overflow begins the count "
        "anew",
        f16_scaling.growth_interval);
  }
  return text;
}

// Compares losses and scales step by step. Returns a message about the first difference.
std::string f16_message(const Scales& found, const Scales& expected) {
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    if (found.scales[step] != expected.scales[step]) {
      return scale_message(step, found.scales[step], expected.scales[step],
                           step > 0 ? expected.scales[step - 1] : expected.scales[0]);
    }
    if (found.losses[step] == expected.losses[step]) continue;
    return fmt::format(
        "the loss of step {} is {:.9g}, expected {:.9g}; the scales were right so far"
        "\n      Is the scale with which the loss was multiplied divided out of the "
        "sums, and changed only afterwards? Is a skipped step counted as an update?",
        step + 1, found.losses[step], expected.losses[step]);
  }
  return "";
}

void check_f16(Grade& grade) {
  const Scales expected = reference_f16(f16_scaling, training().steps);
  Scales found{.losses = {}, .scales = {f16_scaling.initial}};
  const Trial trial = train(
      grade, training(), make_mixed(f16_scaling), DType::f16, true,
      [&](DataParallel& trainer) { found.scales.push_back(MixedInspector(trainer).scale()); });
  found.losses = trial.losses;
  require_order(grade, trial);  // once more, because all_finite() runs only in f16
  grade.require("f16: all ranks know whether all sums are finite", finite_message(grade));
  grade.require("f16: scales and losses have the bits of ZeroOptimizer",
                f16_message(found, expected));
  constexpr int64_t steps = 7;
  Scales rising{.losses = {}, .scales = {low_scaling.initial}};
  rising.losses = train(grade, training(steps), make_mixed(low_scaling), DType::f16, true,
                        [&](DataParallel& trainer) {
                          rising.scales.push_back(MixedInspector(trainer).scale());
                        })
                      .losses;
  grade.require("f16: without an overflow the scale doubles again and again",
                f16_message(rising, reference_f16(low_scaling, steps)));
  if (grade.world().size != 3) return;
  grade.predicted("sum of 2^25, 1, -2^25, 1, 1, 1 on 2 ranks",
                  std::llround(sum_by_ranks(by_turns, 2)));
  grade.predicted("bytes of state on a rank", trial.state);
  grade.predicted("bytes of parameters between steps", trial.parameters);
  grade.predicted("power of two of the scale in step 7",
                  std::llround(std::log2(expected.scales[6])));
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
  grade.require("bf16: master weights begin with the exact initial values", masters.at_start);
  grade.require("bf16: small updates are not lost", move_message(masters));
  grade.require("bf16: values are the rounded master weights", masters.values);
  require_order(grade, trial);
  grade.require("bf16: the losses have the bits of ZeroOptimizer", bf16_message(trial.losses));
  check_f16(grade);
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 7: numbers", course::check);
}
