#include <set>
#include <tuple>

#include "optim/plan/plan.h"

namespace tessera::optim {

int64_t Plan::sent() const {
  int64_t sum = 0;
  for (const int64_t bytes : traffic) sum += bytes;
  return sum;
}

int64_t graph_count(const Batch& batch, int64_t ranks, int64_t steps, bool no_sync) {
  // The kinds of micro-steps (plan.h). Each kind is a combination of three properties: whether the
  // micro-step is the first of a step, the number of contributing ranks, and whether local sums are
  // sent.
  std::set<std::tuple<bool, int64_t, bool>> kinds;
  const int64_t last = steps == 0 ? -1 : batch.micro_steps(ranks) - 1;
  for (int64_t j = steps > 1 ? 0 : 1; j <= last; ++j) {
    kinds.emplace(j == 0, batch.contributors(ranks, j), no_sync && j == last);
  }
  return std::ssize(kinds);
}

}  // namespace tessera::optim
