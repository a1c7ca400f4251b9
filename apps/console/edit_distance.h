// How similar two names are, for proposals such as "did you mean --steps?".
#pragma once

#include <cstdint>
#include <string>

namespace tessera::apps {

/// Returns the edit distance: the least number of steps that turn `a` into `b`. A step inserts,
/// deletes or replaces a letter, or swaps two neighbouring letters that no other step changes
/// (optimal string alignment).
int64_t edit_distance(const std::string& a, const std::string& b);

}  // namespace tessera::apps
