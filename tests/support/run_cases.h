// Runs the test cases that a command line selects, as Catch::Session does. A pattern that no case
// matches is a failure, so that a case that is renamed does not silently drop out of a selection.
// With TESSERA_UNMATCHED_PATTERNS in the environment, such patterns are allowed.
#pragma once

namespace tessera::test {

/// Returns the exit code.
int run_cases(int argc, char** argv);

}  // namespace tessera::test
