// One run, one string of bits: whatever the number of ranks, the stage, the bucket size and the
// overlap, every loss, gradient norm and final weight equals that of one rank alone, computed in
// the same process.
#include "tests/support/catch.h"
#include "tests/support/reordered_communicator.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

struct Variant {
  int stage;
  int64_t bucket_bytes;
  bool overlap;
};

constexpr int64_t below_one_parameter = 64;
constexpr int64_t several = 6000;
constexpr int64_t whole_model = int64_t{1} << 24;

optim::ZeroOptions options_of(const Variant& variant) {
  return {.stage = variant.stage,
          .bucket_bytes = variant.bucket_bytes,
          .overlap = variant.overlap,
          .clip = 0.5f,
          .seed = 3};
}

const TinyResult& reference() {
  static const TinyResult result =
      train_tiny({}, lone_world(), options_of({0, whole_model, false}));
  return result;
}

void check_equal(const TinyResult& result) {
  CHECK(result.losses == reference().losses);
  CHECK(result.grad_norms == reference().grad_norms);
  CHECK(result.weights == reference().weights);
}

void check_variant(const Variant& variant) {
  CAPTURE(variant.stage, variant.bucket_bytes, variant.overlap);
  check_equal(train_tiny({}, job_world(), options_of(variant)));
}

TEST_CASE("the reference run learns, clips, and moves every weight") {
  CHECK(reference().losses.back() < reference().losses.front());
  CHECK(reference().grad_norms.front() > 0.5f);
  models::Gpt fresh(TinyRun{}.model);
  nn::materialize(fresh, {}, 3);
  for (const auto& [name, values] : weights_of(fresh)) {
    CAPTURE(name);
    CHECK(values != reference().weights.at(name));
  }
}

TEST_CASE("equal bits over ranks, stages, buckets and overlap") {
  // Every pair of values of two factors occurs.
  const Variant variants[] = {{0, below_one_parameter, true}, {0, several, false},
                              {0, whole_model, true},         {1, below_one_parameter, false},
                              {1, several, true},             {1, whole_model, false},
                              {2, below_one_parameter, true}, {2, several, true},
                              {2, whole_model, true},         {2, several, false}};
  for (const Variant& variant : variants) check_variant(variant);
}

TEST_CASE("equal bits, every combination", "[full]") {
  for (const int stage : {0, 1, 2}) {
    for (const int64_t bucket : {below_one_parameter, int64_t{2000}, several, whole_model}) {
      for (const bool overlap : {true, false}) check_variant({stage, bucket, overlap});
    }
  }
}

TEST_CASE("equal bits where some ranks have no micro-batch at all") {
  TinyRun run{.steps = 3, .batch = {.global = 4, .micro = 2}};  // two micro-batches
  const auto options = options_of({2, several, true});
  CHECK(train_tiny(run, job_world(), options) == train_tiny(run, lone_world(), options));
}

TEST_CASE("a changed order of summation changes the bits") {
  const dist::World world = job_world();
  if (world.size == 1) return;  // nothing to reorder
  dist::World reordered = world;
  reordered.communicator = std::make_shared<ReorderedCommunicator>(world.communicator);
  const TinyResult result = train_tiny({}, reordered, options_of({2, several, true}));
  CHECK(result.weights != reference().weights);
  // The same sums all the same: only the rounding differs.
  CHECK(result.losses.back() == Catch::Approx(reference().losses.back()).epsilon(1e-3));
}

TEST_CASE("fast reduction: close to the ordered one, and the same bits from run to run") {
  for (const int stage : {0, 1, 2}) {
    auto options = options_of({stage, several, true});
    options.reduction = optim::Reduction::fast;
    const dist::World world = job_world();
    world.communicator->traffic().reset();
    const TinyResult first = train_tiny({}, world, options);
    CAPTURE(stage);
    CHECK(first.losses.back() == Catch::Approx(reference().losses.back()).epsilon(1e-3));
    CHECK(first == train_tiny({}, world, options));
    CHECK(world.communicator->traffic().calls(dist::Collective::reduce_scatter) > 0);
    CHECK(world.communicator->traffic().calls(dist::Collective::exchange) == 0);
    CHECK(world.communicator->traffic().calls(dist::Collective::all_reduce) == 0);
  }
}

TEST_CASE("no_sync: close to the reference, reduced once a step") {
  for (const int stage : {0, 1, 2}) {
    auto options = options_of({stage, whole_model, true});
    options.no_sync = true;
    const dist::World world = job_world();
    world.communicator->traffic().reset();
    TinyRun run{.steps = 4};
    const TinyResult result = train_tiny(run, world, options);
    CAPTURE(stage);
    CHECK(result.losses.back() == Catch::Approx(reference().losses[3]).epsilon(1e-3));
    const int64_t buckets = 2;  // the tied embedding's, and one for the rest
    CHECK(world.communicator->traffic().calls(dist::Collective::exchange) == buckets * run.steps);
  }
}

}  // namespace
}  // namespace tessera::test
