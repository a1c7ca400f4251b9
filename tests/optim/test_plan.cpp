// The plan against numbers derived by hand, in the comments.
#include "optim/plan.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

int64_t sent(const Plan& plan, dist::Traffic purpose) {
  return plan.traffic[static_cast<size_t>(purpose)];
}

TEST_CASE("plan: one rank sends nothing") {
  // One parameter of 300 elements: two blocks, 512 elements, 2048 bytes; one bucket, one shard.
  PlanInput input{.parameters = {{"w", 300}}, .ranks = 1, .stage = 0};
  const Plan plan0 = plan(input, 0);
  CHECK(plan0.parameters == 2048);
  CHECK(plan0.gradients == 2048 + 2048);  // the micro-batch's and the sum
  CHECK(plan0.optimizer_state == 2 * 2048);
  CHECK(plan0.communication == 2 * 8 + 4);  // two block sums, one loss
  CHECK(plan0.padding == 212 * 4);
  CHECK(plan0.sent() == 0);
}

TEST_CASE("plan: two ranks, two buckets, stages 0, 1 and 2") {
  // a: 1000 elements (4 blocks), b: 200 (1 block). Buckets of 2000 bytes = 500 elements close after
  // each: bucket 0 holds b: 1 block, padded to 2 (512 elements); bucket 1 holds a: 4 blocks (1024).
  // Flat 1536 elements = 6144 bytes; a shard 256 + 512 = 768 elements = 3072 bytes, 3 blocks.
  // Global batch 8 in micro-batches of 2: M = 4, k = 2; both ranks send twice.
  PlanInput input{.parameters = {{"a", 1000}, {"b", 200}},
                  .ranks = 2,
                  .bucket_bytes = 2000,
                  .batch = {.global = 8, .micro = 2}};
  const int64_t staging = dist::mpi_staging_bytes(2);

  input.stage = 0;
  const Plan stage0 = plan(input, 1);
  CHECK(stage0.parameters == 6144);
  CHECK(stage0.gradients == 6144 + 3072);
  CHECK(stage0.optimizer_state == 2 * 6144);
  CHECK(stage0.communication == staging + 6 * 8 + 2 * 2 * 4);
  CHECK(stage0.padding == (1536 - 1200) * 4);
  // Twice the other's half of the gradients, once the own half of the sums.
  CHECK(sent(stage0, dist::Traffic::gradients) == 2 * 3072 + 3072);
  CHECK(sent(stage0, dist::Traffic::parameters) == 0);
  CHECK(sent(stage0, dist::Traffic::norms) == 3 * 8);
  CHECK(sent(stage0, dist::Traffic::losses) == 2 * 4);

  input.stage = 1;
  const Plan stage1 = plan(input, 1);
  CHECK(stage1.gradients == 6144 + 3072);
  CHECK(stage1.optimizer_state == 2 * 3072);
  CHECK(sent(stage1, dist::Traffic::gradients) == 2 * 3072);
  CHECK(sent(stage1, dist::Traffic::parameters) == 3072);

  input.stage = 2;
  const Plan stage2 = plan(input, 1);
  CHECK(stage2.gradients == 2 * 4096 + 3072);  // two slots of the larger bucket, the own shard
  CHECK(stage2.optimizer_state == 2 * 3072);
}

TEST_CASE("plan: three ranks, a tied parameter, an uneven last micro-step") {
  // tied: 600 elements (3 blocks) in a bucket of its own, w: 257 (2 blocks, padded to 3).
  // Flat 6 blocks = 1536 elements = 6144 bytes; a shard is 1 + 1 blocks = 512 elements = 2048
  // bytes. Global batch 4, micro 1: M = 4, k = 2; rank 0 has micro-batches 0 and 3, ranks 1 and 2
  // one each.
  PlanInput input{.parameters = {{"tied", 600, true}, {"w", 257}},
                  .ranks = 3,
                  .stage = 2,
                  .batch = {.global = 4, .micro = 1}};
  const Plan rank0 = plan(input, 0);
  CHECK(rank0.parameters == 6144);
  CHECK(rank0.gradients == 3072 + 3072 + 2048);  // one ring slot (one bucket), the tied slot, shard
  CHECK(rank0.optimizer_state == 2 * 2048);
  CHECK(rank0.communication == dist::mpi_staging_bytes(3) + 6 * 8 + 3 * 2 * 4);
  CHECK(sent(rank0, dist::Traffic::gradients) == 2 * (6144 - 2048));
  CHECK(sent(rank0, dist::Traffic::parameters) == 2 * 2048);
  CHECK(sent(rank0, dist::Traffic::norms) == 2 * 2 * 8);
  CHECK(sent(rank0, dist::Traffic::losses) == 2 * 2 * 4);
  CHECK(sent(plan(input, 1), dist::Traffic::gradients) == 6144 - 2048);
  CHECK(sent(plan(input, 2), dist::Traffic::gradients) == 6144 - 2048);
  input.no_sync = true;
  CHECK(sent(plan(input, 0), dist::Traffic::gradients) == 6144 - 2048);
  CHECK(plan(input, 0).gradients == 3072 + 3072 + 2048 + 6144);
}

TEST_CASE("plan: what does not exist is refused") {
  CHECK_THROWS_AS(plan({.stage = 3}, 0), Error);
  CHECK_THROWS_AS(plan({.ranks = 2}, 2), Error);
  CHECK_THROWS_AS(plan({.batch = {.global = 3, .micro = 2}}, 0), InputError);
}

}  // namespace
}  // namespace tessera::optim
