// Compares the plan of 16-bit parameters with numbers derived by hand, and with the formulas of the
// ZeRO paper. N is the number of ranks.
#include "dist/communicator.h"
#include "dist/shard_layout.h"
#include "optim/plan/plan.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

int64_t sent(const Plan& plan, dist::Traffic purpose) {
  return plan.traffic[static_cast<size_t>(purpose)];
}

// Returns the bytes that a step with an overflow does not send.
int64_t skipped(const Plan& plan, dist::Traffic purpose) {
  return plan.update_traffic[static_cast<size_t>(purpose)];
}

// `a` has 1000 elements (4 blocks of 256), `b` has 200 (1 block). 1024 bytes hold only 512 elements
// of 16 bits, so each parameter has its own bucket. That of `a` has 4 blocks = 1024 elements. That
// of `b` is padded to a block per rank, 512 elements. Together the buckets have 1536 elements,
// and a rank's shards have 768. Each rank has 2 of the step's 4 micro-batches, so it sends
// gradients twice per step.
PlanInput two_ranks(DType dtype, int stage) {
  return {.parameters = {{"a", 1000, false, -1, dtype}, {"b", 200, false, -1, dtype}},
          .ranks = 2,
          .stage = stage,
          .bucket_bytes = 1024,
          .batch = {.global = 8, .micro = 2}};
}

TEST_CASE("plan: bf16 and fp16 with sums in f32, every stage") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(dtype_name(dtype));
    const Plan stage0 = plan(two_ranks(dtype, 0), 0);
    CHECK(stage0.parameters == 1536 * 2);
    CHECK(stage0.parts.buckets == 1536 * 2);
    CHECK(stage0.parts.accumulators == 768 * 4);
    CHECK(stage0.parts.gathered_sums == 2 * 1024 * 4);  // two buffers of the largest bucket's size
    CHECK(stage0.gradients == 3072 + 3072 + 8192);
    CHECK(stage0.parts.masters == 1536 * 4);
    CHECK(stage0.optimizer_state == (1 + 2) * 1536 * 4);
    CHECK(sent(stage0, dist::Traffic::gradients) == 2 * 768 * 2 + 768 * 4);
    CHECK(skipped(stage0, dist::Traffic::gradients) == 768 * 4);  // skipped: the gather of sums
    CHECK(sent(stage0, dist::Traffic::norms) == 3 * 8);
    CHECK(stage0.padding == (1536 - 1200) * 2);

    const Plan stage1 = plan(two_ranks(dtype, 1), 0);
    CHECK(stage1.parameters == 1536 * 2);
    CHECK(stage1.gradients == 1536 * 2 + 768 * 4);
    CHECK(stage1.optimizer_state == (1 + 2) * 768 * 4);
    CHECK(sent(stage1, dist::Traffic::gradients) == 2 * 768 * 2);
    CHECK(sent(stage1, dist::Traffic::parameters) == 768 * 2);
    CHECK(skipped(stage1, dist::Traffic::gradients) == 0);
    CHECK(skipped(stage1, dist::Traffic::parameters) == 768 * 2);

    const Plan stage2 = plan(two_ranks(dtype, 2), 0);
    CHECK(stage2.gradients == 1536 * 2 + 768 * 4);
    CHECK(stage2.optimizer_state == stage1.optimizer_state);
    CHECK(stage2.traffic == stage1.traffic);

    // In a micro-step a rank sends its 512 elements of `a` twice: for forward and for backward. It
    // sends its 256 of `b` once: `b` is still gathered when backward begins.
    const Plan stage3 = plan(two_ranks(dtype, 3), 0);
    CHECK(stage3.parts.values == 768 * 2);
    CHECK(stage3.parts.gathered == 1536 * 2);
    CHECK(stage3.gradients == stage2.gradients);
    CHECK(stage3.optimizer_state == stage1.optimizer_state);
    CHECK(sent(stage3, dist::Traffic::parameters) == 2 * (256 + 2 * 512) * 2);
    CHECK(skipped(stage3, dist::Traffic::parameters) == 0);
  }
}

TEST_CASE("plan: bf16 with sums in bf16") {
  const auto with = [](DType dtype, int stage) {
    PlanInput input = two_ranks(dtype, stage);
    input.sum_dtype = DType::bf16;
    return plan(input, 0);
  };
  const Plan stage0 = with(DType::bf16, 0);
  CHECK(stage0.gradients == 1536 * 2 + 768 * 2);  // sums are gathered into the gradients' memory
  CHECK(sent(stage0, dist::Traffic::gradients) == 2 * 768 * 2 + 768 * 2);
  CHECK(with(DType::bf16, 1).gradients == 1536 * 2 + 768 * 2);
  CHECK(with(DType::bf16, 2).gradients == 1536 * 2 + 768 * 2);
  CHECK(with(DType::bf16, 3).gradients == 1536 * 2 + 768 * 2);
  // fp16 gradients have another dtype than bf16 sums, though the same size, so stage 0 gathers the
  // sums into two slots of their own.
  CHECK(with(DType::f16, 0).gradients == 1536 * 2 + 768 * 2 + 2 * 1024 * 2);
  // f32 parameters keep their sums in f32.
  CHECK(with(DType::f32, 2).parts.accumulators == 768 * 4);
}

TEST_CASE("plan: no_sync keeps and sends sums") {
  PlanInput input = two_ranks(DType::bf16, 2);
  input.no_sync = true;
  const Plan f32 = plan(input, 0);
  CHECK(f32.gradients == 1536 * 2 + 768 * 4 + 1536 * 4);
  CHECK(sent(f32, dist::Traffic::gradients) == 768 * 4);
  input.sum_dtype = DType::bf16;
  const Plan bf16 = plan(input, 0);
  CHECK(bf16.gradients == 1536 * 2 + 768 * 2 + 1536 * 2);
  CHECK(sent(bf16, dist::Traffic::gradients) == 768 * 2);
  input.sum_dtype = DType::f32;
  input.batch = {.global = 4, .micro = 2};  // one micro-step: nothing to sum locally
  CHECK(plan(input, 0).gradients == 1536 * 2 + 768 * 4);
  CHECK(sent(plan(input, 0), dist::Traffic::gradients) == 768 * 2);
}

TEST_CASE("plan: parameters of different dtypes have separate buckets") {
  // n0 and n1 are f32 and have 300 elements each, which take 2 blocks of 256. They share a bucket
  // of 1024 elements, with shards of 512. w0 and w1 are bf16 and have 1000 elements each, which
  // take 4 blocks of 256. They share a bucket of 2048 elements, with shards of 1024. At stage 3
  // each parameter has its own bucket, because n0 and w0 are in another part of the model than n1
  // and w1 (PlanParameter::block). The totals are the same.
  PlanInput input{.parameters = {{"n0", 300, false, 1},
                                 {"w0", 1000, false, 1, DType::bf16},
                                 {"n1", 300, false, 2},
                                 {"w1", 1000, false, 2, DType::bf16}},
                  .ranks = 2,
                  .stage = 2,
                  .batch = {.global = 2, .micro = 1}};
  const Plan stage2 = plan(input, 0);
  CHECK(stage2.parameters == 1024 * 4 + 2048 * 2);
  // The terms: gradients and sums of the f32 parameters; gradients and f32 sums of bf16 parameters.
  CHECK(stage2.gradients == (1024 + 512) * 4 + 2048 * 2 + 1024 * 4);
  CHECK(stage2.parts.masters == 1024 * 4);
  CHECK(stage2.parts.state == 2 * (512 + 1024) * 4);
  CHECK(stage2.parts.norms == (4 + 8) * 8);
  CHECK(sent(stage2, dist::Traffic::gradients) == 512 * 4 + 1024 * 2);
  input.stage = 3;
  const Plan stage3 = plan(input, 0);
  CHECK(stage3.parts.values == 512 * 4 + 1024 * 2);
  CHECK(stage3.parts.gathered == 1024 * 4 + 2048 * 2);
  CHECK(stage3.parts.buckets == 2 * 512 * 4 + 2 * 1024 * 2);
  CHECK(sent(stage3, dist::Traffic::parameters) == (256 + 2 * 256) * 4 + (512 + 2 * 512) * 2);
  // Frozen parameters keep only their values.
  input.stage = 2;
  input.parameters[0].trainable = input.parameters[2].trainable = false;
  CHECK(plan(input, 0).parameters == stage2.parameters);
  CHECK(plan(input, 0).gradients == 2048 * 2 + 1024 * 4);
  CHECK(plan(input, 0).parts.state == 2 * 1024 * 4);
}

TEST_CASE("plan: on a GPU the end of a step has its norm, scalars and their copies") {
  PlanInput input = two_ranks(DType::bf16, 2);
  const Plan host = plan(input, 0);
  input.device = {DeviceType::cuda, 0};
  const Plan device = plan(input, 0);
  // On a GPU the norms also take 32 bytes (BlockSums::Segment) for each of the two parameters, and
  // 8 bytes for a partial sum. The scalars take 32 bytes. The flags are on the host, and so are
  // copies of the scalars of two steps.
  CHECK(device.parts.norms == host.parts.norms + 2 * 32 + 8);
  CHECK(device.communication == host.communication + 2 * 32 + 8 + 32 - host.parts.flags);
  CHECK(device.host.communication == host.parts.flags + 2 * 32);
  CHECK(device.traffic == host.traffic);
}

TEST_CASE("plan: graphs have memory for their loss; one graph per kind of micro-step") {
  PlanInput input = two_ranks(DType::bf16, 1);
  input.device = {DeviceType::cuda, 0};
  const Plan without = plan(input, 0);
  input.graph = true;
  CHECK(plan(input, 0).memory() == without.memory() + 4);
  CHECK(plan(input, 0).traffic == without.traffic);

  // A rank captures one graph for each of these:
  //   the first micro-step of a step;
  //   all micro-steps after it;
  //   the last micro-step, if fewer ranks contribute to it.
  CHECK(graph_count({.global = 6, .micro = 1}, 2, 10) == 2);
  CHECK(graph_count({.global = 5, .micro = 1}, 2, 10) == 3);
  CHECK(graph_count({.global = 2, .micro = 1}, 2, 10) == 1);
  // With no_sync (the last argument), only the last micro-step sends gradients. So it has a graph
  // of its own.
  CHECK(graph_count({.global = 6, .micro = 1}, 2, 10, true) == 3);
  CHECK(graph_count({.global = 4, .micro = 1}, 2, 10, true) == 2);
  // The run's first micro-step runs without a graph.
  CHECK(graph_count({.global = 2, .micro = 1}, 2, 1) == 0);
  CHECK(graph_count({.global = 6, .micro = 1}, 2, 1) == 1);
  CHECK(graph_count({.global = 6, .micro = 1}, 2, 0) == 0);
}

TEST_CASE("plan: initial 16-bit values take workspace on ranks that hold any") {
  // 300 elements take two blocks of 256, so only two of the 4 ranks own elements.
  PlanInput input{.parameters = {{.name = "w", .elements = 300, .dtype = DType::bf16}},
                  .ranks = 4,
                  .stage = 3,
                  .batch = {.global = 4, .micro = 1}};
  CHECK(plan(input, 0).filling == 1 << 18);
  CHECK(plan(input, 1).filling == 1 << 18);
  CHECK(plan(input, 2).filling == 0);
  CHECK(plan(input, 3).filling == 0);
  input.stage = 2;
  CHECK(plan(input, 3).filling == 1 << 18);
  input.parameters[0].dtype = DType::f32;
  CHECK(plan(input, 0).filling == 0);
  input.parameters[0].dtype = DType::f16;
  input.device = {DeviceType::cuda, 0};
  CHECK(plan(input, 0).filling == 0);
}

TEST_CASE("plan: offload moves masters and state to the host") {
  PlanInput input = two_ranks(DType::bf16, 1);
  const Plan device = plan(input, 0);
  input.offload = true;
  const Plan stage1 = plan(input, 0);
  CHECK(stage1.optimizer_state == 0);
  CHECK(stage1.host.optimizer_state == device.optimizer_state);
  // The host holds a bucket's f32 sums, which arrive from the plan's device, and its bf16 weights,
  // which go back. The shard of the largest bucket has 512 elements.
  CHECK(stage1.host.communication == 512 * (4 + 2));
  CHECK(stage1.host.memory() == 3 * 3072 + 3072);
  CHECK(stage1.memory() == device.memory() - device.optimizer_state);
  CHECK(stage1.traffic == device.traffic);
  // Stage 0 updates whole buckets, at most 1024 elements.
  input.stage = 0;
  CHECK(plan(input, 0).host.communication == 1024 * (4 + 2));
  // On a GPU, while the host updates a bucket, the sums of the next bucket arrive and the weights
  // of the previous bucket leave. So the host holds two of each.
  input.device = {DeviceType::cuda, 0};
  // The host also holds flags, two bytes per rank, and copies of two steps' scalars.
  constexpr int64_t of_steps = 2 * 2 + 2 * 32;
  CHECK(plan(input, 0).host.communication == 2 * 1024 * (4 + 2) + of_steps);
  input.bucket_bytes = int64_t{1} << 30;  // one bucket of 1536 elements: there is no next bucket
  CHECK(plan(input, 0).host.communication == 1536 * (4 + 2) + of_steps);
  // Offload needs master weights on the host even for f32 parameters, because the parameters that
  // the model uses stay on the device.
  input = two_ranks(DType::f32, 3);
  input.bucket_bytes = 2048;
  input.offload = true;
  CHECK(plan(input, 0).host.optimizer_state == 3 * 768 * 4);
  CHECK(plan(input, 0).host.communication == 512 * (4 + 4));
}

// Returns the plan's input for P = 10 * tenth parameters on N = `ranks` ranks. The size of each
// tensor is a multiple of N * 256 elements, so nothing is padded. The tied tensor has 3/10 of the
// parameters. The largest tensor has 5/10.
PlanInput paper(int64_t ranks, int stage) {
  const int64_t tenth = ranks * dist::block_elements * 7;
  return {.parameters = {{"tied", 3 * tenth, true, 0, DType::bf16},
                         {"u", tenth, false, 1, DType::bf16},
                         {"v", 5 * tenth, false, 2, DType::bf16},
                         {"w", tenth, false, 3, DType::bf16}},
          .ranks = ranks,
          .stage = stage,
          .bucket_bytes = 1,  // one bucket per tensor
          .batch = {.global = 2 * ranks, .micro = 2},
          .sum_dtype = DType::bf16};
}

// Compares with Rajbhandari et al., arXiv:1910.02054, section 3.1 and figure 1, for mixed
// precision, Adam, P parameters and N ranks: 2 P bytes of weights, 2 P of gradients, 12 P of f32
// weights and moments.
TEST_CASE("plan: the ZeRO paper's formulas, and the memory beyond them") {
  const int64_t N = GENERATE(2, 3, 8, 64);
  const int64_t P = 10 * N * dist::block_elements * 7;
  CAPTURE(N);
  // At every stage communication takes:
  //   the staging;
  //   8 bytes per block of 256;
  //   4 N bytes for losses;
  //   for each rank, a byte of notes, and a byte with 1 + 4 flags: one for the step's micro-step,
  //   and one for each parameter.
  const int64_t always = dist::mpi_staging_bytes(N) + 8 * P / 256 + 4 * N + 2 * N;
  for (int stage = 0; stage <= 3; ++stage) {
    CHECK(plan(paper(N, stage), N - 1).padding == 0);
    CHECK(plan(paper(N, stage), N - 1).communication == always);
  }
  // At stages 0 and 1 the paper counts the gradients of one micro-batch. The sum over micro-batches
  // is extra.
  const int64_t accumulator = 2 * P / N;
  CHECK(plan(paper(N, 0), 0).memory() - always - accumulator == 16 * P);
  CHECK(plan(paper(N, 1), 0).memory() - always - accumulator == 4 * P + 12 * P / N);
  // At stages 2 and 3 the paper's shard of gradients is the sum over micro-batches. The memory of
  // the buckets in flight is extra. It holds the tied bucket, and the largest two neighbouring
  // buckets of the others: v (5/10 of P) and u or w (1/10 each).
  const int64_t ring = 2 * (6 * P / 10 + 3 * P / 10);
  CHECK(plan(paper(N, 2), 0).memory() - always - ring == 2 * P + 14 * P / N);
  // At stage 3 the gathered parameters are extra, too. At most, they are again the tied tensor, v,
  // and u or w.
  const int64_t gathered = 2 * (3 * P / 10 + 6 * P / 10);
  CHECK(plan(paper(N, 3), 0).memory() - always - ring - gathered == 16 * P / N);

  // Sums in f32 take 2 P / N bytes more than sums in bf16, at every stage. At stage 0 the f32 sums
  // are also gathered into two slots.
  for (int stage = 0; stage <= 3; ++stage) {
    PlanInput input = paper(N, stage);
    const int64_t in_bf16 = plan(input, 0).memory();
    input.sum_dtype = DType::f32;
    const int64_t slots = stage == 0 ? 2 * 4 * 5 * P / 10 : 0;
    CHECK(plan(input, 0).memory() == in_bf16 + 2 * P / N + slots);
  }
}

// A single rank on the CPU writes the gradients of the only micro-batch into the memory of the
// sums. So only the parameters that stage 3 gathers come on top of the paper's bytes.
TEST_CASE("plan: a single rank has the ZeRO paper's bytes") {
  const int64_t P = 10 * dist::block_elements * 7;
  const int64_t gathered = 2 * (3 * P / 10 + 6 * P / 10);
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Plan one = plan(paper(1, stage), 0);
    const int64_t on_top = stage == 3 ? gathered : 0;
    CHECK(one.memory() - one.communication == 16 * P + on_top);
  }
}

// W stands for (N-1)/N times the bytes of the weights. With one reduction per step, the paper's
// traffic is 2 W at stages 0 to 2 and 3 W at stage 3. Tessera's stage 3 gathers u and v (6/10 of
// the weights) twice: for forward and for backward. It gathers the tied tensor and w (4/10) once:
// the tied tensor stays gathered, and w is the block where forward ends and backward begins. So its
// gathers send (2 x 6 + 4)/10 W. The paper's gathers send 2 W.
TEST_CASE("plan: the ZeRO paper's traffic") {
  const int64_t N = GENERATE(1, 2, 3, 8, 64);
  const int64_t weights = 2 * 10 * N * dist::block_elements * 7;
  const auto payload = [&](int stage) {
    const Plan p = plan(paper(N, stage), 0);
    return sent(p, dist::Traffic::gradients) + sent(p, dist::Traffic::parameters);
  };
  const int64_t once = weights / N * (N - 1);
  CHECK(payload(0) == 2 * once);
  CHECK(payload(1) == 2 * once);
  CHECK(payload(2) == 2 * once);
  CHECK(payload(3) == once + once / 10 * (2 * 6 + 4));
}

}  // namespace
}  // namespace tessera::optim
