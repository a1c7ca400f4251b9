#include "optim/plan/plan_input.h"

namespace tessera::optim {

std::vector<PlanParameter> plan_parameters(const nn::Module& model) {
  std::vector<PlanParameter> list;
  for (const auto& [name, parameter, shared, block] : model.named_parameters()) {
    list.push_back({name, parameter.elements(), shared, block, parameter.dtype(),
                    parameter.trainable(), parameter.backward_reads(),
                    parameter.distinct_rows() > 0 ? parameter.shape()[0] : 0,
                    parameter.distinct_rows(), parameter.lookups()});
  }
  return list;
}

int64_t plan_statistics(const nn::Module& model) {
  int64_t values = 0;
  for (const auto& [name, statistics] : model.named_statistics()) {
    values += statistics->mean.elements() + statistics->variance.elements();
  }
  return values;
}

int64_t plan_batch_norms(const nn::Module& model) { return std::ssize(model.named_statistics()); }

}  // namespace tessera::optim
