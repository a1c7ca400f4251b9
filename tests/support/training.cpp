#include "tests/support/training.h"

#include <cmath>
#include <cstdlib>

#include "tests/support/devices.h"

namespace tessera::test {
namespace {

float comparable(float value) { return std::isfinite(value) ? value : -1; }

}  // namespace

void train_step(optim::ZeroOptimizer& optimizer, const Training& training, int64_t step,
                TrainingResult& result) {
  for (const auto& micro : optimizer.micro_batches(step, training.batch)) {
    const Tensor loss = training.loss(micro);
    if (loss.defined()) {
      optimizer.backward(loss);
    } else {
      optimizer.skip();
    }
  }
  const optim::StepReport report = optimizer.step();
  result.losses.push_back(comparable(report.loss));
  result.grad_norms.push_back(comparable(report.grad_norm));
  result.loss_scales.push_back(report.loss_scale);
  result.skipped.push_back(report.skipped);
  result.notes = report.notes;
}

TrainingResult train(nn::Module& model, const Training& training, const dist::World& world,
                     optim::ZeroOptions options) {
  optim::ZeroOptimizer optimizer(model, training.rule, world, std::move(options));
  TrainingResult result;
  for (int64_t step = 0; step < training.steps; ++step) {
    train_step(optimizer, training, step, result);
  }
  result.weights = weights_of(optimizer);
  return result;
}

Weights weights_of(const nn::Module& model) {
  Weights weights;
  for (const auto& named : model.named_parameters()) {
    const auto values = named.parameter.tensor().values<float>();
    weights[named.name].assign(values.begin(), values.end());
  }
  return weights;
}

Weights weights_of(optim::ZeroOptimizer& optimizer) {
  Weights weights;
  optimizer.for_each_parameter([&](const nn::NamedParameter& named, std::span<const float> values) {
    weights[named.name].assign(values.begin(), values.end());
  });
  return weights;
}

bool job_is_staged() {
  const char* const name = std::getenv("TESSERA_TEST_COMM");
  return !on_cpu() && name != nullptr && std::string(name) == "mpi";
}

std::shared_ptr<dist::Communicator> job_communicator() {
  if (on_cpu()) return dist::mpi_communicator();
  if (!job_is_staged()) return dist::nccl_communicator(default_device().index);
  static const std::shared_ptr<dist::Communicator> host = dist::mpi_communicator();
  return dist::staged_communicator(host, default_device().index);
}

dist::World world_of(std::shared_ptr<dist::Communicator> communicator) {
  const int rank = communicator->rank();
  const int size = communicator->size();
  return {.communicator = std::move(communicator), .rank = rank, .size = size};
}

dist::World lone_world() {
  return {.communicator = dist::single_communicator(default_device())};
}

dist::World job_world() {
  // All tests share one communicator, so its host buffers are allocated once, as in a training job.
  static const std::shared_ptr<dist::Communicator> communicator = job_communicator();
  return world_of(communicator);
}

dist::World fresh_world() { return job_is_staged() ? world_of(job_communicator()) : job_world(); }

}  // namespace tessera::test
