// Text in a command that is offered for copying into a shell.
#pragma once

#include <string>

namespace tessera::apps {

/// Returns a path as one word of a shell's command line. A path such as runs/a-1.json is as it is.
/// Other paths are in single quotes; if a path has control characters, it is in the form $'...', in
/// which the word stays on one line. A path that begins with '-' gets "./" in front, so that it is
/// not taken for a flag.
std::string shell_word(const std::string& path);

}  // namespace tessera::apps
