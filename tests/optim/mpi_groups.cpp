// Tests training in groups of ranks. An optimizer knows only the ranks of the group that it is
// given, so independent runs can share a job. Each run must give the same bits as a run with the
// same seed on one rank.
#include "dist/mesh.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

constexpr TinyRun run{.steps = 4, .batch = {.global = 14, .micro = 2}};

optim::ZeroOptions options_of(int stage, uint64_t seed) {
  return {.stage = stage, .bucket_bytes = 6000, .clip = 0.5f, .seed = seed};
}

void check_run(const dist::World& group, uint64_t seed) {
  const TrainingResult expected = train_tiny(run, lone_world(), options_of(0, seed));
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage, seed, group.size);
    CHECK(train_tiny(run, group, options_of(stage, seed)) == expected);
  }
}

TEST_CASE("two runs in the two halves of a job, which may differ in size: each has its own bits") {
  const dist::World job = job_world();
  const bool first = job.rank < (job.size + 1) / 2;
  const dist::World half = dist::world_of_group(
      job, job.communicator->split(first ? 0 : 1, job.rank, first ? "first" : "second"));
  check_run(half, first ? 3 : 4);
  job.communicator->barrier();
}

TEST_CASE("two runs over interleaved ranks of a mesh: each has its own bits and traffic") {
  const dist::World job = job_world();
  if (job.size % 2 != 0) return;
  const dist::Mesh mesh(job, {{"data", job.size / 2}, {"run", 2}});
  const int64_t before = job.communicator->traffic().bytes_sent();
  const dist::World& data = mesh.group("data");
  check_run(data, 3 + static_cast<uint64_t>(mesh.coordinate("run")));
  CHECK(job.communicator->traffic().bytes_sent() == before);
  const int64_t gradients = data.communicator->traffic().bytes_sent(dist::Traffic::gradients);
  CHECK((gradients > 0) == (data.size > 1));
  job.communicator->barrier();
}

}  // namespace
}  // namespace tessera::test
