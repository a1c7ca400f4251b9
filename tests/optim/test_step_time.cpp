// The model of a step's time against timelines worked out by hand in the comments. Times are in
// seconds; the rates make the numbers small and whole. "2-6" is the time from second 2 to second 6.
#include "optim/plan/step_time.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

using Catch::Approx;

// Parameters of 512 elements, one bucket each. On two ranks a shard has 256 elements = 1024 bytes.
PlanInput buckets(int64_t count, int stage, int64_t micro_steps = 1) {
  PlanInput input{.ranks = 2,
                  .stage = stage,
                  .bucket_bytes = 2048,
                  .batch = {.global = 2 * micro_steps, .micro = 1}};
  for (int64_t i = 0; i < count; ++i) input.parameters.push_back({"w", 512});
  return input;
}

// 1024 bytes take a second to the other rank; an operation takes a second.
constexpr MachineRates slow{.flops = 1, .bandwidth = 1024};

// The end of a step with n such buckets: block sums (8 bytes each), a loss per micro-step, flags.
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
  // 12 operations: forward 2 + 2, backward 4 + 4.
  const MicroBatchWork work{.flops = 12};

  // Stage 0: sums are gathered before the update, 0-1 and 1-2. Forward 2-6, backward 6-10 and
  // 10-14; exchanges 10-11 and 14-15.
  const StepTime stage0 = step_time(buckets(2, 0), work, slow);
  CHECK(stage0.compute == Approx(12));
  CHECK(stage0.communication == Approx(4 + end(2)));
  CHECK(stage0.exposed == Approx(3 + end(2)));

  // Stages 1 and 2: parameters are gathered 0-1 and 1-2, while forward runs: it waits until 1, then
  // 1-3 and 3-5. Backward 5-9 and 9-13; exchanges 9-10 and 13-14.
  for (const int stage : {1, 2}) {
    const StepTime time = step_time(buckets(2, stage), work, slow);
    CHECK(time.compute == Approx(12));
    CHECK(time.communication == Approx(4 + end(2)));
    CHECK(time.exposed == Approx(2 + end(2)));
    CHECK(time.total() == Approx(14 + end(2)));
  }

  // Stage 3: the first block is gathered 0-1, the next 1-2 while forward runs 1-3 and 3-5. Backward
  // begins with the block that is still gathered, 5-9, while the first one is gathered again, 5-6;
  // then 9-13. Exchanges as above.
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

TEST_CASE("step time: stage 2 waits for a slot of its ring, stage 1 for none") {
  // Three buckets, 3 operations in all: forward 1/3 each, backward 2/3 each. Transfers take 10.
  // The end's bytes take 10/1024 each.
  MachineRates rates = slow;
  rates.bandwidth = 102.4;
  const MicroBatchWork work{.flops = 3};
  // Stage 1: gathers 0-10, 10-20, 20-30; forward 10, 20, 30 to 30 1/3. Backward to 32 1/3;
  // exchanges 31-41, 41-51, 51-61.
  const StepTime stage1 = step_time(buckets(3, 1), work, rates);
  CHECK(stage1.total() == Approx(61 + 10 * end(3)));
  // Stage 2: the third bucket's gradient needs the slot of the first, free at 41: 41-41 2/3. Its
  // exchange waits for the second's in any case.
  const StepTime stage2 = step_time(buckets(3, 2), work, rates);
  CHECK(stage2.total() == Approx(61 + 10 * end(3)));
  // With four buckets (backward 1/2 each, forward to 40 1/4, exchanges from 40 3/4 on) the last one
  // waits for the second's slot until 60 3/4. The channel is still the limit.
  CHECK(step_time(buckets(4, 2), work, rates).total() == Approx(80.75 + 10 * end(4)));
}

TEST_CASE("step time: a tied parameter is the head, and its gradient comes last") {
  // tied, w: forward w 2, head 2; backward head 4, w 4. Gathers 0-1 (tied) and 1-2 (w): forward
  // waits until 2, since the tied one's part is the head: 2-4, 4-6; backward 6-10, 10-14. Both
  // exchanges start at 14: 14-15, 15-16.
  PlanInput input = buckets(2, 2);
  input.parameters[0].shared = true;
  const StepTime time = step_time(input, {.flops = 12}, slow);
  CHECK(time.compute == Approx(12));
  CHECK(time.total() == Approx(16 + end(2)));
  // Recomputing repeats everything but the head: here w's forward, 4 more operations.
  CHECK(step_time(input, {.flops = 12, .recomputed_flops = 4}, slow).compute == Approx(16));
}

TEST_CASE("step time: memory bandwidth counts the update, the sums, and element-wise work") {
  // A bucket's update on its shard of 256 elements: the sum twice (8 bytes), weight and two moments
  // read and written (24): 8192 bytes. Each exchange adds 512 elements: 4 + 8 bytes, 6144.
  PlanInput input = buckets(1, 2);
  MachineRates rates = slow;
  rates.memory_bandwidth = 2048;
  // Update 0-4, gather 4-5, forward 5-6 (1 operation), backward 6-8; exchange 1 + 3.
  const StepTime time = step_time(input, {.flops = 3}, rates);
  CHECK(time.compute == Approx(4 + 3));
  CHECK(time.communication == Approx(1 + 4 + end(1)));
  CHECK(time.total() == Approx(12 + end(1)));
  CHECK(time.moved_bytes == Approx(8192 + 6144));
  CHECK(time.update_bytes == Approx(8192));
  // 6144 bytes of element-wise work: 3 s more.
  CHECK(step_time(input, {.flops = 3, .bytes = 6144}, rates).compute == Approx(4 + 3 + 3));
  // A single rank adds gradients while it computes: 512 elements x 32 and x 12 bytes.
  input.ranks = 1;
  input.batch = {.global = 1, .micro = 1};
  CHECK(step_time(input, {.flops = 3}, rates).total() == Approx(3 + 8 + 3));
  // Stage 0 updates everything on each rank.
  CHECK(step_time(buckets(1, 0), {.flops = 3}, rates).compute == Approx(3 + 8));
  // bf16: 2 x 4 bytes of sums, 24, and 2 for the rounded weight; additions 2 + 8.
  input = buckets(1, 2);
  input.parameters[0].dtype = DType::bf16;
  CHECK(step_time(input, {.flops = 3}, rates).moved_bytes == Approx(256 * 34 + 512 * 10));
}

TEST_CASE("step time: messages take latency, and a node is nearer") {
  // Four ranks in two nodes: 3 messages a transfer; a shard of 256 elements = 1024 bytes goes to
  // one neighbour (at 4096 bytes/s: 1/4 s) and to two others (2 s).
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
  // Only the first gather and the last exchange are exposed, 1 each.
  const StepTime few = step_time(buckets(2, 2, 10), {.flops = 12}, slow);
  CHECK(few.total() == Approx(120 + 2 + end(2, 10)));
  const StepTime many = step_time(buckets(2, 2, 1000), {.flops = 12}, slow);
  CHECK(many.compute == Approx(12000));
  CHECK(many.exposed == Approx(2 + end(2, 1000)).margin(0.01));
  CHECK(many.communication == Approx(2 + 2000 + end(2, 1000)));
  // If the channel is the limit, every micro-step waits for it.
  MachineRates rates = slow;
  rates.bandwidth = 102.4;
  const StepTime bound = step_time(buckets(2, 2, 1000), {.flops = 12}, rates);
  CHECK(bound.total() == Approx(20 * 1000).epsilon(0.01));
  // no_sync exchanges once.
  PlanInput once = buckets(2, 2, 1000);
  once.no_sync = true;
  CHECK(step_time(once, {.flops = 12}, rates).total() == Approx(12000).epsilon(0.01));
}

TEST_CASE("step time: frozen parameters are not exchanged, and backward stops at the first other") {
  // w0 frozen, w1: forward 2 + 2, backward of w1 4. Exchange and gather of w1 alone.
  PlanInput input = buckets(2, 2);
  input.parameters[0].trainable = false;
  const StepTime first = step_time(input, {.flops = 12}, slow);
  CHECK(first.compute == Approx(4 + 4));
  CHECK(first.communication == Approx(2 + (8.0 + 4 + 2) / 1024));
  // w1 frozen: backward passes through it, without a gradient of its own: 2.
  input.parameters[0].trainable = true;
  input.parameters[1].trainable = false;
  CHECK(step_time(input, {.flops = 12}, slow).compute == Approx(4 + 2 + 4));
}

TEST_CASE("step time: rates that are none are refused") {
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
