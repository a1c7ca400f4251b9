// The version of the library and its programs, as their --version and the header of a log have it.
#pragma once

namespace tessera {

/// Tessera's, "0.1.0".
const char* version();

}  // namespace tessera
