// Optimizer state by parameter name: the own shard's, or whole on one rank.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "optim/partition.h"
#include "optim/update_policy.h"
#include "optim/zero_optimizer.h"

namespace tessera::optim {

using StateByName = std::map<std::string, ZeroOptimizer::StateShard>;

void own_state(const Partition& partition, const UpdatePolicy& updates,
               const std::vector<std::string>& names, StateByName& result);

/// Adds whole parameters to `result` on rank `root`, bucket by bucket: beyond the result no rank
/// holds more than one bucket of one state tensor. Collective.
void gather_state(const Partition& partition, const UpdatePolicy& updates,
                  const std::vector<std::string>& names, dist::Communicator& communicator, int root,
                  StateByName& result);

}  // namespace tessera::optim
