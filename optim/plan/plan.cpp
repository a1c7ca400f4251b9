#include "optim/plan/plan.h"

#include <algorithm>
#include <utility>

#include "core/assign.h"
#include "core/error.h"
#include "dist/communicator.h"
#include "optim/plan/checked_int.h"
#include "optim/plan/plan_groups.h"
#include "optim/plan/plan_tables.h"

namespace tessera::optim {
namespace {

constexpr int64_t f32_bytes = 4;
constexpr int64_t f64_bytes = 8;
constexpr int64_t update_slots = 2;
constexpr int64_t crossing_slots = 2;  // for offload from a GPU
// The next four constants are used only with a GPU, for the norm and the scalars of a step.
constexpr int64_t segment_bytes = 32;  // a BlockSums::Segment (step_end.h), one per parameter
constexpr int64_t blocks_a_partial_sum = 1024;
constexpr int64_t scalars_bytes = 32;  // one f64, five 32-bit words, 4 bytes of padding
constexpr int64_t fetched_slots = 2;

void add(int64_t& to, CheckedInt value) { to = (to + value).value(); }

class Planner {
 public:
  Planner(const PlanInput& input, int64_t rank)
      : input_(input),
        rank_(rank),
        others_(input.ranks - 1),
        micro_steps_(input.batch.micro_steps(input.ranks)) {
    plan_.rank = rank;
  }

  Plan make(const std::vector<PlanGroup>& groups) {
    for (const PlanGroup& group : groups) {
      add_values(group);
      if (input_.checkpoint_staging) add_staging(group);
      if (input_.saves) add_save(group);
      if (!group.trainable) continue;
      trainable_ += std::ssize(group.registered);
      add_gradients(group);
      add_update(group);
      add_norms(group);
    }
    for (const PlanParameter& parameter : input_.parameters) {
      if (parameter.row_sparse()) add_table(parameter);
    }
    trainable_ += trainable_tables_;
    add_step();
    add_statistics();
    if (input_.checkpoints || input_.saves) {
      plan_.parts.texts = dist::text_exchange_bytes(input_.ranks);
    }
    if (input_.checkpoints) add_checkpoints();
    if (input_.checkpoint_staging) add_pieces();
    if (input_.staged) add_mirrors();
    sum_up();
    return plan_;
  }

 private:
  int64_t& sent(dist::Traffic purpose) { return plan_.traffic[static_cast<size_t>(purpose)]; }
  void add_update_traffic(dist::Traffic purpose, CheckedInt bytes) {
    add(sent(purpose), bytes);
    add(plan_.update_traffic[static_cast<size_t>(purpose)], bytes);
  }
  // Returns the header bytes that this rank sends in `calls` collectives.
  CheckedInt headers(CheckedInt calls) const {
    return calls * others_ * input_.header_bytes.value_or(dist::mpi_header_bytes);
  }
  bool gathers_ahead() const { return input_.overlap && !input_.single_pass; }
  bool sums_locally() const { return input_.no_sync && micro_steps_ > 1; }

  // Returns how many times the rank sends its gradient in a step.
  int64_t gradient_sends() const {
    const int64_t micro_batches = input_.batch.micro_batches();
    if (rank_ >= micro_batches) return 0;
    // On N ranks, this rank has the micro-batches rank, rank + N, rank + 2N, ...
    return input_.no_sync ? 1 : (micro_batches - rank_ - 1) / input_.ranks + 1;
  }

  // True if the rank holds at least one element of a parameter, not only padding.
  bool holds_any(const PlanGroup& group) const {
    for (size_t p = 0; p < group.layout.parameters().size(); ++p) {
      if (input_.stage < 3 || group.layout.owned(static_cast<int>(p), rank_).size() > 0)
        return true;
    }
    return false;
  }

  void add_values(const PlanGroup& group) {
    if (input_.device.is_cpu() && group.dtype != DType::f32 && holds_any(group)) {
      plan_.filling = assign_workspace_bytes;
    }
    const int64_t bytes = dtype_size(group.dtype);
    const dist::ShardLayout& layout = group.layout;
    const int64_t shard = layout.shard_elements();
    CheckedInt padding = layout.padding_elements();
    CheckedInt held = layout.flat_elements();
    if (input_.stage == 3) {
      held = padding = shard;
      for (size_t p = 0; p < group.registered.size(); ++p) {
        padding = padding - layout.owned(static_cast<int>(p), rank_).size();
      }
      add(plan_.parts.gathered, gathered_elements(group, gathers_ahead()) * bytes);
      pass(CheckedInt(largest_bucket(group)) * bytes);
      for (const PlanBlock& block : group.blocks) {
        const CheckedInt gathers = CheckedInt(block.gathers) * micro_steps_;
        add(sent(dist::Traffic::parameters),
            CheckedInt(others_) * block.shard_elements * bytes * gathers);
        add(sent(dist::Traffic::headers),
            headers(gathers * (block.end_bucket - block.first_bucket)));
      }
    } else if (input_.stage > 0 && group.trainable) {
      pass(CheckedInt(largest_bucket(group)) * bytes);
      add_update_traffic(dist::Traffic::parameters, CheckedInt(others_) * shard * bytes);
      add_update_traffic(dist::Traffic::headers, headers(std::ssize(layout.buckets())));
    }
    add(plan_.parts.values, held * bytes);
    add(plan_.padding, padding * bytes);
  }

  void add_table(const PlanParameter& table) {
    const TableMemory memory = table_memory(input_, table, rank_);
    PlanParts& parts = plan_.parts;
    add(parts.values, memory.values);
    add(parts.looked_up, memory.looked_up);
    add(parts.buckets, memory.gradients);
    add(parts.accumulators, memory.sums);
    add(parts.masters, memory.masters);
    add(parts.state, memory.state);
    add(parts.rows, memory.device_rows);
    add(parts.crossing, memory.crossing);
    add(input_.device.is_cpu() ? parts.rows : parts.host_rows, memory.host_rows);
    add(parts.norms, memory.blocks * f64_bytes);
    table_blocks_ += memory.blocks.value();
    const dist::Range own = plan_row_layout(input_, table).owned(rank_);
    const bool fills = table.dtype != DType::f32 && (input_.stage < 3 || own.size() > 0);
    if (input_.device.is_cpu() && fills) plan_.filling = assign_workspace_bytes;
    const TableCalls calls = table_calls(input_, table);
    add(sent(dist::Traffic::headers),
        headers(CheckedInt(calls.micro_step) * micro_steps_ + calls.step));
    add_update_traffic(dist::Traffic::headers, headers(calls.update));
    add(sent(dist::Traffic::rows), table_count_bytes(input_, table) * micro_steps_);
    if (input_.checkpoint_staging) {
      for (const int64_t piece : table_pieces(input_, table, rank_)) {
        add_piece(piece, input_.device.is_cpu() || (table.trainable && input_.offload));
      }
    }
    if (input_.saves) {
      plan_.parts.saved =
          std::max(plan_.parts.saved, (CheckedInt(table.elements) * f32_bytes).value());
      if (input_.ranks > 1) {
        add(plan_.save_traffic[static_cast<size_t>(dist::Traffic::saves)],
            CheckedInt(others_) * own.size() * table.width() * f32_bytes);
        add(plan_.save_traffic[static_cast<size_t>(dist::Traffic::headers)], headers(1));
      }
    }
    trainable_tables_ += table.trainable ? 1 : 0;
  }

  // At every stage a checkpoint has this rank's shards: f32 weights and optimizer state of trained
  // parameters, and the values of frozen parameters. Staging copies the shards, and the checkpoint
  // is written from the copies. Shards in GPU memory are always copied. Shards in host memory that
  // do not fit into checkpoint_limit are written without a copy.
  void add_staging(const PlanGroup& group) {
    const int64_t tensors = group.trainable ? 1 + input_.state_tensors : 1;
    const int64_t bytes = group.trainable ? f32_bytes : dtype_size(group.dtype);
    const bool on_host = input_.device.is_cpu() || (group.trainable && input_.offload);
    for (size_t p = 0; p < group.registered.size(); ++p) {
      const int64_t elements = group.layout.owned(static_cast<int>(p), rank_).size();
      for (int64_t i = 0; i < tensors; ++i) {
        add_piece((CheckedInt(elements) * bytes).value(), on_host);
      }
    }
  }
  void add_piece(int64_t bytes, bool on_host) {
    if (on_host && input_.checkpoint_limit) {
      pieces_.push_back(bytes);
    } else {
      add(plan_.checkpoint, bytes);
    }
  }

  // Adds the shards in host memory whose copies fit into the limit, the largest first.
  void add_pieces() {
    std::sort(pieces_.rbegin(), pieces_.rend());
    for (const int64_t piece : pieces_) {
      if (piece <= *input_.checkpoint_limit - plan_.checkpoint) add(plan_.checkpoint, piece);
    }
  }

  // Rank 0 also writes each trained parameter's count of updates. With loss scaling, rank 0 also
  // writes the scale and the count of good steps.
  void add_checkpoints() {
    if (rank_ != 0) return;
    const bool scaled = input_.loss_scaling ||
                        std::ranges::any_of(input_.parameters, [](const PlanParameter& parameter) {
                          return parameter.dtype == DType::f16;
                        });
    constexpr int64_t count_bytes = 8;
    add(plan_.checkpoint,
        CheckedInt(trainable_) * count_bytes + (scaled ? f32_bytes + count_bytes : 0));
  }

  // A save holds one bucket at a time, whole and in f32. It gathers a bucket if each rank holds or
  // updates only a shard of it: at stage 3 all buckets, at stages 1 and 2 the trained buckets.
  void add_save(const PlanGroup& group) {
    const CheckedInt largest = CheckedInt(largest_bucket(group)) * f32_bytes;
    plan_.parts.saved = std::max(plan_.parts.saved, largest.value());
    const bool sharded = input_.stage == 3 || (input_.stage > 0 && group.trainable);
    if (!sharded || input_.ranks == 1) return;
    pass(largest);
    const auto add_traffic = [this](dist::Traffic purpose, CheckedInt bytes) {
      add(plan_.save_traffic[static_cast<size_t>(purpose)], bytes);
    };
    add_traffic(dist::Traffic::saves,
                CheckedInt(others_) * group.layout.shard_elements() * f32_bytes);
    add_traffic(dist::Traffic::headers, headers(std::ssize(group.layout.buckets())));
  }

  // Records that a buffer of `bytes` is passed to a collective.
  void pass(CheckedInt bytes) { largest_call_ = std::max(largest_call_, bytes.value()); }

  void add_gradients(const PlanGroup& group) {
    const int64_t bytes = dtype_size(group.dtype);
    const int64_t sum_bytes = dtype_size(group.sum_dtype);
    const CheckedInt largest = largest_bucket(group);
    pass(largest * (sums_locally() ? sum_bytes : bytes));
    const int64_t flat = group.layout.flat_elements();
    const int64_t shard = group.layout.shard_elements();
    add(plan_.parts.buckets, gradient_elements(input_, group) * bytes);
    add(plan_.parts.accumulators, CheckedInt(shard) * sum_bytes);
    if (sums_locally()) add(plan_.parts.local_sums, CheckedInt(flat) * sum_bytes);
    if (input_.reduction == Reduction::fast) {
      const CheckedInt largest_shard = largest_bucket(group) / input_.ranks;
      add(plan_.parts.scattered, largest_shard * f32_bytes);
      largest_sum_ = std::max(largest_sum_, (largest_shard * f32_bytes).value());
    }
    // Each time a rank sends its gradient, it sends all shards except its own shard.
    add(sent(dist::Traffic::gradients),
        CheckedInt(gradient_sends()) * (flat - shard) * (sums_locally() ? sum_bytes : bytes));
    const CheckedInt buckets_sent = std::ssize(group.layout.buckets());
    add(sent(dist::Traffic::headers), headers(buckets_sent * (input_.no_sync ? 1 : micro_steps_)));
    if (input_.stage > 0) return;
    pass(largest * sum_bytes);
    // At stage 0 a rank sends its shard of the gradient sums to all other ranks before the update.
    add_update_traffic(dist::Traffic::gradients, CheckedInt(others_) * shard * sum_bytes);
    add_update_traffic(dist::Traffic::headers, headers(buckets_sent));
    if (group.sum_dtype != group.dtype) {
      const int64_t slots = std::min(update_slots, std::ssize(group.layout.buckets()));
      add(plan_.parts.gathered_sums, largest * slots * sum_bytes);
    }
  }

  void add_update(const PlanGroup& group) {
    const bool everything = input_.stage == 0;
    const int64_t elements =
        everything ? group.layout.flat_elements() : group.layout.shard_elements();
    if (input_.offload || group.dtype != DType::f32) {
      add(plan_.parts.masters, CheckedInt(elements) * f32_bytes);
    }
    add(plan_.parts.state, CheckedInt(elements) * input_.state_tensors * f32_bytes);
    if (input_.offload) {
      const int64_t largest = largest_bucket(group) / (everything ? 1 : input_.ranks);
      const int64_t slots =
          input_.device.is_cpu() ? 1 : std::min(crossing_slots, std::ssize(group.layout.buckets()));
      add(plan_.parts.crossing,
          CheckedInt(slots) * largest * (dtype_size(group.sum_dtype) + dtype_size(group.dtype)));
    }
  }

  // Adds the memory for the sums of squares of all blocks of 256 elements, and the traffic that
  // gathers these sums.
  void add_norms(const PlanGroup& group) {
    const int64_t blocks = group.layout.flat_elements() / dist::block_elements;
    add(plan_.parts.norms, CheckedInt(blocks) * f64_bytes);
    for (size_t p = 0; p < group.registered.size(); ++p) {
      parameter_blocks_ += dist::blocks_of(group.layout.slot(static_cast<int>(p)).elements);
    }
    add(sent(dist::Traffic::norms), CheckedInt(others_) * (blocks / input_.ranks) * f64_bytes);
  }

  void add_step() {
    const CheckedInt losses = CheckedInt(micro_steps_) * f32_bytes;
    // The flags of a rank are:
    //   - one byte of notes from the caller (ZeroOptimizer::set_notes);
    //   - one bit per micro-step, set if the micro-step had data;
    //   - one bit per trainable parameter, set if the parameter got a gradient.
    const CheckedInt flags = 1 + ((CheckedInt(micro_steps_) + trainable_ + 7).value()) / 8;
    // With graphs there is one more f32 number, to which each graph copies its micro-batch's loss.
    plan_.parts.losses = (losses * input_.ranks + (input_.graph ? f32_bytes : 0)).value();
    pass(losses * input_.ranks);
    pass(plan_.parts.norms);  // only block sums so far; on a GPU, more is added below
    plan_.parts.flags = (flags * input_.ranks).value();
    sent(dist::Traffic::losses) = (losses * others_).value();
    sent(dist::Traffic::flags) = (flags * others_).value();
    add(sent(dist::Traffic::headers), headers(3));  // norms, losses, flags
    if (trainable_tables_ > 0) {
      // The ranks exchange counts in host memory: how many rows, and how many blocks of 256
      // elements, the step touched in each table.
      const CheckedInt counts = CheckedInt(trainable_tables_) * 2 * 8;
      add(sent(dist::Traffic::rows), counts * others_);
      add(sent(dist::Traffic::headers), headers(1));
      const bool on_host = !input_.device.is_cpu();
      add(on_host ? plan_.parts.host_rows : plan_.parts.rows, counts * input_.ranks);
    }
    if (!input_.device.is_cpu()) {
      const CheckedInt partial_sums =
          (parameter_blocks_ + table_blocks_ + blocks_a_partial_sum - 1) / blocks_a_partial_sum;
      add(plan_.parts.norms, CheckedInt(trainable_) * segment_bytes + partial_sums * f64_bytes);
      plan_.parts.scalars = scalars_bytes;
      plan_.parts.fetched = fetched_slots * scalars_bytes;
    }
    plan_.parts.staging = input_.staging_bytes.value_or(dist::mpi_staging_bytes(input_.ranks));
  }

  void add_statistics() {
    if (input_.statistics == 0) return;
    const CheckedInt values = input_.statistics;
    const CheckedInt slot = (values + 1) * f32_bytes;  // the last value is 1 if there was data
    const bool synchronized = input_.sync_batch_norm && input_.ranks > 1;
    plan_.parts.running = (values * f32_bytes).value();
    if (input_.checkpoint_staging && rank_ == 0) add(plan_.checkpoint, values * f32_bytes);
    add(plan_.parts.statistics, slot);
    if (!synchronized) {
      add(plan_.parts.statistics, slot * micro_steps_ * input_.ranks);
      pass(slot * micro_steps_ * input_.ranks);
      sent(dist::Traffic::statistics) = (slot * micro_steps_ * others_).value();
      add(sent(dist::Traffic::headers), headers(1));
      return;
    }
    // Forward reduces the means in a first call and the variances in a second. Backward reduces
    // sum_g and sum_gn (core/ops/batch_norm.h) in a third call. Each of these four quantities has
    // one value per channel.
    const CheckedInt changing = input_.statistics - input_.fixed_statistics;
    sent(dist::Traffic::statistics) = (changing * 2 * f32_bytes * others_).value();
    add(sent(dist::Traffic::headers), headers(CheckedInt(input_.batch_norms) * 3));
  }

  // Adds the host memory of dist::staged_communicator, and of the host communicator that it uses.
  void add_mirrors() {
    CheckedInt mirrors = dist::mpi_staging_bytes(input_.ranks);
    for (const int64_t largest : {largest_call_, largest_sum_}) {
      if (largest > 0) mirrors += std::max(largest, dist::staged_mirror_bytes);
    }
    plan_.parts.mirrors = mirrors.value();
  }

  void sum_up() {
    const PlanParts& p = plan_.parts;
    const CheckedInt state = CheckedInt(p.masters) + p.state;
    add(plan_.parameters, CheckedInt(p.values) + p.running + p.looked_up + p.gathered);
    add(plan_.gradients, CheckedInt(p.buckets) + p.accumulators + p.local_sums + p.gathered_sums);
    add(input_.offload ? plan_.host.optimizer_state : plan_.optimizer_state, state);
    const bool apart = !input_.device.is_cpu();  // true: device and host memory are separate
    plan_.host.communication = (CheckedInt(p.crossing) + p.fetched + p.mirrors + p.host_rows +
                                (apart ? p.flags + p.texts : 0))
                                   .value();
    // A save frees its last bucket before the ranks exchange texts about the save's success. On the
    // CPU, bucket and texts are in the same memory, so only the larger of the two sizes is added.
    add(plan_.communication, CheckedInt(p.staging) + p.scattered + p.norms + p.losses +
                                 p.statistics + p.scalars + p.rows +
                                 (apart ? p.saved : p.flags + std::max(p.saved, p.texts)));
    // These additions throw on overflow, so that memory() and sent() of Plan cannot overflow.
    CheckedInt all = CheckedInt(plan_.parameters) + plan_.gradients + plan_.communication + state;
    all += plan_.host.communication;
    all += plan_.checkpoint;
    CheckedInt traffic = 0;
    for (const int64_t bytes : plan_.traffic) traffic += bytes;
  }

  const PlanInput& input_;
  int64_t rank_;
  int64_t others_;
  int64_t micro_steps_;
  int64_t trainable_tables_ = 0;
  int64_t table_blocks_ = 0;      // number of block sums for row-sparse tables
  int64_t trainable_ = 0;         // number of trainable parameters
  int64_t parameter_blocks_ = 0;  // number of 256-element blocks of dense trainable parameters
  std::vector<int64_t> pieces_;   // bytes of each shard in host memory, if checkpoint_limit is set
  int64_t largest_call_ = 0;      // bytes of the largest buffer of a collective on the device
  int64_t largest_sum_ = 0;       // bytes of the largest shard that a reduce_scatter returns
  Plan plan_;
};

}  // namespace

Plan plan(const PlanInput& input, int64_t rank) {
  const std::vector<PlanGroup> groups = plan_groups(input);  // checks the input
  TESSERA_CHECK(rank >= 0 && rank < input.ranks,
                "plan: rank {}, expected at least 0 and less than {}", rank, input.ranks);
  return Planner(input, rank).make(groups);
}

}  // namespace tessera::optim
