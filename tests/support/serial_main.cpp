// The main function of test programs without MPI.
#define CATCH_CONFIG_RUNNER
#include "tests/support/catch.h"
#include "tests/support/devices.h"

int main(int argc, char** argv) {
  tessera::test::use_test_device();
  return Catch::Session().run(argc, argv);
}
