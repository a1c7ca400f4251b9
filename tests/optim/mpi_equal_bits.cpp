// Tests that every loss, gradient norm and final weight has the same bits as in a run of one rank
// in the same precision. This must hold for any number of ranks and any bucket size, at every
// stage, with and without recompute and overlap. The run of one rank is computed in the same
// process. With fast reduction or no_sync, losses and norms must only be close to those of one
// rank.
#include "tests/support/catch.h"
#include "tests/support/reordered_communicator.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

constexpr int64_t below_one_parameter = 64;
constexpr int64_t several = 6000;
constexpr int64_t whole_model = int64_t{1} << 24;

struct Variant {
  DType dtype = DType::f32;
  int stage = 2;
  int64_t bucket_bytes = several;
  bool recompute = false;
  bool overlap = true;
  DType grad_shard = DType::f32;
};

optim::ZeroOptions options_of(const Variant& variant) {
  return {.stage = variant.stage,
          .bucket_bytes = variant.bucket_bytes,
          .overlap = variant.overlap,
          .clip = 0.5f,
          .seed = 3,
          .grad_shard = variant.grad_shard};
}

// Up to 5 ranks share 7 micro-batches. With more than one rank, some ranks have none in the last
// micro-step.
TinyRun run_of(const Variant& variant) {
  TinyRun run{.steps = variant.dtype == DType::f32 ? 6 : 4, .batch = {.global = 14, .micro = 2}};
  run.model.recompute = variant.recompute;
  run.dtype = variant.dtype;
  return run;
}

const TrainingResult& reference(DType dtype = DType::f32, DType grad_shard = DType::f32) {
  static std::map<std::pair<DType, DType>, TrainingResult> results;
  const auto [entry, is_new] = results.try_emplace({dtype, grad_shard});
  if (is_new) {
    const Variant variant{dtype, 0, whole_model, false, false, grad_shard};
    entry->second = train_tiny(run_of(variant), lone_world(), options_of(variant));
  }
  return entry->second;
}

void check_variant(const Variant& variant) {
  CAPTURE(dtype_name(variant.dtype), variant.stage, variant.bucket_bytes, variant.recompute,
          variant.overlap);
  const TrainingResult result = train_tiny(run_of(variant), job_world(), options_of(variant));
  const TrainingResult& expected = reference(variant.dtype, variant.grad_shard);
  CHECK(result.losses == expected.losses);
  CHECK(result.grad_norms == expected.grad_norms);
  CHECK(result.loss_scales == expected.loss_scales);
  CHECK(result.weights == expected.weights);
}

// With one micro-batch per step, a single rank on the CPU writes gradients directly into the
// gradient sums. With no_sync, gradients have memory of their own.
TEST_CASE("a single rank has the same bits if gradients are written into their sums") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      const Variant variant{.dtype = dtype, .stage = stage, .grad_shard = dtype};
      TinyRun run = run_of(variant);
      run.batch = {.global = 2, .micro = 2};
      optim::ZeroOptions options = options_of(variant);
      const TrainingResult in_sums = train_tiny(run, lone_world(), options);
      options.no_sync = true;
      const TrainingResult apart = train_tiny(run, lone_world(), options);
      CHECK(in_sums.losses == apart.losses);
      CHECK(in_sums.grad_norms == apart.grad_norms);
      CHECK(in_sums.weights == apart.weights);
    }
  }
}

TEST_CASE("the reference runs learn, clip, and move every weight") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(dtype_name(dtype));
    const TrainingResult& result = reference(dtype);
    CHECK(result.losses.back() < result.losses.front());
    CHECK(result.grad_norms.front() > 0.5f);
    models::Gpt fresh(TinyRun{}.model);
    nn::materialize(fresh, {}, 3);
    for (const auto& [name, values] : weights_of(fresh)) {
      CAPTURE(name);
      CHECK(values != result.weights.at(name));
    }
  }
}

TEST_CASE("runs in different precisions differ, but are close to each other") {
  const TrainingResult& f32 = reference();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(dtype_name(dtype));
    const TrainingResult& result = reference(dtype);
    CHECK(result.weights != f32.weights);
    for (size_t i = 0; i < result.losses.size(); ++i) {
      CHECK(result.losses[i] == Catch::Approx(f32.losses[i]).epsilon(0.02));
    }
  }
  CHECK(reference(DType::bf16, DType::bf16).weights != reference(DType::bf16).weights);
}

// Pairwise testing: any two values of different factors occur together in at least one variant.
constexpr Variant pairs_of_factors[] = {
    {DType::f32, 0, below_one_parameter, false, false},
    {DType::f32, 1, several, true, false},
    {DType::f32, 2, whole_model, false, true},
    {DType::f32, 3, below_one_parameter, true, true},
    {DType::bf16, 0, several, true, false},
    {DType::bf16, 1, whole_model, true, true},
    {DType::bf16, 2, below_one_parameter, true, false},
    {DType::bf16, 3, several, false, true},
    {DType::f16, 0, whole_model, false, true},
    {DType::f16, 1, below_one_parameter, false, false},
    {DType::f16, 2, several, false, false},
    {DType::f16, 3, whole_model, true, false},
};

TEST_CASE("equal bits over ranks in f32, stages, buckets, recompute and overlap", "[f32]") {
  for (const Variant& variant : pairs_of_factors) {
    if (variant.dtype == DType::f32) check_variant(variant);
  }
  check_variant({DType::f32, 2, several, false, true});
}

TEST_CASE("equal bits over ranks in 16 bits, stages, buckets, recompute and overlap") {
  for (const Variant& variant : pairs_of_factors) {
    if (variant.dtype != DType::f32) check_variant(variant);
  }
}

TEST_CASE("equal bits where gradient sums are rounded to bf16 after every micro-batch") {
  for (const int stage : {0, 1, 2, 3}) {
    check_variant({DType::bf16, stage, several, false, true, DType::bf16});
  }
}

TEST_CASE("equal bits, every combination", "[full]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int64_t bucket : {below_one_parameter, several, whole_model}) {
        for (const bool recompute : {false, true}) {
          for (const bool overlap : {true, false}) {
            check_variant({dtype, stage, bucket, recompute, overlap});
          }
        }
      }
    }
  }
}

TEST_CASE("equal bits where some ranks have no micro-batch at all") {
  TinyRun run{.steps = 3, .batch = {.global = 4, .micro = 2}};  // two micro-batches
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto options = options_of({.stage = stage});
    CHECK(train_tiny(run, job_world(), options) == train_tiny(run, lone_world(), options));
  }
}

TEST_CASE("a changed order of summation changes the bits") {
  const dist::World world = job_world();
  if (world.size == 1) return;  // nothing to reorder
  dist::World reordered = world;
  reordered.communicator = std::make_shared<ReorderedCommunicator>(world.communicator);
  const TrainingResult result = train_tiny(run_of({}), reordered, options_of({}));
  CHECK(result.weights != reference().weights);
  // Both runs add the same terms, so their losses differ only by rounding.
  CHECK(result.losses.back() == Catch::Approx(reference().losses.back()).epsilon(1e-3));
}

// Generates dtypes of parameters and of gradient sums.
std::pair<DType, DType> generated_dtypes() {
  return GENERATE(std::pair(DType::f32, DType::f32), std::pair(DType::bf16, DType::f32),
                  std::pair(DType::bf16, DType::bf16));
}

// Compares a run's last loss and its first gradient norm with those of the same steps of the
// reference. The norm shows whether micro-batches are missing from the gradient sums. The losses
// hardly show this, because Adam's updates hardly depend on the magnitude of the gradients.
void check_close(const TrainingResult& result, const Variant& variant) {
  const TrainingResult& expected = reference(variant.dtype, variant.grad_shard);
  // The run may have added gradients in another order than the reference run, so rounding may
  // differ. bf16 sums get a larger tolerance, because they are rounded more coarsely than f32 sums.
  const double tolerance = variant.grad_shard == DType::f32 ? 1e-3 : 1e-2;
  const float loss = expected.losses.at(result.losses.size() - 1);
  CHECK(result.losses.back() == Catch::Approx(loss).epsilon(tolerance));
  CHECK(result.grad_norms[0] == Catch::Approx(expected.grad_norms[0]).epsilon(0.03));
}

TEST_CASE("fast reduction: close to the ordered one, and the same bits from run to run") {
  const auto [dtype, sums] = generated_dtypes();
  for (const int stage : {0, 1, 2, 3}) {
    const Variant variant{.dtype = dtype, .stage = stage, .grad_shard = sums};
    auto options = options_of(variant);
    options.reduction = optim::Reduction::fast;
    const dist::World world = job_world();
    world.communicator->traffic().reset();
    const TrainingResult first = train_tiny(run_of(variant), world, options);
    CAPTURE(dtype_name(dtype), dtype_name(sums), stage);
    check_close(first, variant);
    CHECK(first == train_tiny(run_of(variant), world, options));
    CHECK(world.communicator->traffic().calls(dist::Collective::reduce_scatter) > 0);
    CHECK(world.communicator->traffic().calls(dist::Collective::exchange) == 0);
    CHECK(world.communicator->traffic().calls(dist::Collective::all_reduce) == 0);
  }
}

TEST_CASE("no_sync: close to the reference, reduced once a step") {
  const auto [dtype, sums] = generated_dtypes();
  for (const int stage : {0, 1, 2, 3}) {
    const Variant variant{
        .dtype = dtype, .stage = stage, .bucket_bytes = whole_model, .grad_shard = sums};
    auto options = options_of(variant);
    options.no_sync = true;
    const dist::World world = job_world();
    world.communicator->traffic().reset();
    TinyRun run = run_of(variant);
    run.steps = 4;
    const TrainingResult result = train_tiny(run, world, options);
    CAPTURE(dtype_name(dtype), dtype_name(sums), stage);
    check_close(result, variant);
    // Stages 0 to 2 have a bucket for the tied table and one for all other parameters. Stage 3 has
    // a bucket for the tied table, one for the position table, and one for each transformer layer.
    const int64_t buckets = stage == 3 ? 2 + run.model.layers : 2;
    CHECK(world.communicator->traffic().calls(dist::Collective::exchange) == buckets * run.steps);
  }
}

}  // namespace
}  // namespace tessera::test
