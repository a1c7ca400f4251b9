// Training runs that tests repeat in many configurations, and the results of such runs. The results
// must be equal in all configurations.
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

/// The results of a run. Tests compare the results of two runs with ==.
struct TrainingResult {
  std::vector<float> losses;      // values that are not finite are -1, because NaN != NaN
  std::vector<float> grad_norms;  // as in `losses`, -1 replaces values that are not finite
  std::vector<float> loss_scales;
  std::vector<bool> skipped;
  uint8_t notes = 0;  // the notes of the last step (ZeroOptimizer::set_notes)
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

/// Returns the f32 weights by name, for a model whose parameters are not sharded.
Weights weights_of(const nn::Module& model);
/// Returns the f32 weights by name, for a model at any ZeRO stage. For trained 16-bit parameters,
/// returns the master weights. Collective.
Weights weights_of(optim::ZeroOptimizer& optimizer);

/// Returns a world of this rank alone, even inside a larger job.
dist::World lone_world();
/// Creates a communicator of this MPI job's ranks. On the CPU, the communicator uses MPI. On CUDA,
/// it uses NCCL, or MPI through host memory if TESSERA_TEST_COMM is "mpi".
std::shared_ptr<dist::Communicator> job_communicator();
/// True if the job's ranks compute on CUDA and communicate through host memory.
bool job_is_staged();
/// Returns the world of this MPI job.
dist::World job_world();
/// Returns job_world() or, if the job is staged, a world with a new communicator, which has no host
/// buffers yet. Earlier collectives may have enlarged those of job_world()'s communicator.
dist::World fresh_world();

}  // namespace tessera::test
