#include "dist/start_guard.h"

#include <string>
#include <vector>

#include "dist/communicator.h"
#include "tests/support/catch.h"

using namespace tessera::dist;

namespace {

double timeout_in(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"program"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return comm_timeout_in(static_cast<int>(argv.size()), argv.data());
}

}  // namespace

TEST_CASE("the time limit of the start is the value of --comm-timeout") {
  CHECK(timeout_in({"--steps", "3"}) == default_comm_timeout_s);
  CHECK(timeout_in({"--comm-timeout", "5", "--steps", "3"}) == 5);
  CHECK(timeout_in({"--comm-timeout=2.5"}) == 2.5);
  CHECK(timeout_in({"--comm-timeout", "+5"}) == 5);
  CHECK(timeout_in({"--comm-timeout=5", "--comm-timeout", "7"}) == 7);
}

TEST_CASE("the time limit of the start ignores other flags and invalid values") {
  const std::vector<std::vector<std::string>> without = {
      {"--comm-timeout"},       {"--comm-timeout="},    {"--comm-timeout", "=5"},
      {"--comm-timeout=5s"},    {"--comm-timeout=0"},   {"--comm-timeout=inf"},
      {"--comm-timeout=+-5"},   {"--comm-timeout=++5"}, {"--comm-timeout5"},
      {"--comm-timeout5", "7"}, {"--comm-timeoutX=5"},  {"--comm-timeoutX", "5"}};
  for (const auto& arguments : without) {
    CAPTURE(arguments);
    CHECK(timeout_in(arguments) == default_comm_timeout_s);
  }
}
