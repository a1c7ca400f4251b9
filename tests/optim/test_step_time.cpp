// Compares the model of a step's time with timelines that the comments derive by hand. Times are in
// seconds; the rates make them simple numbers. "2-6" is the time from second 2 to second 6.
#include "optim/plan/step_time.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

using Catch::Approx;

// Returns a plan's input of `count` parameters of 512 elements, one bucket each, on two ranks. A
// shard of a bucket has 256 elements = 1024 bytes.
PlanInput buckets(int64_t count, int stage, int64_t micro_steps = 1) {
  PlanInput input{.ranks = 2,
                  .stage = stage,
                  .bucket_bytes = 2048,
                  .batch = {.global = 2 * micro_steps, .micro = 1}};
  for (int64_t i = 0; i < count; ++i) input.parameters.push_back({"w", 512});
  return input;
}

// Sending 1024 bytes takes a second. One operation takes a second, too.
constexpr MachineRates slow{.flops = 1, .bandwidth = 1024};

// Returns the seconds of communication at the end of a step with `count` buckets. For each bucket a
// rank sends 8 bytes: the sum of squares of its shard, a block of 256 elements. The rank also sends
// a loss (4 bytes) per micro-step, a byte of notes, and flags.
double end(int64_t count, int64_t micro_steps = 1) {
  const int64_t flags = 1 + (micro_steps + count + 7) / 8;
  return static_cast<double>(8 * count + 4 * micro_steps + flags) / 1024;
}

TEST_CASE("step time: one rank computes, and waits for nothing") {
  PlanInput input = buckets(3, 2, 1);
  input.ranks = 1;
  input.batch = {.global = 5, .micro = 1};
  const StepTime time = step_time(input, {.flops = 12}, {.flops = 4});
  CHECK(time.compute == Approx(5 * 3));
  CHECK(time.exposed == 0);
  CHECK(time.communication == 0);
  CHECK(time.flops == Approx(5 * 12));
}

TEST_CASE("step time: two buckets, every stage") {
  // A micro-batch has 12 operations: forward takes 2 + 2 for the two buckets, backward 4 + 4.
  const MicroBatchWork work{.flops = 12};

  // A timeline begins with the previous step's update, which takes no time here. Stage 0 gathers
  // gradient sums before the update; stages 1 and 2 gather parameters after the update.
  // Stage 0: gathers 0-1 and 1-2. Forward 2-6, backward 6-10 and 10-14; exchanges 10-11 and 14-15.
  const StepTime stage0 = step_time(buckets(2, 0), work, slow);
  CHECK(stage0.compute == Approx(12));
  CHECK(stage0.communication == Approx(4 + end(2)));
  CHECK(stage0.exposed == Approx(3 + end(2)));

  // Stages 1 and 2: gathers 0-1 and 1-2. Forward waits for the first gather, then runs 1-3 and 3-5.
  // Backward 5-9 and 9-13; exchanges 9-10 and 13-14.
  for (const int stage : {1, 2}) {
    const StepTime time = step_time(buckets(2, stage), work, slow);
    CHECK(time.compute == Approx(12));
    CHECK(time.communication == Approx(4 + end(2)));
    CHECK(time.exposed == Approx(2 + end(2)));
    CHECK(time.total() == Approx(14 + end(2)));
  }

  // Stage 3, with the buckets counted in the order of forward: the first bucket is gathered 0-1,
  // and its forward is 1-3. Meanwhile the second bucket is gathered 1-2, and its forward is 3-5.
  // The second bucket is still in memory, so its backward follows without another gather, 5-9.
  // Meanwhile the first bucket is gathered again, 5-6, and its backward is 9-13. Exchanges 9-10 and
  // 13-14.
  const StepTime stage3 = step_time(buckets(2, 3), work, slow);
  CHECK(stage3.compute == Approx(12));
  CHECK(stage3.communication == Approx(5 + end(2)));
  CHECK(stage3.exposed == Approx(2 + end(2)));
}

TEST_CASE("step time: without overlap communication adds to computing") {
  for (const auto& [stage, transfers] : {std::pair{0, 4}, {1, 4}, {2, 4}, {3, 5}}) {
    PlanInput input = buckets(2, stage);
    input.overlap = false;
    const StepTime time = step_time(input, {.flops = 12}, slow);
    CHECK(time.exposed == Approx(time.communication));
    CHECK(time.total() == Approx(12 + transfers + end(2)));
    input.overlap = true;
    MachineRates rates = slow;
    rates.shared_cores = true;
    CHECK(step_time(input, {.flops = 12}, rates).total() == Approx(time.total()));
  }
}

TEST_CASE("step time: stage 2 waits for a slot of its ring, stage 1 does not") {
  // Three buckets of 2048, 512 and 2048 elements. A transfer takes 4, 1 and 4, and so does forward;
  // backward takes 8, 2 and 8. Gathers, in the order of forward: 0-4, 4-5 and 5-9. Forward 4-8, 8-9
  // and 9-13. Backward of two buckets 13-21 and 21-23; exchanges 21-25 and 25-26.
  const auto total = [](int stage) {
    PlanInput input = buckets(3, stage);
    for (const size_t large : {0, 2}) input.parameters[large].elements = 2048;
    return step_time(input, {.flops = 27}, slow).total();
  };
  // At the end a rank sends the sums of squares of the 9 blocks of its shards, a loss, a byte of
  // notes, and a byte of flags.
  const double last = (8.0 * 9 + 4 + 2) / 1024;
  // Stage 1: the third backward follows at once, 23-31. Its exchange is 31-35.
  CHECK(total(1) == Approx(35 + last));
  // Stage 2: there are two slots for gradients. The third bucket needs the slot of the first
  // bucket, which is free after the first exchange, at 25. Backward 25-33; exchange 33-37.
  CHECK(total(2) == Approx(37 + last));
}

TEST_CASE("step time: a tied parameter counts as the head, and its gradient is ready last") {
  // The first of the two parameters is tied; the second is called w here. Only the output head
  // multiplies by the tied parameter. Forward takes 2 for w, then 2 for the head; backward takes 4
  // for the head, then 4 for w.
  // Gathers 0-1 (tied) and 1-2 (w). Forward begins with w, at 2: 2-4 and 4-6. Backward 6-10 and
  // 10-14. Both gradients are complete only at 14, when backward ends. Exchanges 14-15 and 15-16.
  PlanInput input = buckets(2, 2);
  input.parameters[0].shared = true;
  const StepTime time = step_time(input, {.flops = 12}, slow);
  CHECK(time.compute == Approx(12));
  CHECK(time.total() == Approx(16 + end(2)));
  // The head is not recomputed, so the 4 recomputed operations are all for w.
  CHECK(step_time(input, {.flops = 12, .recomputed_flops = 4}, slow).compute == Approx(16));
}

TEST_CASE("step time: memory bandwidth counts the update, the sums, and element-wise work") {
  // For each element, the update moves 32 bytes: 8 to read the gradient sum twice (first for the
  // norm, then for the update), and 24 to read and write the weight and two moments. A shard has
  // 256 elements, so the update moves 8192 bytes.
  // For each addition, an exchange moves 12 bytes: 4 to read a rank's gradient, and 8 to read and
  // write the gradient sum. It adds the gradients of two ranks for a shard: 512 additions, 6144
  // bytes.
  PlanInput input = buckets(1, 2);
  MachineRates rates = slow;
  rates.memory_bandwidth = 2048;
  // Update 0-4, gather 4-5, forward 5-6 (1 operation), backward 6-8. The exchange takes 1 to send
  // and 3 to add: 8-12.
  const StepTime time = step_time(input, {.flops = 3}, rates);
  CHECK(time.compute == Approx(4 + 3));
  CHECK(time.communication == Approx(1 + 4 + end(1)));
  CHECK(time.total() == Approx(12 + end(1)));
  CHECK(time.moved_bytes == Approx(8192 + 6144));
  CHECK(time.update_bytes == Approx(8192));
  // 6144 bytes of element-wise work: 3 s more.
  CHECK(step_time(input, {.flops = 3, .bytes = 6144}, rates).compute == Approx(4 + 3 + 3));
  // A single rank sends nothing, so its additions count as computing. It updates 512 elements with
  // 32 bytes each, in 8 seconds, and adds 512 elements with 12 bytes each, in 3.
  input.ranks = 1;
  input.batch = {.global = 1, .micro = 1};
  CHECK(step_time(input, {.flops = 3}, rates).total() == Approx(3 + 8 + 3));
  // At stage 0 each rank updates everything, in 8 seconds.
  CHECK(step_time(buckets(1, 0), {.flops = 3}, rates).compute == Approx(3 + 8));
  // In bf16 an update moves 34 bytes per element: 2 x 4 for sums, 24 as above, and 2 for the
  // rounded weight. An addition moves 2 + 8.
  input = buckets(1, 2);
  input.parameters[0].dtype = DType::bf16;
  CHECK(step_time(input, {.flops = 3}, rates).moved_bytes == Approx(256 * 34 + 512 * 10));
}

TEST_CASE("step time: each message takes latency, and links within a node are faster") {
  // Four ranks in two nodes. A transfer takes 3 messages. A shard of 256 elements = 1024 bytes goes
  // to one rank of the same node (1/4 s at 4096 bytes/s) and to two ranks of the other node (2 s).
  PlanInput input = buckets(1, 2);
  input.parameters[0].elements = 1024;
  input.ranks = 4;
  input.batch = {.global = 4, .micro = 1};
  MachineRates rates = slow;
  rates.latency = 1;
  rates.node_bandwidth = 4096;
  rates.ranks_per_node = 2;
  const double transfer = 3 + 0.25 + 2;
  const double small = 3 * 3 + (8.0 + 4 + 2) / 1024 * 2.25;  // norms, losses, flags
  const StepTime time = step_time(input, {.flops = 3}, rates);
  CHECK(time.communication == Approx(2 * transfer + small));
  CHECK(time.total() == Approx(3 + 2 * transfer + small));
}

TEST_CASE("step time: many micro-steps") {
  // Only the first gather and the last exchange are exposed, one second each.
  const StepTime few = step_time(buckets(2, 2, 10), {.flops = 12}, slow);
  CHECK(few.total() == Approx(120 + 2 + end(2, 10)));
  const StepTime many = step_time(buckets(2, 2, 1000), {.flops = 12}, slow);
  CHECK(many.compute == Approx(12000));
  CHECK(many.exposed == Approx(2 + end(2, 1000)).margin(0.01));
  CHECK(many.communication == Approx(2 + 2000 + end(2, 1000)));
  // If exchanges take longer than computing, every micro-step waits for them.
  MachineRates rates = slow;
  rates.bandwidth = 102.4;
  const StepTime bound = step_time(buckets(2, 2, 1000), {.flops = 12}, rates);
  CHECK(bound.total() == Approx(20 * 1000).epsilon(0.01));
  // no_sync exchanges once.
  PlanInput once = buckets(2, 2, 1000);
  once.no_sync = true;
  CHECK(step_time(once, {.flops = 12}, rates).total() == Approx(12000).epsilon(0.01));
}

TEST_CASE("step time: frozen parameters are not exchanged, and backward does less work") {
  // w0 is frozen: forward takes 2 + 2, and backward takes 4 for w1 alone. Only w1 is exchanged and
  // gathered.
  PlanInput input = buckets(2, 2);
  input.parameters[0].trainable = false;
  const StepTime first = step_time(input, {.flops = 12}, slow);
  CHECK(first.compute == Approx(4 + 4));
  CHECK(first.communication == Approx(2 + (8.0 + 4 + 2) / 1024));
  // w1 is frozen: backward passes through w1, but does not compute the gradient of w1. So it spends
  // 2 seconds on w1 instead of 4.
  input.parameters[0].trainable = true;
  input.parameters[1].trainable = false;
  CHECK(step_time(input, {.flops = 12}, slow).compute == Approx(4 + 2 + 4));
}

TEST_CASE("step time: invalid rates are refused") {
  const PlanInput input = buckets(1, 2);
  const MicroBatchWork work{.flops = 1};
  CHECK_THROWS_AS(step_time(input, work, {.flops = 0, .bandwidth = 1}), InputError);
  CHECK_THROWS_AS(step_time(input, work, {.flops = 1}), InputError);
  CHECK_THROWS_AS(step_time(input, work, {.flops = 1, .bandwidth = 1, .latency = -1}), InputError);
  CHECK_THROWS_AS(step_time(input, work, {.flops = 1, .bandwidth = 1, .ranks_per_node = 0}),
                  InputError);
}

}  // namespace
}  // namespace tessera::optim
