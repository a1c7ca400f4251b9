// Grades lesson 3: averaged gradients, equal weights on all ranks, losses with the bits of those of
// ZeroOptimizer, one call for each bucket, overlap, traffic, races.
#include <cmath>

#include <fmt/format.h>

#include "core/digest.h"
#include "course/lib/sums.h"
#include "course/lib/trial.h"

namespace course {
namespace {

const Training training;

// `training` has seven micro-batches, which 2, 3 and 5 ranks cannot share evenly. even_training has
// two for each rank.
Training even_training(int64_t ranks) {
  Training even = training;
  even.batch.global = 2 * ranks * even.batch.micro;
  even.steps = 1;
  return even;
}

// Trains one step, and compares its gradient sums with the reference. train() gets late = false:
// each communicator call is complete when it returns, so a race cannot make the sums wrong. Another
// requirement reports races.
SumReport sums_of_first_step(Grade& grade, const Training& of) {
  const Gradients expected = reference_gradients(of);
  Training once = of;
  once.steps = 1;
  SumReport report;
  train(grade, once, maker<DataParallel>(once), DType::f32, false, [&](DataParallel& trainer) {
    report = compare_sums(trainer, expected, grade.world().rank);
  });
  return report;
}

bool near(double a, double b) { return std::abs(a - b) < 0.01 * b; }

// Returns a message about wrong gradient sums, or an empty text. `report` is about one step, and
// `batch` is the batch of that step.
std::string sum_message(const SumReport& report, int64_t ranks, const Batch& batch) {
  if (report.wrong.empty()) return "";
  std::string text = fmt::format(
      "the sums of {} parameters are wrong, such as {}; in total they are {:.4g} times as large as "
      "expected",
      report.wrong.size(), report.wrong[0], report.ratio);
  const auto n = static_cast<double>(ranks);
  // A wrong program may divide by the number of micro-batches in this step. Or it may always divide
  // by 7, the number of micro-batches in `training`.
  int64_t divisor = 0;
  for (const int64_t m : {batch.micro_batches(), training.batch.micro_batches()}) {
    if (near(report.ratio, 1 / static_cast<double>(m))) divisor = m;
  }
  if (ranks > 1 && near(report.ratio, 1 / n)) {
    text += fmt::format(
        "\n      That is 1/{}: the gradient is averaged twice. The loss is scaled by "
        "1/M already, so that the sum over all micro-batches is their mean",
        ranks);
  } else if (divisor > 0) {
    text += fmt::format(
        "\n      That is 1/{}: the gradient is divided by the number of micro-batches, M. The "
        "loss is scaled by 1/M already",
        divisor);
  } else if (report.distance < 1e-4) {
    text +=
        "\n      Only the last bits differ, so all contributions are there. Add them one by one to "
        "the sum, in order of micro-batch: another order of additions rounds otherwise";
  } else if (ranks > 1 && near(report.ratio, n)) {
    text += "\n      Each contribution is added N times";
  } else if (report.ratio == 0) {
    text += "\n      Nothing was added: is the bucket sent?";
  } else {
    text +=
        "\n      Is `first` true once in a step, for the piece of rank 0 in micro-step 0? Does "
        "each "
        "chunk go to its own place (begin)?";
  }
  return text;
}

// Returns a message if a bucket was sent while one of its gradients was missing.
std::string early_message(const Trial& trial) {
  const auto& buckets = trial.layout->buckets();
  std::vector<size_t> complete(buckets.size());
  for (const Event& event : trial.events.list()) {
    if (event.kind == "complete") {
      for (int p = 0; p < std::ssize(trial.named); ++p) {
        if (trial.named[static_cast<size_t>(p)].name != event.parameter) continue;
        ++complete[static_cast<size_t>(trial.layout->slot(p).bucket)];
      }
    }
    if (event.kind != "exchange" || event.bucket < 0) continue;
    const auto b = static_cast<size_t>(event.bucket);
    if (complete[b] < buckets[b].parameters.size()) {
      return fmt::format(
          "bucket {} was sent when {} of its {} gradients were complete: the owners "
          "get what the micro-batch before has left there",
          b, complete[b], buckets[b].parameters.size());
    }
    complete[b] = 0;
  }
  return "";
}

std::string calls_message(const Trial& trial, int64_t ranks) {
  int64_t calls = 0;
  for (const Event& event : trial.events.list()) calls += event.kind == "exchange" ? 1 : 0;
  const int64_t steps = training.batch.micro_steps(ranks);
  const int64_t expected = steps * std::ssize(trial.layout->buckets());
  if (calls == expected) return "";
  std::string text = fmt::format(
      "a step makes {} exchanges, expected {}: one for each of {} buckets "
      "in each of {} micro-steps",
      calls, expected, trial.layout->buckets().size(), steps);
  if (calls == steps * std::ssize(trial.named)) text += "\n      There is one for each parameter";
  return text;
}

// Returns a message if a bucket is sent too late to overlap with backward. Bucket b must be sent
// before backward has completed the gradients of bucket b + 2. Bucket b + 1 would be too strict: if
// buckets b and b + 1 have the bias and the weight of one layer, one operation of backward computes
// both gradients, and nothing can overlap in between. Buckets of tied parameters are exempt.
std::string overlap_message(const Trial& trial) {
  const auto& buckets = trial.layout->buckets();
  for (int b = 0; b + 2 < std::ssize(buckets); ++b) {
    const dist::Bucket& later = buckets[static_cast<size_t>(b) + 2];
    if (buckets[static_cast<size_t>(b)].shared || later.shared) continue;
    const std::string& name = trial.named[static_cast<size_t>(later.parameters.back())].name;
    const int64_t sent = trial.events.find(
        [b](const Event& event) { return event.kind == "exchange" && event.bucket == b; });
    const int64_t done = trial.events.find([&name](const Event& event) {
      return event.kind == "complete" && event.parameter == name;
    });
    if (sent < 0) {
      return fmt::format("no exchange names bucket {}: pass the bucket's number to the call", b);
    }
    if (sent < done) continue;
    return fmt::format(
        "bucket {} is sent only after the gradient of {}, two buckets later, is "
        "complete: send a bucket when its last gradient is complete, while backward "
        "goes on",
        b, name);
  }
  return "";
}

std::string traffic_message(const Trial& trial, const dist::Communicator& communicator) {
  const int64_t ranks = communicator.size();
  // How many times the rank sends one shard to each other rank: once to gather the sums before the
  // update, and once for each micro-batch that it contributes.
  int64_t times = 1;
  for (int64_t j = 0; j < training.batch.micro_steps(ranks); ++j) {
    times += communicator.rank() < training.batch.contributors(ranks, j) ? 1 : 0;
  }
  const int64_t expected = times * (ranks - 1) * 4 * trial.elements() / ranks;
  if (trial.sent_gradients == expected) return "";
  return fmt::format(
      "a step sends {} bytes of gradients, expected {}: in each micro-step in which "
      "the rank contributes, one shard to each other rank; and once more, to gather "
      "the sums",
      grouped(trial.sent_gradients), grouped(expected));
}

std::string unlike_message(const std::vector<std::string>& digests) {
  for (size_t r = 1; r < digests.size(); ++r) {
    if (digests[r] == digests[0]) continue;
    return fmt::format("after one step the weights of rank {} differ from those of rank 0", r);
  }
  return "";
}

// Returns a message if the second loss shows that the first update was wrong. Returns an empty text
// if there was a race, because another requirement reports races.
std::string update_message(const Trial& trial, const std::vector<float>& expected) {
  if (!trial.races.empty() || trial.losses[1] == expected[1]) return "";
  return fmt::format(
      "the loss of step 2 is {:.9g}, expected {:.9g}; the sums of step 1 were right\n"
      "      Is the update counted, once, before the rule is applied? Is this rank's "
      "shard of the sums put into the bucket before the gather?",
      trial.losses[1], expected[1]);
}

void check(Grade& grade) {
  const int64_t ranks = grade.world().size;
  const Training even = even_training(ranks);
  const Gradients second = reference_gradients(training, 1);
  int64_t steps = 0;
  SumReport of_second;
  std::vector<std::string> digests;  // one for each rank, of its weights after the first step
  const Trial trial = train(
      grade, training, maker<DataParallel>(training), DType::f32, true, [&](DataParallel& trainer) {
        if (++steps == 2) of_second = compare_sums(trainer, second, grade.world().rank);
        if (steps != 1) return;
        const Tensor& values = Inspector(trainer).values();
        const uint64_t digest = xxh3(
            {static_cast<const std::byte*>(values.raw()), static_cast<size_t>(values.bytes())});
        digests = dist::gather_text(grade.communicator(), fmt::format("{:x}", digest));
      });
  // A bucket that is sent too early also has wrong sums. This requirement comes first, because
  // early_message explains that mistake, and sum_message does not.
  grade.require("a bucket is sent when its gradients are complete", early_message(trial));
  grade.require("slice 1: gradients are averaged if all ranks have equally many micro-batches",
                sum_message(sums_of_first_step(grade, even), ranks, even.batch));
  std::string uneven = sum_message(sums_of_first_step(grade, training), ranks, training.batch);
  if (!uneven.empty()) {
    uneven +=
        "\n      With equally many micro-batches on each rank the sums are right: in the last "
        "micro-step some ranks repeat a micro-batch, and must not contribute";
  }
  grade.require("ranks without a micro-batch of their own do not contribute", uneven);
  grade.require("all ranks have the same weights", unlike_message(digests));
  const std::vector<float> expected = reference_losses(training);
  grade.require("the first update", update_message(trial, expected));
  std::string stale = sum_message(of_second, ranks, training.batch);
  if (!stale.empty()) {
    stale +=
        "\n      In the first step the sums were right: is the sum of the step before still in? Or "
        "does the receiving function read a member that has changed meanwhile?";
  }
  grade.require("every step begins its sums anew", trial.races.empty() ? stale : "");
  require_order(grade, trial);
  grade.require("the losses have the bits of ZeroOptimizer", difference(trial.losses, expected));
  grade.require("slice 2: one exchange for each bucket", calls_message(trial, ranks));
  grade.require("slice 3: buckets leave while backward goes on", overlap_message(trial));
  grade.require("nothing waits for a bucket while others are to be sent",
                early_wait(trial, "exchange", dist::Traffic::gradients));
  grade.require("each rank sends shards to their owners",
                traffic_message(trial, grade.communicator()));
  if (ranks != 3) return;
  grade.predicted("exchanges in a step",
                  training.batch.micro_steps(ranks) * std::ssize(trial.layout->buckets()));
  grade.predicted(
      "elements of the largest shard",
      std::ranges::max_element(trial.layout->buckets(), {}, &dist::Bucket::shard_elements)
          ->shard_elements);
  grade.predicted("bytes of moments on a rank", trial.state);
  grade.predicted("bytes of gradients that rank 0 sends in a step", trial.sent_gradients);
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 3: data parallelism", course::check);
}
