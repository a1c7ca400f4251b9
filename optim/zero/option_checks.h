// Checks the options of a ZeroOptimizer before anything is allocated.
#pragma once

#include <string>
#include <vector>

#include "dist/bootstrap.h"
#include "nn/module.h"
#include "optim/zero/options.h"

namespace tessera::optim {

/// Throws Error for hyper-parameters outside their valid range, in the rule (group 0) or in a group
/// (numbered from 1). The error begins with `whose`: "optimizer" for the optimizer's rule,
/// "table_rule" for ZeroOptions::table_rule.
void check_groups(const std::string& whose, const UpdateRule& rule,
                  const std::vector<GroupOptions>& groups);
/// Throws Error if a parameter already has an optimizer, because a second optimizer would replace
/// the hooks of the first.
void check_not_optimised(const std::vector<nn::NamedParameter>& parameters);
/// Throws InputError or Error for invalid options.
void check_options(const ZeroOptions& options);
/// Throws InputError for ordered reduction on ranks with different GPUs or GPU libraries
/// (dist::World::difference).
void check_equal_ranks(const ZeroOptions& options, const dist::World& world);
/// With options.graph: throws InputError if the options, parameters or communicator do not allow
/// graphs.
void check_graph(const ZeroOptions& options, const std::vector<nn::NamedParameter>& parameters,
                 const dist::Communicator& communicator);

/// Throws InputError for row-sparse tables with graphs. Throws Error if the rule for tables cannot
/// update rows, or the rule for dense parameters cannot update ranges.
void check_tables(const ZeroOptions& options, const UpdateRule& rule,
                  const std::vector<nn::NamedParameter>& parameters);

}  // namespace tessera::optim
