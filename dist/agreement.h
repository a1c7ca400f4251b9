// Checks that all ranks of a job have the same settings, before anything depends on the settings.
// Ranks with different flags or data would train a mixed model, or wait for each other for ever.
//
//   dist::check_agreement(world, {{"--seed", "1"}, {"--lr", "0.001"}});
//
// This call ends the job if the ranks' settings differ:
//
//   error: --seed: rank 0 has 1, rank 2 has 7; all ranks of a job must have the same value
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

/// Throws InputError on every rank if the ranks' lists differ; the error names the first
/// difference. Sends an 8-byte digest to every rank, and the lists themselves only if the digests
/// differ. All digests have the same size, so ranks can gather them even if their lists differ in
/// length.
///
/// Collective; does nothing in a job of one rank. Call check_agreement as soon as the settings are
/// known, and before train::begin_run. begin_run resets the traffic ledger, so a run's traffic does
/// not include this check.
void check_agreement(const World& world, const Settings& own);

/// Returns the first difference from rank 0, such as "--seed: rank 0 has 1, ranks 2, 3 have 7";
/// empty if every setting has the same value on all ranks. Rank 0's settings are compared first, in
/// their order, and then the settings that only other ranks have.
std::string first_difference(const std::vector<Settings>& of_ranks);

}  // namespace tessera::dist
