// The main function of test programs without MPI.
#define CATCH_CONFIG_RUNNER
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/devices.h"

int main(int argc, char** argv) {
  tessera::test::use_test_device();
  std::vector<char*> arguments(argv, argv + argc);
  char warn_flag[] = "--warn", no_match[] = TESSERA_NO_MATCH_FAILS;
  arguments.insert(arguments.begin() + 1, {warn_flag, no_match});
  return Catch::Session().run(static_cast<int>(arguments.size()), arguments.data());
}
