// Catch2 in version 2 or 3, whichever is installed, with the few names that differ made equal.
// Tests include this file and write version 3's names: Catch::Approx,
// Catch::Matchers::ContainsSubstring. TESSERA_SKIP("why") replaces SKIP, which version 2 lacks.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>

namespace Catch {
using Detail::Approx;
namespace Matchers {
inline auto ContainsSubstring(const std::string& text,
                              CaseSensitive::Choice sensitivity = CaseSensitive::Yes) {
  return Contains(text, sensitivity);
}
}  // namespace Matchers
}  // namespace Catch
#endif

// Ends the test case or section as passed, with a line that says why it did not run.
#define TESSERA_SKIP(reason)       \
  do {                             \
    WARN("skipped: " << (reason)); \
    SUCCEED();                     \
    return;                        \
  } while (false)
