// Tests how the emulator reads numbers from environment variables. It must refuse numbers out of
// range, and any text besides the number. An empty variable counts as unset.
#include <stdlib.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "emulated/environment.h"
#include "tests/support/catch.h"

namespace {

constexpr const char* variable = "TESSERA_TEST_EMULATED_SETTING";

/// Sets the variable, and removes it at the end.
class Setting {
 public:
  explicit Setting(const char* text) { ::setenv(variable, text, 1); }
  ~Setting() { ::unsetenv(variable); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
};

TEST_CASE("an emulator's seed is a number of digits only") {
  CHECK(emulated::seed_of(variable, "any") == 0);
  {
    const Setting setting("");
    CHECK(emulated::seed_of(variable, "any") == 0);
  }
  for (const uint64_t seed : {uint64_t{0}, uint64_t{7}, ~uint64_t{0}}) {
    const Setting setting(std::to_string(seed).c_str());
    CHECK(emulated::seed_of(variable, "any") == seed);
  }
  for (const char* text : {" -5", "-5", " 5", "+5", "5 ", "\t5", "5x", "x", " ", "1.5", "0x5",
                           "18446744073709551616"}) {
    CAPTURE(text);
    const Setting setting(text);
    CHECK_THROWS_AS(emulated::seed_of(variable, "any"), std::invalid_argument);
    CHECK_THROWS_WITH(emulated::seed_of(variable, "0 ascending"),
                      Catch::Matchers::ContainsSubstring(std::string(variable) + " is '" + text +
                                                         "', expected a seed") &&
                          Catch::Matchers::EndsWith(": 0 ascending"));
  }
}

TEST_CASE("an emulator's number is within its range") {
  CHECK(emulated::number_of(variable, 3, -1, 9) == 3);
  for (const char* text : {"-2", "10", " 5", "+5", "5 ", "4294967301", "five"}) {
    CAPTURE(text);
    const Setting setting(text);
    CHECK_THROWS_WITH(emulated::number_of(variable, 3, -1, 9),
                      Catch::Matchers::EndsWith("expected -1 to 9"));
  }
  const Setting setting("-1");
  CHECK(emulated::number_of(variable, 3, -1, 9) == -1);
}

}  // namespace
