#include "tests/support/devices.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/cuda.h"

namespace tessera::test {

void use_test_device(int local_rank) {
  const char* const variable = std::getenv("TESSERA_TEST_DEVICE");
  const std::string name = variable == nullptr ? "cpu" : variable;
  if (name == "cpu") return;
  if (name != "cuda" || cuda::device_count() == 0) {
    std::fprintf(stderr, "TESSERA_TEST_DEVICE is '%s': %s\n", name.c_str(),
                 name == "cuda" ? cuda::unusable().c_str() : "expected cpu or cuda");
    std::exit(2);
  }
  cuda::share_memory_with_host();
  const int index = local_rank % cuda::device_count();
  cuda::use_device(index);
  set_default_device({DeviceType::cuda, index});
}

bool on_cpu() { return default_device().is_cpu(); }

bool on_real_gpu() {
  if (on_cpu()) return false;
  return cuda::device_name(default_device().index).find("emulated") == std::string::npos;
}

}  // namespace tessera::test
