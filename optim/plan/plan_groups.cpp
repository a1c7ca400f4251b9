#include "optim/plan/plan_groups.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::optim {
namespace {

// True if backward reads values of `block`, whose buckets stage 3 gathers together. Backward ends
// at the parameter with registration index `first_trainable`. Backward reaches no untied parameter
// with a lower index, and computes no input gradient for the layer of parameter `first_trainable`.
bool read_by_backward(const PlanInput& input, const PlanGroup& group, const PlanBlock& block,
                      int64_t first_trainable) {
  const auto& buckets = group.layout.buckets();
  const dist::Bucket& last = buckets[static_cast<size_t>(block.first_bucket)];
  if (group.last_registered(last) < first_trainable) return false;
  for (int b = block.first_bucket; b < block.end_bucket; ++b) {
    for (const int p : buckets[static_cast<size_t>(b)].parameters) {
      const int64_t place = group.registered[static_cast<size_t>(p)];
      const PlanParameter& parameter = input.parameters[static_cast<size_t>(place)];
      switch (parameter.shared ? nn::BackwardReads::always : parameter.backward_reads) {
        case nn::BackwardReads::always:
          return true;
        case nn::BackwardReads::for_input_gradient:
          if (place > first_trainable) return true;
          break;
        case nn::BackwardReads::never:
          break;
      }
    }
  }
  return false;
}

std::vector<PlanBlock> blocks_of(const PlanInput& input, const PlanGroup& group) {
  const auto& buckets = group.layout.buckets();
  const int64_t first_of_backward = first_trainable(input);
  std::vector<PlanBlock> blocks;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const dist::Bucket& bucket = buckets[b];
    const bool joins = b > 0 && bucket.block >= 0 && bucket.block == buckets[b - 1].block;
    if (!joins) blocks.push_back({.first_bucket = static_cast<int>(b)});
    PlanBlock& block = blocks.back();
    block.end_bucket = static_cast<int>(b) + 1;
    block.elements += bucket.elements;
    block.shard_elements += bucket.shard_elements;
    block.tied = block.tied || bucket.shared;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    // The blocks are listed from the model's end to its beginning. Forward gathers every block.
    // Backward gathers a block again, except:
    //  - blocks[0], because it is still gathered when backward begins;
    //  - tied blocks, which stay gathered;
    //  - blocks whose values backward does not read, such as frozen blocks at the model's
    //    beginning, or a block that has only an embedding table.
    blocks[i].read_by_backward = read_by_backward(input, group, blocks[i], first_of_backward);
    // If blocks[0] is the bias and blocks[1] is the weight of one layer, blocks[1] too is still
    // gathered when backward begins, because one operation of forward reads both. The plan assumes
    // such a pair under two conditions:
    //  - Each of the two is a single bucket outside of the model's blocks (Module::begin_block).
    //  - Backward does not read the values of blocks[0]. This holds for every bias.
    const auto is_alone = [&](const PlanBlock& block) {
      return buckets[static_cast<size_t>(block.first_bucket)].block < 0;
    };
    const bool with_bias =
        i == 1 && !blocks[0].read_by_backward && is_alone(blocks[0]) && is_alone(blocks[1]);
    const bool still_there = i == 0 || with_bias;
    blocks[i].gathers = still_there || blocks[i].tied || !blocks[i].read_by_backward ? 1 : 2;
  }
  return blocks;
}

bool same_group(const PlanParameter& a, const PlanParameter& b) {
  // Row-sparse tables are in no bucket (optim/plan/plan_tables.h).
  return a.dtype == b.dtype && a.trainable == b.trainable && !a.row_sparse() && !b.row_sparse();
}

PlanGroup make_group(const PlanInput& input, const PlanParameter& kind) {
  std::vector<dist::LayoutParameter> list;
  std::vector<int64_t> registered;
  for (size_t i = 0; i < input.parameters.size(); ++i) {
    const PlanParameter& p = input.parameters[i];
    if (!same_group(p, kind)) continue;
    list.push_back({p.name, p.elements, p.shared, input.stage == 3 ? p.block : -1});
    registered.push_back(static_cast<int64_t>(i));
  }
  const int64_t bucket_elements = std::max<int64_t>(1, input.bucket_bytes / dtype_size(kind.dtype));
  PlanGroup group{.dtype = kind.dtype,
                  .sum_dtype = dtype_size(kind.dtype) == 2 ? input.sum_dtype : DType::f32,
                  .trainable = kind.trainable,
                  .registered = std::move(registered),
                  .layout = {std::move(list), input.ranks, bucket_elements},
                  .blocks = {}};
  if (input.stage == 3) group.blocks = blocks_of(input, group);
  return group;
}

void check(const PlanInput& input) {
  TESSERA_CHECK(input.stage >= 0 && input.stage <= 3, "plan: stage {}, expected 0 to 3",
                input.stage);
  constexpr int64_t most_ranks = int64_t{1} << 40;
  TESSERA_CHECK(input.ranks >= 1 && input.ranks <= most_ranks, "plan: {} ranks, expected 1 to 2^40",
                input.ranks);
  TESSERA_CHECK(input.bucket_bytes >= 1, "plan: buckets of {} bytes, expected at least 1",
                input.bucket_bytes);
  TESSERA_CHECK(input.sum_dtype == DType::f32 || input.sum_dtype == DType::bf16,
                "plan: gradient sums of dtype {}, expected f32 or bf16",
                dtype_name(input.sum_dtype));
  TESSERA_CHECK(input.state_tensors >= 0, "plan: {} state tensors, expected at least 0",
                input.state_tensors);
  for (const PlanParameter& p : input.parameters) {
    TESSERA_CHECK(is_float(p.dtype), "plan: parameter '{}' has dtype {}, expected f32, bf16 or f16",
                  p.name, dtype_name(p.dtype));
    TESSERA_CHECK(!p.row_sparse() || (p.distinct <= p.rows && p.elements % p.rows == 0),
                  "plan: row-sparse table '{}' has {} elements, {} rows and {} distinct rows, "
                  "expected rows of equal width, and no more distinct rows than rows",
                  p.name, p.elements, p.rows, p.distinct);
  }
  TESSERA_CHECK(!input.table_state_tensors || *input.table_state_tensors >= 0,
                "plan: {} state tensors of tables, expected at least 0",
                *input.table_state_tensors);
  TESSERA_CHECK(input.fixed_statistics >= 0 && input.fixed_statistics <= input.statistics,
                "plan: {} values of running statistics, of which {} are fixed, expected at least 0 "
                "and at most all of them",
                input.statistics, input.fixed_statistics);
  input.batch.validate();
  if (input.graph && input.device.is_cpu()) {
    fail_input("graph: the ranks compute on the CPU, but graphs need CUDA");
  }
}

// Stages 2 and 3 hold gradients in a ring for two neighbouring buckets, and in a buffer for each
// tied parameter.
CheckedInt ring_elements(const PlanGroup& group) {
  CheckedInt tied = 0;
  int64_t neighbours = 0;
  int64_t before = 0;
  for (const dist::Bucket& bucket : group.layout.buckets()) {
    if (bucket.shared) {
      tied += bucket.elements;
      continue;
    }
    neighbours = std::max(neighbours, (CheckedInt(before) + bucket.elements).value());
    before = bucket.elements;
  }
  return tied + neighbours;
}

}  // namespace

int64_t first_trainable(const PlanInput& input) {
  const auto found = std::find_if(input.parameters.begin(), input.parameters.end(),
                                  [](const PlanParameter& p) { return p.trainable; });
  return found - input.parameters.begin();
}

int64_t largest_bucket(const PlanGroup& group) {
  int64_t largest = 0;
  for (const dist::Bucket& bucket : group.layout.buckets()) {
    largest = std::max(largest, bucket.elements);
  }
  return largest;
}

CheckedInt gradient_elements(const PlanInput& input, const PlanGroup& group) {
  // A single rank on the CPU writes the first micro-batch's gradients directly into the gradient
  // sums, so a step with one micro-step needs no buffers for gradients (GradientsInSums).
  const bool in_sums = input.ranks == 1 && input.device.is_cpu() &&
                       group.dtype == group.sum_dtype &&
                       input.reduction == Reduction::ordered && !input.no_sync;
  if (in_sums && input.batch.micro_steps(input.ranks) == 1) return 0;
  return input.stage >= 2 ? ring_elements(group) : group.layout.flat_elements();
}

// Tied blocks stay gathered. Besides tied blocks, the block in use is gathered. When gathering
// ahead, the next block is in flight too. Backward gathers only blocks whose values backward reads.
CheckedInt gathered_elements(const PlanGroup& group, bool ahead) {
  CheckedInt tied = 0;
  int64_t most = 0;
  for (const bool backward : {false, true}) {
    int64_t before = 0;
    for (const PlanBlock& block : group.blocks) {
      if (block.tied || (backward && !block.read_by_backward)) continue;
      most = std::max(most, (CheckedInt(before) + block.elements).value());
      if (ahead) before = block.elements;
    }
  }
  for (const PlanBlock& block : group.blocks) tied += block.tied ? block.elements : 0;
  return tied + most;
}

std::vector<PlanGroup> plan_groups(const PlanInput& input) {
  check(input);
  std::vector<PlanParameter> kinds;  // the first parameter of each group
  for (const PlanParameter& p : input.parameters) {
    const auto same = [&p](const PlanParameter& kind) { return same_group(p, kind); };
    if (!p.row_sparse() && std::none_of(kinds.begin(), kinds.end(), same)) kinds.push_back(p);
  }
  std::vector<PlanGroup> groups;
  for (const PlanParameter& kind : kinds) groups.push_back(make_group(input, kind));
  return groups;
}

}  // namespace tessera::optim
