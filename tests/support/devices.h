// The device that a test program runs on: the CPU, or CUDA if TESSERA_TEST_DEVICE is "cuda". Test
// bodies make their tensors on default_device(), so they run on any device. CUDA tensors are in
// memory shared with the host, so tests read and write their values as on the CPU.
#pragma once

namespace tessera::test {

/// serial_main.cpp and mpi_main.cpp call this before a test makes a tensor. As in train_gpt, a
/// rank takes the GPU whose index is its rank on this host, modulo the number of GPUs. Ends the
/// program if the device is unknown or cannot be used.
void use_test_device(int local_rank = 0);

/// True if the tests run on the CPU.
bool on_cpu();

/// True if the tests run on a GPU. False on the CPU, and on the device that the preset `emulated`
/// emulates on the CPU (docs/cuda.md).
bool on_real_gpu();

}  // namespace tessera::test
