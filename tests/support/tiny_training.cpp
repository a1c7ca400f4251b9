#include "tests/support/tiny_training.h"

#include "core/random.h"

namespace tessera::test {

TinyBatch tiny_batch(const TinyRun& run, const optim::MicroBatch& micro) {
  const int64_t context = run.model.context;
  TinyBatch batch{Tensor::empty({micro.samples, context}, DType::i32),
                  Tensor::empty({micro.samples, context}, DType::i32)};
  for (int64_t s = 0; s < micro.samples; ++s) {
    const auto sample =
        static_cast<uint64_t>(micro.step * run.batch.global + micro.first_sample + s);
    RandomStream stream(7, "tiny batch", sample);
    auto token = static_cast<int32_t>(stream.below(static_cast<uint64_t>(run.model.vocab)));
    for (int64_t t = 0; t < context; ++t) {
      batch.tokens.data<int32_t>()[s * context + t] = token;
      // A rule that a model can learn, with some noise.
      token = static_cast<int32_t>((token * 5 + 3 + static_cast<int32_t>(stream.below(2))) %
                                   run.model.vocab);
      batch.targets.data<int32_t>()[s * context + t] = token;
    }
  }
  return batch;
}

std::map<std::string, std::vector<float>> weights_of(const nn::Module& model) {
  std::map<std::string, std::vector<float>> weights;
  for (const auto& named : model.named_parameters()) {
    const auto values = named.parameter.tensor().values<float>();
    weights[named.name].assign(values.begin(), values.end());
  }
  return weights;
}

TinyResult train_tiny(const TinyRun& run, const dist::World& world, optim::ZeroOptions options) {
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{.learning_rate = 1e-2f}, world,
                                 std::move(options));
  TinyResult result;
  for (int64_t step = 0; step < run.steps; ++step) {
    for (const auto& micro : optimizer.micro_batches(step, run.batch)) {
      const auto [tokens, targets] = tiny_batch(run, micro);
      optimizer.backward(model.loss(tokens, targets));
    }
    const optim::StepReport report = optimizer.step();
    result.losses.push_back(report.loss);
    result.grad_norms.push_back(report.grad_norm);
  }
  optimizer.synchronize();
  result.weights = weights_of(model);
  return result;
}

dist::World lone_world() { return {.communicator = dist::single_communicator()}; }

dist::World job_world() {
  // One communicator a process: its staging is allocated once, as in a job.
  static const std::shared_ptr<dist::Communicator> communicator = dist::mpi_communicator();
  return {.communicator = communicator, .rank = communicator->rank(), .size = communicator->size()};
}

}  // namespace tessera::test
