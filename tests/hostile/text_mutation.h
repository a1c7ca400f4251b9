// Damages JSON and lines of "key = value" in ways that usually keep most of the text unchanged.
#pragma once

#include <string>

#include "tests/hostile/mutation.h"

namespace tessera::hostile {

/// Damages the text once, or leaves it unchanged if it has nothing that the chosen damage applies
/// to. Returns a description that begins with the kind of damage: "JSON: ...".
std::string mutate_text(std::string& text, Random& random);

}  // namespace tessera::hostile
