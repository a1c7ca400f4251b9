// Grades lesson 4: bytes of optimizer state, waits, the bits of the losses, traffic, overlap.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "course/4_zero1/zero1.h"
#include "course/lib/trial.h"

namespace course {
namespace {

const Training training;

// Returns the losses of lesson 3's solution on one rank if its moments are lost after each step. If
// `restarts` is true, the count of updates is lost too.
std::vector<float> losses_without_moments(bool restarts) {
  Task task;
  const std::shared_ptr<dist::Communicator> alone = dist::single_communicator();
  DataParallel trainer(task.model(), training.rule, *alone, training.bucket_bytes);
  trainer.start();
  Inspector inspector(trainer);
  std::vector<float> losses;
  for (int64_t step = 0; step < training.steps; ++step) {
    losses.push_back(trainer.step(step, training.batch, task.losses()));
    std::ranges::fill(inspector.first_moment().values<float>(), 0.0f);
    std::ranges::fill(inspector.second_moment().values<float>(), 0.0f);
    if (restarts) inspector.set_updates(0);
  }
  return losses;
}

std::string state_message(const Trial& trial, int64_t ranks) {
  const int64_t expected = 2 * 4 * trial.elements() / ranks;
  if (trial.state == expected) return "";
  std::string text = fmt::format(
      "the optimizer's state has {} bytes, expected {}: two moments of "
      "4 bytes for each of {} elements, over {} ranks",
      grouped(trial.state), grouped(expected), grouped(trial.elements()), ranks);
  if (trial.state == expected * ranks) {
    text += "\n      It is as large as at stage 0: every rank keeps the moments of all parameters";
  }
  return text;
}

std::string loss_message(const std::vector<float>& found) {
  const std::string text = difference(found, reference_losses(training));
  if (text.empty()) return text;
  const std::string hint = nan_hint(found);
  if (!hint.empty()) return text + hint;
  if (found == losses_without_moments(true) || found == losses_without_moments(false)) {
    return text +
           "\n      These are the losses of AdamW whose moments are lost after each step: "
           "are they allocated, or zeroed, in every update?";
  }
  std::vector<float> first(found.begin(), found.begin() + 1);
  if (difference(first, {reference_losses(training)[0]}).empty()) {
    return text +
           "\n      The first loss is right, so the update is wrong: is it counted once, and "
           "does every rank update the shard that it owns, with that shard of the sums and of the "
           "moments? Or is the gather wrong: is each bucket gathered whole, and by itself? (In "
           "`values_` a rank's shards are not one piece.)";
  }
  return text;
}

std::string traffic_message(const Trial& trial, const dist::Communicator& communicator) {
  // Every rank sends its shard of each bucket to each other rank.
  const int64_t expected = 4 * trial.elements() / communicator.size() * (communicator.size() - 1);
  if (trial.sent_parameters == expected) return "";
  return fmt::format(
      "a step sends {} bytes of parameters, expected {}: 4 bytes of each of the "
      "rank's {} elements to {} other ranks",
      grouped(trial.sent_parameters), grouped(expected),
      grouped(trial.elements() / communicator.size()), communicator.size() - 1);
}

bool is_gather(const Event& event) {
  return event.kind == "all_gather" && event.purpose == dist::Traffic::parameters;
}

std::string calls_message(const Trial& trial) {
  std::map<int64_t, int64_t> gathers;  // [bucket]: number of gathers
  for (const Event& event : trial.events.list()) {
    if (is_gather(event)) ++gathers[event.bucket];
  }
  if (gathers.contains(-1)) return "a gather does not say which bucket it gathers";
  for (int64_t b = 0; b < std::ssize(trial.layout->buckets()); ++b) {
    if (gathers[b] != 1) {
      return fmt::format("a step gathers the parameters of bucket {} {} times, expected once", b,
                         gathers[b]);
    }
  }
  return "";
}

// Returns a message if a gather does not overlap with an update. Another bucket must be updated
// between the start of a gather and the wait for it. The last gather is an exception.
std::string overlap_message(const Trial& trial) {
  const std::vector<Event>& events = trial.events.list();
  const auto at = [](size_t i) { return static_cast<int64_t>(i); };
  for (size_t i = 0; i < events.size(); ++i) {
    if (!is_gather(events[i]) || trial.events.find(is_gather, at(i) + 1) < 0) continue;
    const int64_t bucket = events[i].bucket;
    const auto is_wait = [&](const Event& event) {
      return event.kind == "wait" && event.purpose == dist::Traffic::parameters &&
             event.bucket == bucket;
    };
    const auto is_update = [](const Event& event) { return event.kind == "update"; };
    const int64_t update = trial.events.find(is_update, at(i));
    if (update < 0) {
      return fmt::format(
          "when bucket {} is gathered, all buckets are updated already: start each "
          "gather right after the update of its bucket",
          bucket);
    }
    if (trial.events.find(is_wait, at(i)) < update) {
      return fmt::format(
          "the all_gather of bucket {} is waited for before the next bucket is "
          "updated, so nothing overlaps",
          bucket);
    }
  }
  return "";
}

void check(Grade& grade) {
  const int64_t ranks = grade.world().size;
  const Trial trial = train(grade, training, maker<Zero1>(training));
  grade.require("a rank keeps the state of its own shards", state_message(trial, ranks));
  require_order(grade, trial,
                {.race = "Or did you write, or gather, another bucket's memory?", .unwaited = ""});
  grade.require("the losses have the bits of ZeroOptimizer", loss_message(trial.losses));
  grade.require("each rank sends its own shards, once",
                traffic_message(trial, grade.communicator()));
  grade.require("one gather for each bucket", calls_message(trial));
  grade.require("a bucket is gathered while the next one is updated", overlap_message(trial));
  if (ranks != 3) return;
  grade.predicted("bytes of moments that stage 0 holds on a rank", 2 * 4 * trial.elements());
  grade.predicted("bytes of state on a rank", trial.state);
  grade.predicted("bytes of gradients that rank 0 sends in a step", trial.sent_gradients);
  grade.predicted("bytes of parameters that rank 0 sends in a step", trial.sent_parameters);
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 4: ZeRO-1", course::check);
}
