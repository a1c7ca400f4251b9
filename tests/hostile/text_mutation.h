// Damage to JSON and to lines of "key = value", which keeps most of the text as it was.
#pragma once

#include <string>

#include "tests/hostile/mutation.h"

namespace tessera::hostile {

/// Damages the text. Returns what was done, beginning with its kind: "JSON: ...".
std::string mutate_text(std::string& text, Random& random);

}  // namespace tessera::hostile
