// Checks that all ranks of a job have the same settings, before anything depends on the settings.
// Ranks with different flags or data would train a mixed model, or wait for each other for ever.
//
//   dist::check_agreement(world, {{"--seed", "1"}, {"--lr", "0.001"}});
//
// In the body of dist::run, this call ends the job if the ranks' settings differ:
//
//   error: --seed: rank 0 has 1, rank 2 has 7; all ranks of a job must have the same value
//
// first_reason lets all ranks agree on whether one of them has failed.
#pragma once

#include <string>
#include <vector>

#include "dist/bootstrap.h"

namespace tessera::dist {

struct Setting {
  std::string name;   // as users know it: "--seed"
  std::string value;  // as text
  bool operator==(const Setting&) const = default;
};
/// The settings, in the order of comparison. Each name occurs once.
using Settings = std::vector<Setting>;

/// Throws InputError on every rank if the ranks' settings differ. The error names the first setting
/// that differs, or says that only the order differs. If `world` is a group, the error numbers the
/// ranks within the group. Every rank sends an 8-byte digest of its settings to every other rank.
/// The settings themselves are gathered only if the digests differ.
///
/// Collective; does nothing in a job of one rank. Call check_agreement as soon as the settings are
/// known, and before train::begin_run. begin_run resets the traffic ledger, so a run's traffic does
/// not include this check.
void check_agreement(const World& world, const Settings& own);

/// of_ranks[r] are the settings of rank r. Returns a text about the first setting that differs,
/// such as "--seed: rank 0 has 1, ranks 2, 3 have 7", or an empty text if all settings have the
/// same values on all ranks. Rank 0's settings are compared first, in their order, and then the
/// settings that only other ranks have.
std::string first_difference(const std::vector<Settings>& of_ranks);

/// `own` says why this rank has failed; it is empty if the rank has not failed. Returns the text of
/// the lowest rank that has failed, or an empty text, the same on every rank. One text is enough,
/// because often all ranks fail for the same reason, such as a missing file. Collective.
std::string first_reason(const std::string& own, Communicator& communicator);

}  // namespace tessera::dist
