// Text in a command that is offered for copying into a shell.
#pragma once

#include <string>

namespace tessera::apps {

/// Returns the text as one word of a shell's command line. Names such as runs/a-1.json are as they
/// are. Other text is in single quotes; if it has control characters, it is in the form $'...', in
/// which the word stays on one line.
std::string shell_word(const std::string& text);

}  // namespace tessera::apps
