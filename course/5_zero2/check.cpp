// Grades lesson 5: bytes of gradients, races, the bits of the losses, traffic, and when buckets are
// sent and waited for.
#include <fmt/format.h>

#include "course/5_zero2/zero2.h"
#include "course/lib/sums.h"
#include "course/lib/trial.h"

namespace course {
namespace {

const Training training;

struct Sizes {
  int64_t largest = 0;  // elements of the largest bucket without a tied parameter
  int64_t tied = 0;     // elements of all buckets with a tied parameter
};

Sizes sizes_of(const dist::ShardLayout& layout) {
  Sizes sizes;
  for (const dist::Bucket& bucket : layout.buckets()) {
    int64_t& size = bucket.shared ? sizes.tied : sizes.largest;
    size = bucket.shared ? size + bucket.elements : std::max(size, bucket.elements);
  }
  return sizes;
}

std::string memory_message(const Trial& trial, int64_t ranks) {
  const Sizes sizes = sizes_of(*trial.layout);
  const int64_t sums = 4 * trial.elements() / ranks;
  const int64_t least = 4 * (sizes.largest + sizes.tied) + sums;
  const int64_t most = least + 4 * sizes.largest;
  if (trial.peak_gradients < least) {
    return fmt::format(
        "gradients take {} bytes, expected at least {}: the memory that open() returns and the "
        "sums must have Category::gradients, by which the check counts them",
        grouped(trial.peak_gradients), grouped(least));
  }
  if (trial.peak_gradients <= most) return "";
  std::string text = fmt::format(
      "gradients take {} bytes, expected at most {}: two buckets as large as the largest "
      "({} elements), the tied one ({}), and the sums of this rank's shards ({} bytes)",
      grouped(trial.peak_gradients), grouped(most), grouped(sizes.largest), grouped(sizes.tied),
      grouped(sums));
  if (trial.peak_gradients == 4 * trial.elements() + sums) {
    text +=
        "\n      That is a whole gradient, as at stage 1: every bucket still has memory of its "
        "own";
  } else if (trial.peak_gradients == most - sums + ranks * sums && ranks > 1) {
    text += "\n      The sums are those of all shards: a rank needs its own only";
  }
  return text;
}

// Returns a message if a tied parameter is the only one with a wrong gradient. The likely cause is
// that open() gave the memory of the tied parameter's bucket to another bucket during backward.
std::string tied_message(const Trial& trial, const std::vector<std::string>& wrong) {
  for (const nn::NamedParameter& named : trial.named) {
    if (wrong.size() != 1 || wrong[0] != named.name || !named.shared) continue;
    return fmt::format(
        "only the gradient of {} is wrong. It is tied: the head writes to it first, "
        "and the embedding last. Does another bucket get its memory in between?",
        named.name);
  }
  return "";
}

std::string loss_message(const Trial& trial, const std::vector<std::string>& wrong) {
  const std::string text = difference(trial.losses, reference_losses(training));
  if (text.empty() || wrong.empty()) return text;
  return text + fmt::format(
                    "\n      In the first step the gradients of {} parameters are wrong, "
                    "such as {}: did another bucket get the memory before it was sent?",
                    wrong.size(), wrong[0]);
}

// Returns a message if the traffic differs from that of stage 1. At stage 1, in each micro-step to
// which a rank contributes, the rank sends every other rank a part of its gradients: the shards
// that the other rank owns.
std::string traffic_message(const Trial& trial, const dist::Communicator& communicator) {
  const int64_t ranks = communicator.size();
  int64_t contributions = 0;
  for (int64_t j = 0; j < training.batch.micro_steps(ranks); ++j) {
    contributions += communicator.rank() < training.batch.contributors(ranks, j) ? 1 : 0;
  }
  const int64_t expected = contributions * (ranks - 1) * 4 * trial.elements() / ranks;
  if (trial.sent_gradients == expected) return "";
  return fmt::format("a step sends {} bytes of gradients, expected {} as at stage 1",
                     grouped(trial.sent_gradients), grouped(expected));
}

// Returns a message if more than a third of the exchanges do not overlap with backward. An exchange
// overlaps if a gradient becomes complete between the exchange's start and its wait. Even in the
// reference solution, one exchange in six does not overlap, because the next gradient needs the
// memory of the exchanged bucket at once.
std::string overlap_message(const Trial& trial) {
  const auto& list = trial.events.list();
  int64_t exchanges = 0;
  int64_t waited = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind != "exchange") continue;
    // The last two buckets may be waited for without any overlap, because backward ends.
    if (list[i].bucket + 1 >= std::ssize(trial.layout->buckets()) - 1) continue;
    const int64_t next = trial.events.find(
        [&](const Event& event) {
          return event.kind == "complete" ||
                 (event.kind == "wait" && event.bucket == list[i].bucket);
        },
        static_cast<int64_t>(i));
    ++exchanges;
    if (next >= 0 && list[static_cast<size_t>(next)].kind == "wait") ++waited;
  }
  if (3 * waited <= exchanges) return "";
  return fmt::format(
      "{} of {} exchanges are waited for before another gradient is complete: wait for a bucket "
      "only when its memory is needed again",
      waited, exchanges);
}

// Returns a message if a bucket is sent too late. Bucket b must be sent before the gradient of the
// first parameter of bucket b + 3 is complete. Buckets of tied parameters are exempt.
std::string order_message(const Trial& trial) {
  const auto& buckets = trial.layout->buckets();
  const auto sends = [&](int bucket) {
    return trial.events.find([bucket](const Event& event) {
      return event.kind == "exchange" && event.bucket == bucket;
    });
  };
  const auto completes = [&](int bucket) {
    const int parameter = buckets[static_cast<size_t>(bucket)].parameters[0];
    const std::string& name = trial.named[static_cast<size_t>(parameter)].name;
    return trial.events.find([&name](const Event& event) {
      return event.kind == "complete" && event.parameter == name;
    });
  };
  for (int b = 0; b + 3 < std::ssize(buckets); ++b) {
    if (buckets[static_cast<size_t>(b)].shared || buckets[static_cast<size_t>(b) + 3].shared) {
      continue;
    }
    if (sends(b) < 0) return fmt::format("bucket {} is never sent", b);
    if (sends(b) < completes(b + 3)) continue;
    return fmt::format(
        "bucket {} is sent only after gradients of bucket {} are complete: send a "
        "bucket when its last gradient is complete, while backward goes on",
        b, b + 3);
  }
  return "";
}

void check(Grade& grade) {
  const int64_t ranks = grade.world().size;
  const Gradients expected =
      reference_gradients(training);  // computed first, because the trial measures memory
  std::vector<std::string> wrong;
  int step = 0;
  const Trial trial =
      train(grade, training, maker<Zero2>(training), DType::f32, true, [&](DataParallel& trainer) {
        if (step++ == 0) wrong = compare_sums(trainer, expected, grade.world().rank).wrong;
      });
  grade.require("no rank holds a whole gradient", memory_message(trial, ranks));
  grade.require("the tied table keeps its memory", tied_message(trial, wrong));
  require_order(
      grade, trial,
      {.race =
           "Does the slot note which bucket has it, and does open() wait for that one? Or do two "
           "buckets that fill at the same time have the same slot? (The tied one fills until "
           "the end of backward.)",
       .unwaited = ""});
  grade.require("the losses have the bits of ZeroOptimizer", loss_message(trial, wrong));
  grade.require("stage 2 sends what stage 1 sends", traffic_message(trial, grade.communicator()));
  grade.require("buckets leave while backward goes on", order_message(trial));
  grade.require("exchanges overlap with backward", overlap_message(trial));
  if (ranks != 3) return;
  const Sizes sizes = sizes_of(*trial.layout);
  grade.predicted("elements of the tied bucket", sizes.tied);
  grade.predicted("bytes of sums on a rank", 4 * trial.elements() / ranks);
  grade.predicted("bytes of slots, tied bucket and sums on a rank",
                  4 * (2 * sizes.largest + sizes.tied) + 4 * trial.elements() / ranks);
  grade.predicted("bytes of gradients that rank 0 sends in a step", trial.sent_gradients);
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 5: ZeRO-2", course::check);
}
