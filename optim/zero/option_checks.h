// Checks the options of a ZeroOptimizer before anything is allocated.
#pragma once

#include <vector>

#include "dist/bootstrap.h"
#include "nn/module.h"
#include "optim/zero/options.h"

namespace tessera::optim {

/// Returns each parameter's group of hyper-parameters, as group_of (ZeroOptions) gives it. Throws
/// Error if there are groups but no group_of, or if a parameter's group does not exist.
std::vector<int> groups_of(const ZeroOptions& options,
                           const std::vector<nn::NamedParameter>& parameters);
/// Throws Error for hyper-parameters that are outside their valid range or that a rule cannot use.
/// `of[i]`: the group of parameters[i]. `rule` and options.table_rule are each checked with their
/// own hyper-parameters (group 0) and with the groups of the trainable parameters that they update.
/// The error begins with "optimizer" for `rule`, or "table_rule" for options.table_rule, and names
/// the group.
void check_groups(const ZeroOptions& options, const UpdateRule& rule,
                  const std::vector<nn::NamedParameter>& parameters, const std::vector<int>& of);
/// Throws Error if a parameter already has an optimizer, because a second optimizer would replace
/// the hooks of the first.
void check_not_optimised(const std::vector<nn::NamedParameter>& parameters);
/// Throws InputError or Error for invalid options. Does not check options.loss_scaling, which the
/// constructor of LossScaler checks.
void check_options(const ZeroOptions& options);
/// Throws InputError for ordered reduction on ranks with different GPUs or GPU libraries
/// (dist::World::difference).
void check_equal_ranks(const ZeroOptions& options, const dist::World& world);
/// With options.graph: throws InputError if the options, parameters or communicator do not allow
/// graphs.
void check_graph(const ZeroOptions& options, const std::vector<nn::NamedParameter>& parameters,
                 const dist::Communicator& communicator);

/// Throws InputError if options.graph is set and the model has a row-sparse table. Throws Error if
///   a table is trainable, but its rule cannot update rows (UpdateRule::updates_rows);
///   a dense parameter is trainable, but `rule` has no update() (UpdateRule::updates_ranges).
/// The rule of a table is options.table_rule if this is set, and `rule` if not.
void check_tables(const ZeroOptions& options, const UpdateRule& rule,
                  const std::vector<nn::NamedParameter>& parameters);

}  // namespace tessera::optim
