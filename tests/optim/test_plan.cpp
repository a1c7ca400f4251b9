// Compares the plan, mostly of fp32 parameters, with numbers that the comments derive by hand, and
// tests the plan's limits. A block is a kernel block of 256 elements, except where the text speaks
// of a model's blocks. N is the number of ranks, M the number of micro-batches of a step, k the
// number of its micro-steps.
#include "core/random.h"
#include "dist/communicator.h"
#include "models/gpt/gpt.h"
#include "optim/plan/plan.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

int64_t sent(const Plan& plan, dist::Traffic purpose) {
  return plan.traffic[static_cast<size_t>(purpose)];
}

TEST_CASE("plan: one rank sends nothing") {
  // One parameter of 300 elements takes two blocks: 512 elements, 2048 bytes. There is one bucket,
  // and the only rank's shard is the whole bucket.
  PlanInput input{.parameters = {{"w", 300}}, .ranks = 1, .stage = 0};
  const Plan plan0 = plan(input, 0);
  CHECK(plan0.parameters == 2048);
  CHECK(plan0.gradients == 2048);  // gradients are written into their sum
  CHECK(plan0.optimizer_state == 2 * 2048);
  // Communication takes two block sums of 8 bytes each, a loss of 4 bytes, a byte of notes
  // (ZeroOptimizer::set_notes), and a byte with two flags.
  CHECK(plan0.communication == 2 * 8 + 4 + 2);
  CHECK(plan0.memory() == 4 * 2048 + 22);
  CHECK(plan0.padding == 212 * 4);
  CHECK(plan0.sent() == 0);
  // At stage 3, too, the only rank's shard is the whole bucket. Parameters in use are nevertheless
  // gathered into separate memory.
  input.stage = 3;
  const Plan plan3 = plan(input, 0);
  CHECK(plan3.parameters == 2048 + 2048);
  CHECK(plan3.gradients == 2048);
  CHECK(plan3.padding == 212 * 4);
  // A second micro-batch needs a buffer for its gradients, which are then added to the sums. With
  // fast reduction, with no_sync or on a GPU, a single micro-batch needs this buffer too.
  PlanInput several = input;
  several.batch = {.global = 2, .micro = 1};
  CHECK(plan(several, 0).gradients == 2048 + 2048);
  PlanInput fast = input;
  fast.reduction = Reduction::fast;
  CHECK(plan(fast, 0).gradients == 2048 + 2048);
  PlanInput no_sync = input;
  no_sync.no_sync = true;
  CHECK(plan(no_sync, 0).gradients == 2048 + 2048);
  PlanInput gpu = input;
  gpu.device = {DeviceType::cuda, 0};
  CHECK(plan(gpu, 0).gradients == 2048 + 2048);
}

TEST_CASE("plan: two ranks, two buckets, every stage") {
  // a has 1000 elements (4 blocks), b has 200 (1 block). Buckets of 2000 bytes = 500 elements close
  // after each parameter. Bucket 0 holds b, padded to 2 blocks (512 elements); bucket 1 holds a, 4
  // blocks (1024 elements). Together 1536 elements = 6144 bytes; a shard has 256 + 512 = 768
  // elements = 3072 bytes, 3 blocks. A global batch of 8 in micro-batches of 2 gives M = 4 and k =
  // 2, so both ranks send twice. The flags of 2 micro-steps and 2 parameters take one byte.
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
  CHECK(stage0.communication == staging + 6 * 8 + 2 * 2 * 4 + 2 * 2);
  CHECK(stage0.padding == (1536 - 1200) * 4);
  // The rank sends the other rank's half of the gradients in both micro-steps, and its own half of
  // the gradient sums once.
  CHECK(sent(stage0, dist::Traffic::gradients) == 2 * 3072 + 3072);
  CHECK(sent(stage0, dist::Traffic::parameters) == 0);
  CHECK(sent(stage0, dist::Traffic::norms) == 3 * 8);
  CHECK(sent(stage0, dist::Traffic::losses) == 2 * 4);
  CHECK(sent(stage0, dist::Traffic::flags) == 2);
  CHECK(stage0.sent() == 9216 + 24 + 8 + 2 + 288);  // 288: headers of nine calls, 32 bytes each

  input.stage = 1;
  const Plan stage1 = plan(input, 1);
  CHECK(stage1.gradients == 6144 + 3072);
  CHECK(stage1.optimizer_state == 2 * 3072);
  CHECK(sent(stage1, dist::Traffic::gradients) == 2 * 3072);
  CHECK(sent(stage1, dist::Traffic::parameters) == 3072);

  input.stage = 2;
  const Plan stage2 = plan(input, 1);
  CHECK(stage2.gradients == 6144 + 3072);  // a ring of two buckets, and the shard of the sums
  CHECK(stage2.optimizer_state == 2 * 3072);
  CHECK(sent(stage2, dist::Traffic::parameters) == 3072);

  // If the model names no blocks, stage 3 gathers each bucket by itself. Both buckets have memory
  // at the same time. In a micro-step b is gathered once, because forward ends with b and backward
  // begins with b; a is gathered for forward and again for backward.
  input.stage = 3;
  const Plan stage3 = plan(input, 1);
  CHECK(stage3.parts.values == 3072);
  CHECK(stage3.parts.gathered == 6144);
  CHECK(stage3.parameters == 3072 + 6144);
  CHECK(stage3.gradients == 6144 + 3072);
  CHECK(stage3.optimizer_state == 2 * 3072);
  CHECK(sent(stage3, dist::Traffic::gradients) == 2 * 3072);
  CHECK(sent(stage3, dist::Traffic::parameters) == 2 * (1024 + 2 * 2048));
  // Rank 1 has elements 512 to 1000 of a and none of b: 488 elements, so 280 of its 768 are
  // padding. Rank 0 has 512 of a and 200 of b: 712 elements, so 56 are padding.
  CHECK(stage3.padding == 280 * 4);
  CHECK(plan(input, 0).padding == 56 * 4);
}

// Over MPI, a header of 32 bytes goes to each other rank before every call.
TEST_CASE("plan: headers take 32 bytes per call and peer") {
  // Three ranks, a bucket for each parameter; M = 4, k = 2. In each addition below, the term 3
  // stands for the calls at the end of a step: norms, losses and flags.
  PlanInput input{.parameters = {{"a", 1000}, {"b", 200}},
                  .ranks = 3,
                  .bucket_bytes = 2000,
                  .batch = {.global = 8, .micro = 2}};
  constexpr auto headers = static_cast<size_t>(dist::Traffic::headers);
  const auto calls = [&](int stage) {
    input.stage = stage;
    const Plan last = plan(input, 2);  // rank 2 sends less than rank 0, in as many calls
    CHECK(last.traffic[headers] == plan(input, 0).traffic[headers]);
    return last.traffic[headers] / (2 * 32);
  };
  const auto update_calls = [&] { return plan(input, 0).update_traffic[headers] / (2 * 32); };
  for (const int stage : {0, 1, 2}) {
    CHECK(calls(stage) == 2 * 2 + 2 + 3);  // 2 exchanges per micro-step, 2 gathers
    CHECK(update_calls() == 2);
  }
  // In a micro-step b is gathered once, because forward reads it last. a is gathered twice.
  CHECK(calls(3) == 2 * 2 + 2 * (1 + 2) + 3);
  CHECK(update_calls() == 0);
  input.no_sync = true;
  CHECK(calls(2) == 2 + 2 + 3);
  input.no_sync = false;
  input.parameters[1].trainable = false;  // b is frozen: only stage 3 gathers it
  CHECK(calls(2) == 2 + 1 + 3);
  CHECK(calls(3) == 2 + 2 * (1 + 1) + 3);
  input.statistics = 20;
  input.batch_norms = 2;
  CHECK(calls(2) == 2 + 1 + 3 + 1);
  input.sync_batch_norm = true;
  CHECK(calls(2) == 2 + 1 + 3 + 2 * 3);  // 3 calls for each of the 2 batch norms
  input.fixed_statistics = 8;            // a third norm has fixed statistics, which are not sent
  CHECK(sent(plan(input, 0), dist::Traffic::statistics) == (20 - 8) * 2 * 4 * (input.ranks - 1));
  input.header_bytes = 0;  // as over NCCL
  CHECK(calls(2) == 0);
}

TEST_CASE("plan: three ranks, a tied parameter, an uneven last micro-step") {
  // `tied` has 600 elements (3 blocks) in a bucket for itself, w has 257 (2 blocks, padded to 3).
  // Together 6 blocks = 1536 elements = 6144 bytes; a shard has 1 + 1 blocks = 512 elements = 2048
  // bytes. A global batch of 4 in micro-batches of 1 gives M = 4 and k = 2: rank 0 has
  // micro-batches 0 and 3, ranks 1 and 2 have one each.
  PlanInput input{.parameters = {{"tied", 600, true}, {"w", 257}},
                  .ranks = 3,
                  .stage = 2,
                  .batch = {.global = 4, .micro = 1}};
  const Plan rank0 = plan(input, 0);
  CHECK(rank0.parameters == 6144);
  CHECK(rank0.gradients == 3072 + 3072 + 2048);  // w's ring, the bucket of tied, the sums
  CHECK(rank0.optimizer_state == 2 * 2048);
  CHECK(rank0.communication == dist::mpi_staging_bytes(3) + 6 * 8 + 3 * 2 * 4 + 3 * 2);
  CHECK(sent(rank0, dist::Traffic::gradients) == 2 * (6144 - 2048));
  CHECK(sent(rank0, dist::Traffic::parameters) == 2 * 2048);
  CHECK(sent(rank0, dist::Traffic::norms) == 2 * 2 * 8);
  CHECK(sent(rank0, dist::Traffic::losses) == 2 * 2 * 4);
  CHECK(sent(rank0, dist::Traffic::flags) == 2 * 2);
  CHECK(sent(plan(input, 1), dist::Traffic::gradients) == 6144 - 2048);
  CHECK(sent(plan(input, 2), dist::Traffic::gradients) == 6144 - 2048);
  input.no_sync = true;
  CHECK(sent(plan(input, 0), dist::Traffic::gradients) == 6144 - 2048);
  CHECK(plan(input, 0).gradients == 3072 + 3072 + 2048 + 6144);
  CHECK(plan(input, 0).parts.local_sums == 6144);
}

TEST_CASE("plan: stage 3 gathers the blocks that the model names") {
  // The model's blocks are like GPT's: block 0 has wte (tied) and wpe, blocks 1 to 3 have h0 to h2,
  // and block 3 also has ln_f. N = 2. In kernel blocks (kb) of 256 elements:
  //   block 3: ln_f 10 -> 1 kb, h2 300 -> 2 kb, padded to 4 kb: 1024 elements
  //   block 2: h1 300 -> 2 kb: 512             block 1: h0 500 -> 2 kb: 512
  //   block 0: wpe 100 -> 1 kb, padded to 2 kb: 512;  wte 600 -> 3 kb, padded to 4 kb: 1024
  // Together 3584 elements, a shard of 1792. Block 0 has the tied parameter and stays gathered:
  // 1536 elements. At most two other blocks are gathered at the same time: blocks 3 and 2, 1536
  // elements. In a micro-step blocks 3 and 0 are gathered once, blocks 2 and 1 twice. Each time the
  // rank sends its shard of the block: 512 + 2 x 256 + 2 x 256 + (256 + 512) = 2304 elements.
  PlanInput input{.parameters = {{"wte", 600, true, 0}, {"wpe", 100, false, 0},
                                 {"h0", 500, false, 1}, {"h1", 300, false, 2},
                                 {"h2", 300, false, 3}, {"ln_f", 10, false, 3}},
                  .ranks = 2,
                  .stage = 3,
                  .batch = {.global = 6, .micro = 1}};
  const Plan stage3 = plan(input, 0);
  CHECK(stage3.parts.values == 1792 * 4);
  CHECK(stage3.parts.gathered == (1536 + 1536) * 4);
  input.overlap = false;  // the next block of the model is not gathered ahead
  CHECK(plan(input, 0).parts.gathered == (1536 + 1024) * 4);
  input.overlap = true;
  CHECK(sent(stage3, dist::Traffic::parameters) == 3 * 2304 * 4);
  CHECK(stage3.parts.buckets == (1536 + 1024) * 4);  // gradients of blocks 3 and 2, and of wte
  // Stages 0 to 2 ignore the model's blocks: one bucket has wpe to ln_f, 1 + 2 + 2 + 2 + 1 = 8
  // kernel blocks; the other bucket has wte, 4 kernel blocks with padding.
  input.stage = 2;
  CHECK(plan(input, 0).parameters == 12 * 1024);
}

TEST_CASE("plan: frozen parameters have only values, and are only gathered") {
  // a is frozen: 1000 elements take 4 blocks, 1024 elements. b takes 1 block, padded to 2: 512
  // elements.
  PlanInput input{.parameters = {{"a", 1000}, {"b", 200}},
                  .ranks = 2,
                  .stage = 2,
                  .batch = {.global = 2, .micro = 1}};
  input.parameters[0].trainable = false;
  const Plan stage2 = plan(input, 0);
  CHECK(stage2.parameters == (1024 + 512) * 4);
  CHECK(stage2.gradients == (512 + 256) * 4);
  CHECK(stage2.optimizer_state == 2 * 256 * 4);
  CHECK(stage2.communication == dist::mpi_staging_bytes(2) + 2 * 8 + 2 * 4 + 2 * 2);
  CHECK(sent(stage2, dist::Traffic::gradients) == 256 * 4);
  CHECK(sent(stage2, dist::Traffic::parameters) == 256 * 4);
  input.stage = 3;
  const Plan stage3 = plan(input, 0);
  CHECK(stage3.parts.values == (512 + 256) * 4);
  CHECK(stage3.parts.gathered == (1024 + 512) * 4);
  CHECK(sent(stage3, dist::Traffic::parameters) == (512 + 256) * 4);
}

TEST_CASE("plan: stage 3 gathers a frozen block twice only where backward reads it") {
  // Three blocks of the model with 512 elements each; k = 1. A gather sends a shard of 256 elements
  // = 1024 bytes. The terms in parentheses count the gathers of w0, w1 and w2.
  PlanInput input{.parameters = {{"w0", 512, false, 0}, {"w1", 512, false, 1},
                                 {"w2", 512, false, 2}},
                  .ranks = 2,
                  .stage = 3,
                  .batch = {.global = 2, .micro = 1}};
  const auto freeze = [&](std::vector<bool> frozen) {
    for (size_t i = 0; i < frozen.size(); ++i) input.parameters[i].trainable = !frozen[i];
    return sent(plan(input, 0), dist::Traffic::parameters);
  };
  // The frozen w1 and w2 form one group of parameters, the trainable w0 another. The last block of
  // each group, w2 and w0, is still gathered when backward begins. Backward reads w1 to compute the
  // gradient of w0, so w1 is gathered again.
  CHECK(freeze({false, true, true}) == (1 + 2 + 1) * 1024);
  // w0 and w1 are frozen. Backward ends at w2, so neither is gathered again.
  CHECK(freeze({true, true, false}) == (1 + 1 + 1) * 1024);
  CHECK(freeze({true, true, true}) == (1 + 1 + 1) * 1024);
  CHECK(freeze({false, false, false}) == (2 + 2 + 1) * 1024);
}

TEST_CASE("plan: fast reduction scatters the largest shard") {
  PlanInput input{.parameters = {{"a", 1000, true}, {"b", 200}}, .ranks = 2, .stage = 1};
  const int64_t ordered = plan(input, 0).communication;
  input.reduction = Reduction::fast;
  CHECK(plan(input, 0).communication == ordered + 512 * 4);
}

TEST_CASE("plan: the staging of a transport can be given") {
  PlanInput input{.parameters = {{"a", 256}}, .ranks = 2};
  CHECK(plan(input, 0).parts.staging == dist::mpi_staging_bytes(2));
  input.staging_bytes = 5;
  CHECK(plan(input, 0).parts.staging == 5);
  CHECK(plan(input, 0).communication == 5 + 2 * 8 + 2 * 4 + 2 * 2);
}

TEST_CASE("plan: ranks that save exchange texts, for which a save frees its bucket") {
  // While the ranks save, they exchange texts, such as error messages, in pieces. For each rank,
  // the buffer for texts holds a piece of the rank's text and 8 bytes for the text's length. With N
  // ranks, a piece has 1 MiB / N, but at least 4 KiB and at most 64 KiB. The parameter has 157
  // blocks, padded to 158: 40,448 elements.
  PlanInput input{.parameters = {{"w", 40'000}}, .ranks = 2, .stage = 2};
  const int64_t without = plan(input, 0).communication;
  input.checkpoints = true;
  CHECK(plan(input, 0).communication == without + 2 * (65'536 + 8));
  // Bucket and texts are never in memory together, so only the larger is planned. At first this is
  // the bucket, which is in f32. With a smaller parameter it is the texts.
  input.saves = true;
  CHECK(plan(input, 0).communication == without + 40'448 * 4);
  input.parameters[0].elements = 512;
  CHECK(plan(input, 0).communication == without - 156 * 8 + 2 * (65'536 + 8));
  input.ranks = 64;
  CHECK(plan(input, 0).parts.texts == 64 * (16'384 + 8));
  input.ranks = 1000;
  CHECK(plan(input, 0).parts.texts == 1000 * (4096 + 8));
  // On a GPU the texts are on the host, so the device has the bucket alone.
  input.ranks = 2;
  input.device = {DeviceType::cuda, 0};
  const Plan saves = plan(input, 0);
  input.saves = input.checkpoints = false;
  const Plan neither = plan(input, 0);
  CHECK(saves.communication == neither.communication + 512 * 4);
  CHECK(saves.host.communication == neither.host.communication + 2 * (65'536 + 8));
}

TEST_CASE("plan: a million ranks, trillions of parameters") {
  // 10^12 elements are 3,906,250,000 blocks. Each of 10^6 ranks holds 3,907 of them (3,906.25
  // rounded up), 1,000,192 elements. There are ten such parameters, each a bucket and a block of
  // the model.
  PlanInput input{.ranks = 1'000'000, .stage = 3, .batch = {.global = 1 << 20, .micro = 1}};
  for (int64_t i = 0; i < 10; ++i) {
    input.parameters.push_back({"w", 1'000'000'000'000, false, i, DType::bf16});
  }
  const Plan last = plan(input, 999'999);
  constexpr int64_t shard = 10'001'920;
  CHECK(last.parts.values == 2 * shard);
  CHECK(last.parts.gathered == 2 * 2 * 1'000'192'000'000);
  CHECK(last.parts.masters == 4 * shard);
  CHECK(last.parts.state == 8 * shard);
  CHECK(last.parts.norms == 8 * 39'070'000'000);
  CHECK(last.parts.flags == 1'000'000 * 3);  // per rank: notes, and 2 + 10 flags in 2 bytes
  CHECK(sent(last, dist::Traffic::norms) == 999'999 * 8 * int64_t{39'070});
  // Rank 999,999 has a micro-batch only in the first micro-step, so it sends gradients once. In
  // each of the two micro-steps nine buckets are gathered twice and one is gathered once.
  CHECK(sent(last, dist::Traffic::gradients) == 2 * 999'999 * shard);
  CHECK(sent(last, dist::Traffic::parameters) == 2 * 2 * 999'999 * int64_t{1'000'192} * 19);
}

TEST_CASE("plan: what does not fit int64 is refused") {
  PlanInput input{.parameters = {{"w", int64_t{1} << 61}}, .stage = 0};
  CHECK_THROWS_WITH(plan(input, 0), Catch::Matchers::ContainsSubstring("beyond 2^63"));
  input = {.parameters = {{"w", int64_t{1} << 45}}, .ranks = 2, .stage = 2,
           .batch = {.global = 1 << 30, .micro = 1}};
  CHECK_THROWS_WITH(plan(input, 0), Catch::Matchers::ContainsSubstring("beyond 2^63"));
}

TEST_CASE("plan: invalid inputs are refused") {
  CHECK_THROWS_AS(plan({.stage = 4}, 0), Error);
  CHECK_THROWS_AS(plan({.stage = -1}, 0), Error);
  CHECK_THROWS_AS(plan({.ranks = 2}, 2), Error);
  CHECK_THROWS_AS(plan({.ranks = 0}, 0), Error);
  CHECK_THROWS_AS(plan({.bucket_bytes = 0}, 0), Error);
  CHECK_THROWS_AS(plan({.statistics = -5}, 0), Error);
  CHECK_THROWS_AS(plan({.statistics = 4, .fixed_statistics = 5}, 0), Error);
  CHECK_THROWS_AS(plan({.batch = {.global = 3, .micro = 2}}, 0), InputError);
  CHECK_THROWS_AS(plan({.sum_dtype = DType::f16}, 0), Error);
  CHECK_THROWS_AS(plan({.graph = true}, 0), InputError);
  PlanInput input{.parameters = {{"w", 1}}};
  input.parameters[0].dtype = DType::i32;
  CHECK_THROWS_AS(plan(input, 0), Error);
}

TEST_CASE("plan: a model's parameters, with blocks, dtypes and what is frozen") {
  models::Gpt model({.layers = 2, .heads = 1, .width = 4, .context = 8, .vocab = 16});
  model.to(DType::bf16);
  model.named_parameters()[1].parameter.set_trainable(false);
  const std::vector<PlanParameter> list = plan_parameters(model);
  REQUIRE(list.size() == 2 + 2 * 12 + 2);
  CHECK(list[0].name == "wte.weight");
  CHECK(list[0].elements == 64);
  CHECK(list[0].shared);
  CHECK(list[0].block == 0);
  CHECK(list[0].trainable);
  CHECK(list[1].name == "wpe.weight");
  CHECK_FALSE(list[1].trainable);
  CHECK_FALSE(list[1].shared);
  CHECK(list[2].block == 1);
  CHECK(list.back().name == "ln_f.bias");
  CHECK(list.back().block == 2);
  for (const PlanParameter& parameter : list) CHECK(parameter.dtype == DType::bf16);
}

TEST_CASE("plan: stage 2 holds no more gradients than stage 0, even with huge parameters") {
  const auto gradients = [](PlanInput input, int stage) {
    input.stage = stage;
    return plan(input, 0).gradients;
  };
  // A table of 10^6 x 64 elements, 256 MB in f32, and a parameter `head` of 512 elements. The ring
  // of stage 2 has room for two neighbouring buckets, here the table and `head`. So at stage 2, as
  // at stage 0, a rank holds all gradients, and its half of the sums.
  const PlanInput table{.parameters = {{"table", 64'000'000}, {"head", 512}}, .ranks = 2};
  CHECK(gradients(table, 0) == 256'002'048 + 128'001'024);
  CHECK(gradients(table, 2) == 256'002'048 + 128'001'024);
  // With ten parameters like `head`, the ring of stage 3 still holds only the table and one of the
  // ten. Stage 0 holds all ten.
  PlanInput more = table;
  for (int i = 0; i < 9; ++i) {
    more.parameters.push_back({"head" + std::to_string(i), 512, false, i});
  }
  CHECK(gradients(more, 3) == 256'002'048 + 128'000'000 + 10 * 1024);
  CHECK(gradients(more, 0) == 256'000'000 + 128'000'000 + 10 * (2048 + 1024));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed, "sizes", 0);
    PlanInput input{.parameters = {}, .ranks = 1 + static_cast<int64_t>(random.below(5))};
    const auto count = 1 + random.below(8);
    for (uint64_t i = 0; i < count; ++i) {
      const auto elements = static_cast<int64_t>(random.below(random.below(2) == 0 ? 300 : 20'000));
      input.parameters.push_back({std::to_string(i), elements, random.below(6) == 0});
    }
    input.bucket_bytes = static_cast<int64_t>(1 + random.below(30'000));
    CAPTURE(seed);
    CHECK(gradients(input, 2) <= gradients(input, 0));
  }
}

}  // namespace
}  // namespace tessera::optim
