// Training runs that tests repeat in many configurations, and their results, which must be equal in
// all configurations.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"

namespace tessera::test {

using Weights = std::map<std::string, std::vector<float>>;

/// The results of a run. Tests compare the results of two runs bit for bit.
struct TrainingResult {
  std::vector<float> losses;      // -1 for values that are not finite, as NaN != NaN
  std::vector<float> grad_norms;  // likewise
  std::vector<float> loss_scales;
  std::vector<bool> skipped;
  uint8_t notes = 0;  // of the last step (ZeroOptimizer::set_notes)
  Weights weights;

  bool operator==(const TrainingResult&) const = default;
};

struct Training {
  int64_t steps = 4;
  Batch batch{.global = 14, .micro = 2};
  optim::UpdateRule rule = optim::AdamW{.learning_rate = 1e-2f, .weight_decay = 0.1f};
  /// Returns a micro-batch's mean loss, or an undefined tensor if the micro-batch has no data.
  std::function<Tensor(const MicroBatch&)> loss;
};

void train_step(optim::ZeroOptimizer& optimizer, const Training& training, int64_t step,
                TrainingResult& result);
TrainingResult train(nn::Module& model, const Training& training, const dist::World& world,
                     optim::ZeroOptions options);

/// Weights by name, in f32, of a model whose parameters are not sharded.
Weights weights_of(const nn::Module& model);
/// Weights by name, in f32, of a model at any ZeRO stage. 16-bit parameters give their master
/// weights. Collective.
Weights weights_of(optim::ZeroOptimizer& optimizer);

/// A world of this rank alone, even inside a larger job.
dist::World lone_world();
/// The communicator of this MPI job's ranks: MPI on the CPU; on CUDA NCCL, or MPI through host
/// memory if TESSERA_TEST_COMM is "mpi".
std::shared_ptr<dist::Communicator> job_communicator();
/// True if the job's ranks compute on CUDA and communicate through host memory.
bool job_is_staged();
/// The world of this MPI job.
dist::World job_world();
/// If the job is staged, returns a world with a new communicator: its host buffers have their
/// initial size, while earlier calls may have enlarged those of job_world()'s communicator. If the
/// job is not staged, returns job_world().
dist::World fresh_world();

}  // namespace tessera::test
