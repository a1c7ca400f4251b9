// Damages JSON and lines of "key = value" in ways that usually keep most of the text unchanged.
#pragma once

#include <string>

#include "tests/hostile/mutation.h"

namespace tessera::hostile {

/// Damages the text once. Leaves the text unchanged if the chosen damage applies to no part of it.
/// Returns a description that begins with the kind of damage: "JSON: ...".
std::string mutate_text(std::string& text, Random& random);

}  // namespace tessera::hostile
