// Text in a command that is offered for copying into a shell.
#pragma once

#include <string>

namespace tessera::apps {

/// Returns a path as one word of a shell's command line. A path without special characters, such as
/// runs/a-1.json, is returned unchanged. A path with control characters is written as $'...', with
/// escapes that keep the word on one line. Other paths are put in single quotes. A path that begins
/// with '-' gets "./" in front, so that it is not taken for a flag.
std::string shell_word(const std::string& path);

}  // namespace tessera::apps
