// Training runs that tests repeat in many configurations, and what of them must be equal.
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

/// Of a run, what must be equal bit for bit.
struct TrainingResult {
  std::vector<float> losses;      // -1 where it is not finite, so that results can be compared
  std::vector<float> grad_norms;  // likewise
  std::vector<float> loss_scales;
  std::vector<bool> skipped;
  uint8_t notes = 0;  // of the last step
  Weights weights;

  bool operator==(const TrainingResult&) const = default;
};

struct Training {
  int64_t steps = 4;
  Batch batch{.global = 14, .micro = 2};
  optim::UpdateRule rule = optim::AdamW{.learning_rate = 1e-2f, .weight_decay = 0.1f};
  /// A micro-batch's mean loss; undefined where it has no data.
  std::function<Tensor(const MicroBatch&)> loss;
};

void train_step(optim::ZeroOptimizer& optimizer, const Training& training, int64_t step,
                TrainingResult& result);
TrainingResult train(nn::Module& model, const Training& training, const dist::World& world,
                     optim::ZeroOptions options);

/// Weights by name, of a model that has them whole, in f32.
Weights weights_of(const nn::Module& model);
/// The same of any model under an optimizer; of 16-bit parameters the master weights. Collective.
Weights weights_of(optim::ZeroOptimizer& optimizer);

/// The world of a job of one rank, inside any job.
dist::World lone_world();
/// What the ranks of this job of MPI communicate over: on the CPU MPI, on CUDA what
/// TESSERA_TEST_COMM names (mpi: through host memory), NCCL if it names nothing.
std::shared_ptr<dist::Communicator> job_communicator();
/// Whether they compute on CUDA and communicate through host memory.
bool job_is_staged();
/// The world of this job of MPI.
dist::World job_world();
/// The same; where the job is staged, with mirrors of its own, which no call has made larger yet.
dist::World fresh_world();

}  // namespace tessera::test
