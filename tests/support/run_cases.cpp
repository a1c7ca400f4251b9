#define CATCH_CONFIG_RUNNER  // makes version 2 of Catch2 define its functions in this file
#include "tests/support/run_cases.h"

#include <cstdio>
#include <cstdlib>

#include "tests/support/catch.h"

namespace tessera::test {

int run_cases(int argc, char** argv) {
  Catch::Session session;
  const int bad_arguments = session.applyCommandLine(argc, argv);
  if (bad_arguments != 0) return bad_arguments;
#if __has_include(<catch2/catch_all.hpp>)
  constexpr auto unmatched = Catch::WarnAbout::UnmatchedTestSpec;
#else
  constexpr auto unmatched = Catch::WarnAbout::NoTests;
#endif
  auto& warnings = session.configData().warnings;
  if (std::getenv("TESSERA_UNMATCHED_PATTERNS") == nullptr) {
    warnings = static_cast<Catch::WarnAbout::What>(warnings | unmatched);
  }
#if !__has_include(<catch2/catch_all.hpp>)
  // Given an invalid pattern, version 2 would run no test case and return 0.
  const auto& invalid = session.config().testSpec().getInvalidArgs();
  if (!invalid.empty()) {
    std::fprintf(stderr, "\"%s\" is not a valid selection of test cases\n", invalid[0].c_str());
    return 2;
  }
#endif
  return session.run();
}

}  // namespace tessera::test
