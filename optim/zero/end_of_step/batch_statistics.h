// The running statistics of a model's batch norms, over ranks. Each micro-batch's statistics are
// kept until the step ends; then every rank hears of all of them, and brings them into its running
// ones in order of the micro-batches: evaluation is the same for any number of ranks.
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
  ~BatchStatistics();  // takes the hooks off
  BatchStatistics(const BatchStatistics&) = delete;
  BatchStatistics& operator=(const BatchStatistics&) = delete;

  /// Statistics to be laid out behind those that are there, and the memory of all of them.
  struct Addition {
    std::vector<nn::NamedStatistics> statistics;
    Tensor running;
    Tensor current;
  };
  /// Changes nothing yet. Throws for statistics that cannot be added.
  Addition prepare(std::vector<nn::NamedStatistics> statistics) const;
  /// Lays the statistics out, and sets their hooks. Values that they have are kept. With
  /// `synchronized` they normalise over the ranks' micro-batches together.
  void add(Addition addition, bool synchronized);

  const std::vector<nn::NamedStatistics>& all() const { return statistics_; }

  void begin_step(int64_t micro_steps);
  void begin_micro_step();
  /// Throws unless the running micro-step's forward has observed all of them, each once.
  void check_observed() const;
  /// Keeps what the running micro-batch's forward has observed.
  void keep(int64_t micro_step);
  /// The step's statistics to everybody. Collective.
  void gather();
  /// Into the running ones, unless `scalars`, which may be null, say skip.
  void fold(int64_t micro_batches, const StepScalars* scalars);

 private:
  void observe(size_t index, int64_t offset, const Tensor& mean, const Tensor& variance);
  void attach();

  std::shared_ptr<dist::Communicator> communicator_;
  std::vector<nn::NamedStatistics> statistics_;
  std::vector<int> observations_;  // of each, in the running micro-step
  bool synchronized_ = false;
  int64_t values_ = 0;  // S, of all of them
  Tensor running_;      // [S]
  Tensor current_;      // [S + 1], of the running micro-batch; the last is 1
  Tensor observed_;     // [ranks, micro-steps, S + 1]; where synchronized there is none
  int64_t micro_steps_ = 0;
};

}  // namespace tessera::optim
