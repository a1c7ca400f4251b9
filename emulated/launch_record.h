// Counts the launches of a process on emulated devices. If the environment variable
// TESSERA_EMULATED_LAUNCHES names a file, the process writes the counts to this file at exit: a
// line "count<tab>name" for each kernel that was launched and each call that was counted by
// record_call. In a capture, a launch or call is counted once, however often the graph is launched.
// bench/gpu_operations.py reads the file.
#pragma once

namespace emulated {

/// Counts a launch of a kernel under the kernel's C++ name.
void record_kernel(const void* kernel);
/// Counts a call that the device executes, such as "cudaMemsetAsync".
void record_call(const char* name);

}  // namespace emulated
