// The device that a test program runs on: the CPU, or what TESSERA_TEST_DEVICE names ("cuda").
// Test bodies make their tensors on default_device(), and so know nothing of it. On CUDA memory is
// shared with the host, so that they read and write values as on the CPU.
#pragma once

namespace tessera::test {

/// Called by each main function before the first tensor. Ends the program where the device is
/// unknown or cannot be used.
void use_test_device();

/// For cases that test the CPU alone.
bool on_cpu();

}  // namespace tessera::test
