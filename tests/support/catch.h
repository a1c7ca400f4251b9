// Includes Catch2, version 2 or 3. Tests must use the names of version 3, such as Catch::Approx and
// Catch::Matchers::ContainsSubstring. TESSERA_SKIP("why") replaces SKIP, which version 2 lacks.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // some tests use a global Approx, which only version 2 declares
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

// Prints the reason, then ends the test case or section as passed.
#define TESSERA_SKIP(reason)       \
  do {                             \
    WARN("skipped: " << (reason)); \
    SUCCEED();                     \
    return;                        \
  } while (false)
