#include "course/lib/sums.h"

#include <cmath>

namespace course {

Gradients reference_gradients(const Training& training, int64_t step) {
  Task task;
  const dist::World alone{.communicator = dist::single_communicator()};
  optim::ZeroOptimizer optimizer(task.model(), training.rule, alone);
  for (int64_t s = 0; s < step; ++s) optimizer.step(s, training.batch, task.losses());
  for (const MicroBatch& micro : optimizer.micro_batches(step, training.batch)) {
    optimizer.backward(task.loss(micro));
  }
  Gradients gradients;
  for (const nn::NamedParameter& named : task.model().named_parameters()) {
    const Tensor values = optimizer.gradient(named.name);
    gradients[named.name].assign(values.data<float>(), values.data<float>() + values.elements());
  }
  optimizer.step();
  forget_steps();
  return gradients;
}

SumReport compare_sums(DataParallel& trainer, const Gradients& expected, int rank) {
  const dist::ShardLayout& layout = trainer.layout();
  const float* const sums = Inspector(trainer).sums().data<float>();
  SumReport report;
  double size = 0;
  double expected_size = 0;
  double distance = 0;
  for (int p = 0; p < std::ssize(trainer.parameters()); ++p) {
    const nn::NamedParameter& named = trainer.parameters()[static_cast<size_t>(p)];
    const dist::ParameterSlot& slot = layout.slot(p);
    const dist::Bucket& bucket = layout.buckets()[static_cast<size_t>(slot.bucket)];
    const dist::Range own = layout.owned(p, rank);
    // Element i of the parameter is element shift + i of the rank's sums.
    const int64_t shift = bucket.shard_offset - layout.shard(slot.bucket, rank).begin + slot.offset;
    bool equal = true;
    for (int64_t i = own.begin; i < own.end; ++i) {
      const float wanted = expected.at(named.name)[static_cast<size_t>(i)];
      equal = equal && sums[shift + i] == wanted;
      size += std::abs(sums[shift + i]);
      expected_size += std::abs(wanted);
      distance += std::abs(sums[shift + i] - wanted);
    }
    if (!equal) report.wrong.push_back(named.name);
  }
  report.ratio = expected_size > 0 ? size / expected_size : 1;
  report.distance = expected_size > 0 ? distance / expected_size : 0;
  return report;
}

}  // namespace course
