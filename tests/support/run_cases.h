// Runs the test cases that a command line selects, as Catch::Session does. A pattern that matches
// no case is a failure, so that a renamed case cannot silently drop out of a selection. If
// TESSERA_UNMATCHED_PATTERNS is in the environment, patterns without a match are allowed.
#pragma once

namespace tessera::test {

/// Returns the exit code.
int run_cases(int argc, char** argv);

}  // namespace tessera::test
