// The version of the library and its programs, as shown by --version and in the header of a log.
#pragma once

namespace tessera {

/// Returns Tessera's version, such as "0.1.0".
const char* version();

}  // namespace tessera
