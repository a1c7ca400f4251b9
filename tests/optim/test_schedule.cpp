#include "optim/rules/schedule.h"

#include "core/error.h"
#include "core/micro_batch.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

TEST_CASE("warmup_cosine rises linearly, passes its middle, and ends at the minimum") {
  const Schedule schedule = warmup_cosine(9, 109, 0.1f);
  CHECK(schedule(0) == Catch::Approx(0.1));
  CHECK(schedule(4) == Catch::Approx(0.5));
  CHECK(schedule(9) == Catch::Approx(1.0));
  CHECK(schedule(59) == Catch::Approx(0.55));  // half way between 1 and 0.1
  CHECK(schedule(109) == 0.1f);
  CHECK(schedule(100000) == 0.1f);
}

TEST_CASE("a factor is never negative, however long the warm-up") {
  for (const int64_t warmup : {int64_t{1} << 40, INT64_MAX - 1, INT64_MAX}) {
    const Schedule schedule = warmup_cosine(warmup, 10, 0.1f);
    for (const int64_t step : {int64_t{0}, int64_t{9}, int64_t{10}, warmup - 1}) {
      CHECK(schedule(step) > 0);
      CHECK(schedule(step) <= 1);
    }
  }
}

// The values for steps 0 to 99 are those of PyTorch's
// torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1, total_steps=100).
TEST_CASE("one_cycle rises and falls as in PyTorch") {
  const Schedule schedule = one_cycle(100);
  CHECK(schedule(0) == Catch::Approx(0.04));
  CHECK(schedule(10) == Catch::Approx(0.29516394846410077));
  CHECK(schedule(29) == Catch::Approx(1.0));
  CHECK(schedule(64) == Catch::Approx(0.500002));
  CHECK(schedule(99) == Catch::Approx(4e-6));
  CHECK(schedule(1000) == Catch::Approx(4e-6));
  CHECK(one_cycle(1)(0) == Catch::Approx(4e-6));
  CHECK_THROWS_AS(one_cycle(-1), Error);
}

TEST_CASE("schedules: no warm-up, constant, and what is refused") {
  CHECK(warmup_cosine(0, 10, 0)(0) == 1.0f);
  CHECK(warmup_cosine(0, 0, 0.5f)(0) == 0.5f);
  CHECK(constant_schedule()(123) == 1.0f);
  CHECK_THROWS_AS(warmup_cosine(-1, 10, 0), Error);
  CHECK_THROWS_AS(warmup_cosine(0, 10, 1.5f), Error);
}

TEST_CASE("a batch is divided into micro-steps for any number of ranks") {
  const Batch batch{.global = 24, .micro = 2};  // M = 12 micro-batches
  CHECK(batch.micro_batches() == 12);
  CHECK(batch.micro_steps(1) == 12);
  CHECK(batch.micro_steps(5) == 3);
  CHECK(batch.contributors(5, 0) == 5);
  CHECK(batch.contributors(5, 2) == 2);
  CHECK(batch.micro_steps(100) == 1);
  CHECK(batch.contributors(100, 0) == 12);
  CHECK_THROWS_AS((Batch{.global = 5, .micro = 2}.validate()), InputError);
  CHECK_THROWS_AS((Batch{.global = 0, .micro = 1}.validate()), InputError);
  CHECK_THROWS_AS((Batch{.global = 1, .micro = 0}.validate()), InputError);
}

}  // namespace
}  // namespace tessera::optim
