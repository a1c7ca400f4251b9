// The main function of test programs without MPI.
#include "tests/support/devices.h"
#include "tests/support/run_cases.h"

int main(int argc, char** argv) {
  tessera::test::use_test_device();
  return tessera::test::run_cases(argc, argv);
}
