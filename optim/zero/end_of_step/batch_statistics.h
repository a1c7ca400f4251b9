// The running statistics of a model's batch norms over all ranks. Each rank keeps the statistics of
// its micro-batches until the step ends. All ranks then gather these statistics and accumulate them
// into the running statistics in order of micro-batch. So the results do not depend on the number
// of ranks. With synchronized norms every rank already has the statistics of the whole batch, so
// nothing is gathered.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "nn/module.h"
#include "optim/kernels/step_scalars.h"

namespace tessera::optim {

class BatchStatistics {
 public:
  explicit BatchStatistics(std::shared_ptr<dist::Communicator> communicator);
  ~BatchStatistics();  // removes the hooks
  BatchStatistics(const BatchStatistics&) = delete;
  BatchStatistics& operator=(const BatchStatistics&) = delete;

  /// The statistics to add, and new memory for them and for all statistics added before.
  struct Addition {
    std::vector<nn::NamedStatistics> statistics;
    Tensor running;
    Tensor current;
  };
  /// Checks the statistics and allocates memory, but leaves this object unchanged. Throws if some
  /// of the statistics already have an optimizer, or if not all norms, including those of all(),
  /// have the same momentum.
  Addition prepare(std::vector<nn::NamedStatistics> statistics) const;
  /// Moves all statistics with their values to the new memory, and sets their hooks. With
  /// `synchronized` the norms normalise over the micro-batches of all ranks together.
  void add(Addition addition, bool synchronized);

  const std::vector<nn::NamedStatistics>& all() const { return statistics_; }

  /// Clears this rank's slots. A slot stores the statistics of one micro-step. Also finds out which
  /// statistics are fixed in the step (nn::RunningStatistics::fixed). A forward could not find this
  /// out on every rank, because a rank without data runs no forward.
  void begin_step(int64_t micro_steps);
  void begin_micro_step();
  /// Throws if the forward of the current micro-step has observed a batch norm's statistics a wrong
  /// number of times. The right number is 0 for fixed statistics, and 1 for all other statistics.
  void check_observed() const;
  /// Stores the observed statistics of the current micro-batch in its slot.
  void keep(int64_t micro_step);
  /// Gathers the step's statistics on every rank. Collective.
  void gather();
  /// Accumulates the gathered statistics into the running statistics, except into fixed ones.
  /// Changes nothing if `scalars` is not null and has skip set.
  void fold(int64_t micro_batches, const StepScalars* scalars);

 private:
  void observe(size_t index, int64_t offset, const Tensor& mean, const Tensor& variance);
  void attach();
  /// Copies the values of fixed statistics from one buffer to another of the same layout.
  void copy_fixed(const Tensor& to, const Tensor& from) const;

  std::shared_ptr<dist::Communicator> communicator_;
  std::vector<nn::NamedStatistics> statistics_;
  std::vector<int> observations_;  // per batch norm: calls of observe() in this micro-step
  std::vector<bool> fixed_;        // per batch norm: true if its statistics are fixed in this step
  bool synchronized_ = false;
  int64_t values_ = 0;  // S, the number of running values of all batch norms
  Tensor running_;      // [S]
  Tensor current_;      // [S + 1]: the current micro-batch's values, then a 1
  // [ranks, micro-steps, S + 1]: copies of current_, one slot for each micro-step of each rank. The
  // last value of a slot is 0 if the rank had no data in the micro-step, or only repeated another
  // rank's micro-batch. Undefined if synchronized.
  Tensor observed_;
  int64_t micro_steps_ = 0;
};

}  // namespace tessera::optim
