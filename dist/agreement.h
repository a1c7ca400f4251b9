// What all ranks of a job must have alike, compared before anything depends on it: ranks with other
// flags or other data would train a mixed model, or wait for each other for ever.
//
//   dist::check_agreement(world, {{"--seed", "1"}, {"--lr", "0.001"}});
//
// ends the job where they differ:
//
//   error: --seed: rank 0 has 1, rank 2 has 7; all ranks of a job must have the same
#pragma once

#include <string>
#include <vector>

#include "dist/bootstrap.h"

namespace tessera::dist {

struct Setting {
  std::string name;   // as a person finds it: "--seed"
  std::string value;  // in words
  bool operator==(const Setting&) const = default;
};
/// In the order in which they are compared. No name comes twice.
using Settings = std::vector<Setting>;

/// Throws InputError on every rank where the ranks' lists differ, with the first difference. Sends
/// a digest of 8 bytes to every rank, whatever the list has; texts travel only where digests
/// differ. So no two lists make ranks wait for each other. Collective; of a job of one rank nothing
/// is asked. To be called as soon as a list is known, and before train::begin_run counts bytes.
void check_agreement(const World& world, const Settings& own);

/// The first setting in which a rank differs from rank 0, in rank 0's order: "--seed: rank 0 has 1,
/// ranks 2, 3 have 7". Empty where all lists are equal.
std::string first_difference(const std::vector<Settings>& of_ranks);

}  // namespace tessera::dist
