// Grades lesson 6: bytes of parameters between steps and at the peak, waits, the bits of the
// losses, traffic, order of gathers.
#include <set>

#include <fmt/format.h>

#include "course/6_zero3/zero3.h"
#include "course/lib/trial.h"

namespace course {
namespace {

const Training training;

// The buckets of one block of the model, which are gathered together.
struct Unit {
  std::set<int> buckets;
  int64_t elements = 0;
  bool tied = false;
};

// Returns the units in order of the forward. The layout has buckets in the reverse order.
std::vector<Unit> units_of(const dist::ShardLayout& layout) {
  std::vector<Unit> units;
  int64_t block = -1;
  for (int b = 0; b < std::ssize(layout.buckets()); ++b) {
    const dist::Bucket& bucket = layout.buckets()[static_cast<size_t>(b)];
    if (units.empty() || bucket.block < 0 || bucket.block != block) units.emplace_back();
    block = bucket.block;
    units.back().buckets.insert(b);
    units.back().elements += bucket.elements;
    units.back().tied = units.back().tied || bucket.shared;
  }
  return {units.rbegin(), units.rend()};
}

struct Sizes {
  int64_t tied = 0;     // elements of all tied units
  int64_t largest = 0;  // elements of the largest pair of neighbouring untied units
  int64_t untied = 0;   // elements of all untied units
  int64_t last = 0;     // elements of the last untied unit in order of the forward
};

Sizes sizes_of(const std::vector<Unit>& units) {
  Sizes sizes;
  for (const Unit& unit : units) {
    if (unit.tied) {
      sizes.tied += unit.elements;
      continue;
    }
    sizes.largest = std::max(sizes.largest, sizes.last + unit.elements);
    sizes.last = unit.elements;
    sizes.untied += unit.elements;
  }
  return sizes;
}

std::string between_message(const Trial& trial, const Sizes& sizes, int64_t ranks) {
  const int64_t expected = 4 * trial.elements() / ranks;
  if (trial.parameters == expected) return "";
  std::string text = fmt::format(
      "between steps parameters take {} bytes, expected {}: 4 for each of "
      "the rank's {} elements",
      grouped(trial.parameters), grouped(expected), grouped(trial.elements() / ranks));
  const int64_t more = trial.parameters - expected;
  if (more == 4 * sizes.tied) {
    text +=
        "\n      The tied unit stays gathered over the update: the next forward reads values "
        "from before it";
  } else if (more == 4 * trial.elements()) {
    text +=
        "\n      All units stay gathered: they must be let go at the end of backward at the "
        "latest, since the update makes their values stale";
  } else if (trial.parameters == 4 * trial.elements() && ranks > 1) {
    text += "\n      The rank holds all parameters, as at stage 2";
  } else if (more > 0) {
    text += "\n      Does end_backward let all units go?";
  }
  return text;
}

std::string peak_message(const Trial& trial, const Sizes& sizes, int64_t ranks) {
  const int64_t most = 4 * (trial.elements() / ranks + sizes.tied + sizes.largest);
  if (trial.peak_parameters <= most) return "";
  std::string text = fmt::format(
      "at its peak the rank holds {} bytes of parameters, expected at most {}: its shards ({}), "
      "the "
      "tied unit ({}) and two neighbouring blocks ({})",
      grouped(trial.peak_parameters), grouped(most), grouped(4 * trial.elements() / ranks),
      grouped(4 * sizes.tied), grouped(4 * sizes.largest));
  if (trial.peak_parameters >= 4 * (trial.elements() / ranks + sizes.tied + sizes.untied)) {
    text += "\n      All blocks are gathered at once: let a block go when the next one is reached";
  }
  return text;
}

// Returns a message if the peak differs from the peak that the gathers must cause. A smaller peak
// means that gathered values have another category.
std::string category_message(const Trial& trial, const Sizes& sizes, int64_t ranks) {
  const int64_t expected = 4 * (trial.elements() / ranks + sizes.tied + sizes.largest);
  if (trial.peak_parameters == expected) return "";
  return fmt::format(
      "at its peak the rank holds {} bytes of parameters, expected {}: gathered "
      "values must be of Category::parameters",
      grouped(trial.peak_parameters), grouped(expected));
}

std::string loss_message(const std::vector<float>& found) {
  const std::vector<float> expected = reference_losses(training);
  const std::string text = difference(found, expected);
  if (text.empty()) return text;
  if (found[0] != expected[0]) {
    return text +
           "\n      The first loss is wrong already, before any update, so the gather is wrong. "
           "Does each rank put its shard into its own place in the bucket?";
  }
  const std::string hint = nan_hint(found);
  if (!hint.empty()) return text + hint;
  return text +
         "\n      The first loss is right: is each shard updated, and are values that were "
         "gathered before the update let go?";
}

// Returns the elements that a step gathers. In each micro-step, most units are gathered twice, once
// for forward and once for backward. The tied unit and the last block are gathered only once,
// because they stay gathered from forward to backward.
int64_t expected_elements(const Sizes& sizes, int64_t ranks) {
  return training.batch.micro_steps(ranks) * (sizes.tied + 2 * sizes.untied - sizes.last);
}

// Counts elements that are gathered, and not bytes that are sent, because one rank sends nothing.
std::string traffic_message(const Trial& trial, const Sizes& sizes, int64_t ranks) {
  const int64_t expected = expected_elements(sizes, ranks);
  int64_t found = 0;
  for (const Event& event : trial.events.list()) {
    if (event.kind != "all_gather" || event.purpose != dist::Traffic::parameters) continue;
    if (event.bucket < 0) return "a gather does not say which bucket it gathers";
    found += trial.layout->buckets().at(static_cast<size_t>(event.bucket)).elements;
  }
  if (found == expected) return "";
  std::string text = fmt::format(
      "a step gathers {} elements of parameters, expected {}: in each micro-step the tied "
      "unit once, and the blocks for forward and for backward, except that the last block "
      "is still there when backward begins",
      grouped(found), grouped(expected));
  if (found > expected) {
    text += "\n      Something is gathered again that is still there, or let go too early";
  }
  return text;
}

// Checks the order of gathers and uses in a step.
class Passes {
 public:
  Passes(const Trial& trial, const std::vector<Unit>& units) : trial_(trial), units_(units) {}

  /// Returns a message if a block is not gathered ahead. Let B be a block, and A the unit that a
  /// pass (a forward or a backward) uses just before B. The gather of B must start at the first use
  /// of A in this pass. Nothing may wait for the gather before the first use of B. If B is still
  /// gathered from the previous pass, no gather is needed.
  std::string message() const {
    const auto& list = trial_.events.list();
    int current = -1;
    int64_t current_since = 0;  // the event at which the uses of `current` began
    for (int64_t i = 0; i < std::ssize(list); ++i) {
      const Event& event = list[static_cast<size_t>(i)];
      if (event.kind != "use") continue;
      const int unit = unit_of(event.parameter);
      if (unit == current) continue;
      const int before = current;
      const int64_t before_since = current_since;
      current = unit;
      current_since = i;
      if (before < 0 || units_[static_cast<size_t>(unit)].tied) continue;
      const std::string wrong = entered(i, before_since, before, unit);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  int unit_of(const std::string& parameter) const {
    for (int p = 0; p < std::ssize(trial_.named); ++p) {
      if (trial_.named[static_cast<size_t>(p)].name != parameter) continue;
      for (size_t u = 0; u < units_.size(); ++u) {
        if (units_[u].buckets.contains(trial_.layout->slot(p).bucket)) return static_cast<int>(u);
      }
    }
    return -1;
  }

  /// Returns "the table" for a tied unit, else a name such as "block 2". Blocks are counted from 0,
  /// without tied units.
  std::string name(int unit) const {
    if (units_[static_cast<size_t>(unit)].tied) return "the table";
    int number = 0;
    for (int u = 0; u < unit; ++u) number += units_[static_cast<size_t>(u)].tied ? 0 : 1;
    return fmt::format("block {}", number);
  }

  bool is_gather(const Event& event, int unit) const {
    return event.kind == "all_gather" && event.purpose == dist::Traffic::parameters &&
           units_[static_cast<size_t>(unit)].buckets.contains(static_cast<int>(event.bucket));
  }

  // Returns true if the use of `unit` at event number `at` gathers the unit. The event "use" is
  // recorded before the student's hook runs, so the hook's calls follow it in the list.
  bool gathered_by_use(int64_t at, int unit) const {
    const auto& list = trial_.events.list();
    for (int64_t i = at + 1; i < std::ssize(list); ++i) {
      const Event& event = list[static_cast<size_t>(i)];
      if (event.kind == "use" || event.kind == "done") return false;
      if (is_gather(event, unit)) return true;
    }
    return false;
  }

  // Returns a message if `unit` was not gathered ahead. Event number `at` is the first use of
  // `unit` after uses of `before`, which began at event number `before_since`.
  std::string entered(int64_t at, int64_t before_since, int before, int unit) const {
    const std::string late = fmt::format(
        "the gather of {} does not start while {} is used: gather one ahead, in "
        "forward and in backward. Are `next` and `last_` kept up?",
        name(unit), name(before));
    if (gathered_by_use(at, unit)) return late;
    const auto& list = trial_.events.list();
    const std::set<int>& buckets = units_[static_cast<size_t>(unit)].buckets;
    bool used_meanwhile = false;  // true if `before` was used after the gather of `unit` started
    bool waited = false;
    for (int64_t i = at - 1; i >= 0; --i) {
      const Event& event = list[static_cast<size_t>(i)];
      if (event.kind == "use" || event.kind == "done") {
        const int other = unit_of(event.parameter);
        if (other == unit) return "";  // `unit` is still gathered, from the previous pass
        used_meanwhile = used_meanwhile || other == before;
        continue;
      }
      if (event.kind == "wait" && event.purpose == dist::Traffic::parameters) {
        waited = waited || buckets.contains(static_cast<int>(event.bucket));
      }
      if (!is_gather(event, unit)) continue;
      if (waited) {
        return fmt::format(
            "the gather of {} is waited for while {} is in use: it should travel "
            "meanwhile",
            name(unit), name(before));
      }
      return used_meanwhile ? late_message(i, before_since, before, unit) : late;
    }
    return late;
  }

  // Returns a message if the gather of `unit` at event number `at` starts after the first of the
  // uses of `before`, which began at event number `before_since`.
  std::string late_message(int64_t at, int64_t before_since, int before, int unit) const {
    int64_t uses = 0;
    for (int64_t i = before_since; i < at; ++i) {
      uses += trial_.events.list()[static_cast<size_t>(i)].kind == "use" ? 1 : 0;
    }
    if (uses <= 1) return "";
    return fmt::format(
        "the gather of {} starts only at use {} of {}: it should start at the first, to travel "
        "as long as possible. Does `use` look for the next unit only when it "
        "reaches another unit than `last_`?",
        name(unit), uses, name(before));
  }

  const Trial& trial_;
  const std::vector<Unit>& units_;
};

// Returns a message if another unit is gathered before the token table. A micro-step reads the
// token table first, and the token table must not wait for the gather of a block.
std::string first_message(const Trial& trial, const std::vector<Unit>& units) {
  for (const Event& event : trial.events.list()) {
    if (event.kind != "all_gather" || event.purpose != dist::Traffic::parameters) continue;
    if (units[0].buckets.contains(static_cast<int>(event.bucket))) return "";
    return "the table is read first, but another unit is gathered first: calls run in order, so "
           "the table waits for that unit";
  }
  return "";
}

void check(Grade& grade) {
  const int64_t ranks = grade.world().size;
  const Trial trial = train(grade, training, maker<Zero3>(training));
  const std::vector<Unit> units = units_of(*trial.layout);
  const Sizes sizes = sizes_of(units);
  grade.require("between steps a rank holds its shards", between_message(trial, sizes, ranks));
  require_order(grade, trial,
                {.race = "Or is the rank's own shard copied only after the call?",
                 .unwaited = "Or was the unit let go unread: does `following` return the right "
                             "unit, and does backward have its own order?"});
  grade.require("the losses have the bits of ZeroOptimizer", loss_message(trial.losses));
  grade.require("at most two blocks and the tied table are gathered",
                peak_message(trial, sizes, ranks));
  grade.require("each block is gathered for forward and for backward",
                traffic_message(trial, sizes, ranks));
  grade.require("what is read first is gathered first", first_message(trial, units));
  grade.require("a block is gathered while the one before is used", Passes(trial, units).message());
  grade.require("gathered values count as parameters", category_message(trial, sizes, ranks));
  if (ranks != 3) return;
  grade.predicted("elements of a block of the model", sizes.last);
  grade.predicted("bytes of parameters between steps", trial.parameters);
  grade.predicted("bytes of parameters at the peak",
                  4 * (trial.elements() / ranks + sizes.tied + sizes.largest));
  grade.predicted("bytes of parameters that rank 0 sends in a step", trial.sent_parameters);
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 6: ZeRO-3", course::check);
}
