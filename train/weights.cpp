#include "train/weights.h"

#include <memory>

#include "nn/weights_file.h"

namespace tessera::train {

void save_weights(const std::string& path, const nn::Module& model, optim::ZeroOptimizer& optimizer,
                  const dist::World& world, const SaveOptions& options) {
  std::unique_ptr<nn::WeightsWriter> writer;
  if (world.rank == 0) {
    writer = std::make_unique<nn::WeightsWriter>(path, model, options.metadata);
  }
  optimizer.for_each_parameter([&](const nn::NamedParameter& named, std::span<const float> values) {
    if (writer) writer->write(named, values);
  });
  if (writer) writer->commit(model, options.batches);
}

void load_weights(const std::string& path, const nn::Module& model,
                  optim::ZeroOptimizer& optimizer) {
  const nn::WeightsFile weights(path, model);
  optimizer.set_parameters(weights.source());
  weights.load_statistics(model);
}

}  // namespace tessera::train
