// Damages JSON and lines of "key = value" in ways that keep most of the text unchanged.
#pragma once

#include <string>

#include "tests/hostile/mutation.h"

namespace tessera::hostile {

/// Damages the text once. Returns a description that begins with the kind of damage: "JSON: ...".
std::string mutate_text(std::string& text, Random& random);

}  // namespace tessera::hostile
