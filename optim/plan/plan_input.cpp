#include "optim/plan/plan_input.h"

#include <algorithm>

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

namespace {

int64_t count_values(const nn::Module& model, bool only_fixed) {
  int64_t values = 0;
  for (const auto& [name, statistics] : model.named_statistics()) {
    if (only_fixed && !statistics->is_fixed()) continue;
    values += statistics->mean.elements() + statistics->variance.elements();
  }
  return values;
}

}  // namespace

int64_t plan_statistics(const nn::Module& model) { return count_values(model, false); }

int64_t plan_fixed_statistics(const nn::Module& model) { return count_values(model, true); }

int64_t plan_batch_norms(const nn::Module& model) {
  return std::ranges::count_if(model.named_statistics(), [](const nn::NamedStatistics& named) {
    return !named.statistics->is_fixed();
  });
}

}  // namespace tessera::optim
